// eval, inspect, import, export and verify of GPTs, as a user runs them.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/safetensors.h"
#include "data/text/token_file.h"
#include "models/gpt/evaluate.h"
#include "models/gpt/model_file.h"
#include "tests/cli/program.h"
#include "tests/data/text/texts.h"
#include "tests/models/gpt_nets.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;
using Json = nlohmann::json;

namespace {

// model.safetensors: a GPT on bytes; text.txt: three lines.
struct Models {
  explicit Models(const std::string& spec = "bytes", std::size_t context = 37)
      : tokenizer(data::load_tokenizer(spec)), gpt(config_for(*tokenizer, context)) {
    models::save_gpt(gpt.engine, gpt.net, *tokenizer).save(folder / "model.safetensors");
    write_file(folder / "text.txt", some_text(3));
  }
  static models::GptConfig config_for(const data::Tokenizer& tokenizer, std::size_t context) {
    models::GptConfig config = small_gpt();
    config.context = context;
    config.vocabulary = tokenizer.size();
    return config;
  }
  Outcome run(const Args& args) const { return run_program(folder.path(), args); }
  Json json_of(const Args& args) const {
    const Outcome done = run(with(args, {"--json"}));
    INFO(done.err);
    REQUIRE(done.code == 0);
    return Json::parse(done.out);
  }

  TempDir folder;
  std::unique_ptr<data::Tokenizer> tokenizer;
  SharpGpt gpt;
};

}  // namespace

TEST_CASE("eval measures a GPT on a text", "[gpt]") {
  Models models;
  const std::string text = some_text(3);
  // The end of text, the bytes, the end of text.
  std::vector<std::int32_t> tokens = {256};
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  tokens.push_back(256);
  const auto read = [&](std::uint64_t begin, std::span<std::int32_t> out) {
    std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(begin), out.size(), out.begin());
  };
  const models::Perplexity expected =
      models::evaluate_perplexity({models.gpt.engine, models.gpt.net}, tokens.size(), read, {5, 8});
  const Json found = models.json_of({"eval", "model.safetensors", "--data", "text.txt", "--advance", "5"})["text"];
  CHECK(found["tokens"] == text.size() + 1);
  CHECK(found["bytes"] == text.size());
  CHECK(found["words"] == 27);
  CHECK(found["loss"].get<double>() == Approx(expected.loss / static_cast<double>(expected.tokens)).epsilon(1e-6));
  CHECK(found["perplexity"].get<double>() == Approx(expected.per_token()).epsilon(1e-5));
  CHECK(found["word_perplexity"].get<double>() == Approx(expected.by(27)).epsilon(1e-5));
  CHECK(found["bits_per_byte"].get<double>() == Approx(expected.bits_per_byte(text.size())).epsilon(1e-5));
  const Json by_30 =
      models.json_of({"eval", "model.safetensors", "--data", "text.txt", "--advance", "5", "--words", "30"})["text"];
  CHECK(by_30["word_perplexity"].get<double>() == Approx(expected.by(30)).epsilon(1e-5));

  const Outcome plain = models.run({"eval", "model.safetensors", "--data", "text.txt", "--dtype", "bf16", "--batch", "3"});
  CHECK(plain.code == 0);
  CHECK(has(plain.out, "windows of 37 tokens, advanced by 32"));
  CHECK(has(plain.out, "bits per byte"));
}

TEST_CASE("a context shorter than windows usually advance is no reason to refuse", "[gpt]") {
  Models models("bytes", 16);
  CHECK(models.json_of({"eval", "model.safetensors", "--data", "text.txt"})["text"]["advance"] == 16);
}

TEST_CASE("token files and folders of them measure as their text does", "[gpt]") {
  Models models;
  data::TokenFile::Content content;
  content.tokens = data::encode(*models.tokenizer, some_text(3));
  content.tokens.push_back(256);
  content.document_ends = {content.tokens.size()};
  content.vocabulary = 257;
  content.tokenizer_hash = data::tokenizer_hash(*models.tokenizer);
  content.words = 27;
  content.bytes = content.tokens.size() - 1;
  std::filesystem::create_directory(models.folder / "folder");
  write_tokens(models.folder / "folder/validation.tokens", content);
  const auto loss = [&](const Args& args) {
    return models.json_of(with({"eval", "model.safetensors"}, args))["text"]["perplexity"].get<double>();
  };
  const double expected = loss({"--data", "text.txt"});
  CHECK(loss({"--data", "folder/validation.tokens"}) == expected);
  CHECK(loss({"--data", "folder"}) == expected);
  CHECK(loss({"--data", "folder", "--split", "validation"}) == expected);
  CHECK(models.run({"eval", "model.safetensors", "--data", "folder", "--split", "test"}).code == 3);
  content.tokenizer_hash = "another";
  write_tokens(models.folder / "other.tokens", content);
  const Outcome other = models.run({"eval", "model.safetensors", "--data", "other.tokens"});
  CHECK(other.code == 3);
  CHECK(has(other.err, "the tokens of another tokenizer"));
}

TEST_CASE("eval divides a text into documents as the run did, or as it is told", "[gpt]") {
  Models models;
  write_file(models.folder / "lines.txt", "the king\n==\nand love\n");
  write_file(models.folder / "lines.jsonl", "{\"body\": \"the king\\n\"}\n{\"body\": \"and love\\n\"}\n");
  const auto measure = [&](const std::string& model, const Args& args) {
    return models.json_of(with({"eval", model, "--data"}, args))["text"];
  };
  // Bytes, and an end of text for each document.
  CHECK(measure("model.safetensors", {"lines.txt"})["tokens"] == 22);
  const Json told = measure("model.safetensors", {"lines.txt", "--documents", "=="});
  CHECK(told["tokens"] == 20);
  CHECK(measure("model.safetensors", {"lines.jsonl", "--field", "body"})["perplexity"] == told["perplexity"]);

  std::filesystem::create_directory(models.folder / "run");
  std::filesystem::copy(models.folder / "model.safetensors", models.folder / "run/model.safetensors");
  write_file(models.folder / "run/options.ini", "data = elsewhere.txt\ndocuments = ==\nfield = body\nsteps = 4\n");
  CHECK(measure("run", {"lines.txt"})["perplexity"] == told["perplexity"]);
  CHECK(measure("run", {"lines.jsonl"})["perplexity"] == told["perplexity"]);
  CHECK(measure("run", {"lines.txt", "--documents", "file"})["tokens"] == 22);

  const auto complaint = [&](const Args& args) {
    const Outcome done = models.run(with({"eval", "run"}, args));
    CHECK(done.code == 2);
    return done.err;
  };
  CHECK(has(complaint({"--data", "lines.jsonl", "--documents", "=="}),
            "--documents: == has no effect on lines.jsonl, which is JSONL"));
  CHECK(has(complaint({"--data", "lines.txt", "--field", "body"}),
            "--field: body has no effect on lines.txt, which is plain text"));
  CHECK(has(complaint({"--data", "run", "--field", "body"}), "--field: body has no effect on run, which is of tokens"));
  CHECK(has(complaint({"--cloze", "lines.txt", "--field", "body"}), "--field: body has no effect without --data"));
}

TEST_CASE("eval tells the last word of passages", "[gpt]") {
  Models models;
  write_file(models.folder / "lines.txt", "the king of\n\nand love never\n");
  write_file(models.folder / "lines.jsonl", "{\"text\": \"the king of\"}\n{\"text\": \"and love never\"}\n");
  const Json lines = models.json_of({"eval", "model.safetensors", "--cloze", "lines.txt"})["cloze"];
  CHECK(lines["passages"] == 2);
  Json objects = models.json_of({"eval", "model.safetensors", "--cloze", "lines.jsonl"})["cloze"];
  CHECK(objects["correct"] == lines["correct"]);
  CHECK(objects["passages"] == 2);
  const Outcome both = models.run({"eval", "model.safetensors", "--cloze", "lines.txt", "--data", "text.txt"});
  CHECK(has(both.out, "of 2 passages)"));
  CHECK(has(both.out, "perplexity"));
  write_file(models.folder / "short.txt", "the king of\nking\n");
  const Outcome wrong = models.run({"eval", "model.safetensors", "--cloze", "short.txt"});
  CHECK(wrong.code == 3);
  CHECK(has(wrong.err, "short.txt:2: 'king': fewer than two words"));
}

TEST_CASE("eval writes logits", "[gpt]") {
  Models models;
  const Outcome done = models.run({"eval", "model.safetensors", "--tokens", "72,101,256", "--logits", "out.safetensors"});
  CHECK(done.code == 0);
  const TensorFile file = TensorFile::load(models.folder / "out.safetensors");
  const auto found = file.get("logits", DType::f32, {3, 257}).as<float>();
  const std::vector<float> expected =
      models::token_logits({models.gpt.engine, models.gpt.net}, std::vector<std::int32_t>{72, 101, 256});
  CHECK(std::equal(found.begin(), found.end(), expected.begin(), expected.end()));
}

TEST_CASE("a model goes out and comes back", "[gpt]") {
  Models models;
  REQUIRE(models.run({"export", "model.safetensors", "--out", "hf"}).code == 0);
  CHECK(Json::parse(read_file(models.folder / "hf/config.json"))["eos_token_id"] == 256);
  CHECK(Json::parse(read_file(models.folder / "hf/tokenizer.json"))["model"]["vocab"].size() == 257);
  const Outcome back = models.run({"import", "gpt", "hf", "--out", "back.safetensors", "--tokenizer", "bytes"});
  INFO(back.err);
  REQUIRE(back.code == 0);
  const auto perplexity = [&](const std::string& model) {
    return models.json_of({"eval", model, "--data", "text.txt"})["text"]["perplexity"].get<double>();
  };
  CHECK(perplexity("back.safetensors") == perplexity("model.safetensors"));

  // Over another export, whose tokenizer goes with its model.
  write_gpt2(models.folder / "hf", {"t h"});
  REQUIRE(models.run({"export", "model.safetensors", "--out", "hf"}).code == 0);
  CHECK(!std::filesystem::exists(models.folder / "hf/vocab.json"));
  CHECK(!std::filesystem::exists(models.folder / "hf/.bitloom-export"));
  // Somebody's own files stay as they are.
  std::filesystem::create_directory(models.folder / "own");
  write_gpt2(models.folder / "own", {"t h"});
  const Outcome other = models.run({"export", "model.safetensors", "--out", "own"});
  CHECK(other.code == 2);
  CHECK(has(other.err, "--out: own; expected a folder without vocab.json, which is of no model there and would be read as"));
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(models.folder / "own")) {
    left.push_back(entry.path().filename().string());
  }
  std::ranges::sort(left);
  CHECK(left == std::vector<std::string>{"merges.txt", "vocab.json"});

  // Not over the model: it was replaced without a word.
  const Outcome same = models.run({"export", "model.safetensors", "--out", "."});
  CHECK(same.code == 2);
  CHECK(has(same.err, "--out: .; expected another name: the model is there, which would be replaced"));
  CHECK(models.run({"export", "model.safetensors", "--to", "gguf", "--out", "model.safetensors"}).code == 2);
  CHECK(perplexity("back.safetensors") == perplexity("model.safetensors"));

  const Outcome none = models.run({"import", "gpt", "hf", "--out", "x.safetensors"});
  CHECK(none.code == 2);
  CHECK(has(none.err, "--tokenizer: missing; hf has neither vocab.json and merges.txt nor tokenizer.model"));
  write_gpt2(models.folder.path(), {"t h"});
  const Outcome wrong = models.run({"import", "gpt", "hf", "--out", "x.safetensors", "--tokenizer", "."});
  CHECK(wrong.code == 3);
  CHECK(has(wrong.err, "a net of 257 tokens, but the tokenizer . has 258"));
  CHECK(!std::filesystem::exists(models.folder / "x.safetensors"));
}

TEST_CASE("a GPT-2 tokenizer goes along", "[gpt]") {
  TempDir files;
  write_gpt2(files.path(), {"t h", "th e", "\xC4\xA0 the", "\" \\"});
  Models models(files.path().string());
  REQUIRE(models.run({"export", "model.safetensors", "--out", "hf"}).code == 0);
  CHECK(Json::parse(read_file(models.folder / "hf/vocab.json")) == Json::parse(read_file(files / "vocab.json")));
  CHECK(read_file(models.folder / "hf/merges.txt") == read_file(files / "merges.txt"));
  REQUIRE(models.run({"import", "gpt", "hf", "--out", "back.safetensors"}).code == 0);
  CHECK(models.json_of({"inspect", "back.safetensors"})["tokenizer"] ==
        models.json_of({"inspect", "model.safetensors"})["tokenizer"]);
  // The weights that are to be imported were replaced.
  const std::string weights = read_file(models.folder / "hf/model.safetensors");
  const Outcome same = models.run({"import", "gpt", "hf", "--out", "hf/model.safetensors"});
  CHECK(same.code == 2);
  CHECK(has(same.err, "--out: hf/model.safetensors; expected another name: it is the model itself"));
  CHECK(read_file(models.folder / "hf/model.safetensors") == weights);
}

TEST_CASE("a model goes out as a GGUF file", "[gpt]") {
  Models models;
  const auto exported = [&](const char* type) {
    const Outcome done = models.run({"export", "model.safetensors", "--to", "gguf", "--type", type, "--out", "m.gguf"});
    INFO(done.err);
    REQUIRE(done.code == 0);
    CHECK(has(done.out, fmt::format("m.gguf: 28 tensors, matrices in {}, and the tokenizer", type)));
    CHECK(read_file(models.folder / "m.gguf").starts_with("GGUF"));
    return done.out;
  };
  CHECK(!has(exported("f32"), "f16"));
  exported("f16");
  // Rows of 24 numbers are no whole blocks.
  CHECK(has(exported("q8_0"), "7 matrices are in f16, since their rows are no multiple of 32 numbers: token_embd.weight"));
}

TEST_CASE("inspect shows what a GPT consists of", "[gpt]") {
  Models models;
  const Json json = models.json_of({"inspect", "model.safetensors"});
  CHECK(json["kind"] == "gpt");
  CHECK(json["layers"] == 2);
  CHECK(json["vocabulary"] == 257);
  CHECK(json["padded_vocabulary"] == 272);
  CHECK(json["parameters"] == models.gpt.net.config().parameters());
  std::size_t sum = 0;
  for (const Json& part : json["parts"]) sum += part["parameters"].get<std::size_t>();
  CHECK(sum == models.gpt.net.config().parameters());
  CHECK(json["tokenizer"]["kind"] == "bytes");
  const Outcome plain = models.run({"inspect", "model.safetensors"});
  CHECK(has(plain.out, "GPT: 2 layers of width 24, 3 heads, context 37"));
  CHECK(has(plain.out, "block: attention.qkv.weight"));
}

TEST_CASE("verify says which file is damaged", "[gpt]") {
  Models models;
  const std::filesystem::path run = models.folder / "run";
  std::filesystem::create_directory(run);
  for (const char* name : {"model.safetensors", "checkpoint.safetensors", "checkpoint.previous.safetensors"}) {
    std::filesystem::copy_file(models.folder / "model.safetensors", run / name);
  }
  write_file(run / "options.ini", "");
  const Outcome good = models.run({"verify", "run"});
  CHECK(good.code == 0);
  CHECK(has(good.out, "run/checkpoint.previous.safetensors: good"));
  std::string bytes = read_file(run / "checkpoint.safetensors");
  bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 4);
  write_file(run / "checkpoint.safetensors", bytes);
  const Outcome damaged = models.run({"verify", "run", "model.safetensors"});
  CHECK(damaged.code == 3);
  CHECK(has(damaged.out, "run/checkpoint.safetensors: DAMAGED"));
  CHECK(has(damaged.out, "run/checkpoint.previous.safetensors: good"));
  CHECK(has(damaged.out, "model.safetensors: good"));
  CHECK(has(damaged.err, "1 of 4 files damaged"));
  bytes.resize(bytes.size() / 2);
  write_file(models.folder / "cut.tokens", bytes);
  CHECK(models.run({"verify", "cut.tokens"}).code == 3);
  // It was called damaged.
  const Outcome nowhere = models.run({"verify", "nowhere", "model.safetensors"});
  CHECK(nowhere.code == 3);
  CHECK(has(nowhere.out, "nowhere: there is no such file or folder\n"));
  CHECK_FALSE(has(nowhere.out, "DAMAGED"));
  CHECK(has(nowhere.err, "1 of 2 files missing, 0 damaged"));
  // A folder without any file ended it, and what came after was not looked at; those below were not.
  std::filesystem::create_directories(models.folder / "shared/states");
  const Outcome empty = models.run({"verify", "shared", "model.safetensors"});
  CHECK(empty.code == 3);
  CHECK(has(empty.out, "shared: nothing to verify in it"));
  CHECK(has(empty.out, "model.safetensors: good"));
  std::filesystem::copy_file(models.folder / "model.safetensors", models.folder / "shared/states/1.safetensors");
  std::filesystem::create_directory_symlink("..", models.folder / "shared/states/circle");
  CHECK(has(models.run({"verify", "shared"}).out, "shared/states/1.safetensors: good"));
  std::filesystem::create_symlink("nowhere", models.folder / "shared/2.safetensors");
  CHECK(has(models.run({"verify", "shared"}).out, "shared/2.safetensors: there is no such file"));
  const Outcome lines = models.run({"verify", "run", "--json"});
  CHECK(lines.code == 3);
  CHECK(Json::parse(lines.out.substr(0, lines.out.find('\n')))["good"] == true);
  // Files of other programs have no checksum.
  std::string header = "{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
  header.resize(64, ' ');
  write_file(models.folder / "other.safetensors", std::string("\x40\0\0\0\0\0\0\0", 8) + header + "a");
  const Outcome other = models.run({"verify", "other.safetensors"});
  CHECK(other.code == 0);
  CHECK(has(other.out, "no checksum"));
}

TEST_CASE("a folder of data text, a run on it, and its measures", "[gpt]") {
  TempDir folder;
  const auto run = [&](const Args& args) {
    const Outcome done = run_program(folder.path(), args);
    INFO(done.err);
    REQUIRE(done.code == 0);
    return done.out;
  };
  write_file(folder / "text.txt", some_text(200));
  run({"data", "text", "--input", "text.txt", "--tokenizer", "bytes", "--out", "tokens"});
  const Args small = {"train", "gpt", "--layers", "1", "--width", "16", "--context", "32", "--batch", "4", "--steps", "20"};
  run(with(small, {"--data", "tokens", "--out", "run"}));
  const Json own = Json::parse(run({"eval", "run", "--json"}));
  const Json given = Json::parse(run({"eval", "run/model.safetensors", "--data", "tokens/validation.tokens", "--json"}));
  CHECK(own["text"]["perplexity"] == given["text"]["perplexity"]);
  CHECK(own["text"]["perplexity"].get<double>() < 200);  // 257 without training
  CHECK(own["text"]["words"].get<std::size_t>() > 20);
  CHECK(has(run({"verify", "run", "tokens"}), "tokens/tokenizer: good"));
  CHECK(has(run({"inspect", "run"}), "GPT: 1 layers of width 16"));
  const Outcome over = run_program(folder.path(), {"export", "run", "--out", "run"});
  CHECK(over.code == 2);
  CHECK(has(over.err, "--out: run; expected another name: it is the folder of a run, whose files these would replace"));
  run({"export", "run", "--out", "hf"});
  run({"import", "gpt", "hf", "--out", "back.safetensors", "--tokenizer", "tokens/tokenizer"});
  const Json back = Json::parse(run({"eval", "back.safetensors", "--data", "tokens", "--json"}));
  CHECK(back["text"]["perplexity"] == own["text"]["perplexity"]);
  // Most of a text file is training text: nobody is told a loss of that by accident.
  run(with(small, {"--data", "text.txt", "--out", "other"}));
  CHECK(run_program(folder.path(), {"eval", "other"}).code == 2);
}

TEST_CASE("what the commands for GPTs cannot take is said", "[gpt]") {
  Models models;
  const auto refuses = [&](const Args& args, int code, const std::string& text) {
    const Outcome done = models.run(args);
    INFO(done.err);
    CHECK(done.code == code);
    CHECK(has(done.err, text));
  };
  const std::string model = "model.safetensors";
  refuses({"eval", model}, 2, "--data: missing");
  refuses({"eval", model, "--data", "text.txt", "--mirror", "on"}, 2, "--mirror: not for a model of kind gpt");
  refuses({"eval", model, "--data", "text.txt", "--advance", "38"}, 2, "--advance: 38; expected 1 to the context, 37");
  refuses({"eval", model, "--data", "nowhere.txt"}, 3, "nowhere.txt");
  refuses({"eval", model, "--data", "text.txt", "--split", "test"}, 2, "--split: test");
  refuses({"eval", model, "--data", "text.txt", "--split", "all"}, 2, "--split: all; expected test, validation or train");
  for (const auto& [option, value] : {std::pair("--advance", "5"), std::pair("--words", "30"), std::pair("--split", "test")}) {
    refuses({"eval", model, "--cloze", "text.txt", option, value}, 2,
            fmt::format("{}: {} has no effect without --data", option, value));
  }
  refuses({"eval", model, "--tokens", "1"}, 2, "--logits: missing");
  refuses({"eval", model, "--tokens", "1,x", "--logits", "a"}, 2, "--tokens: 'x'");
  refuses({"eval", model, "--tokens", "1,257", "--logits", "a"}, 2, "257; expected 0 to 256");
  refuses({"eval", model, "--tokens", "1,2", "--logits", model}, 2, "expected another name: it is the model itself");
  refuses({"export", model}, 2, "--out: missing");
  refuses({"export", model, "--out", "a", "--type", "f16"}, 2, "--type: f16 has no effect on the format 'transformers'");
  refuses({"export", model, "--out", "a", "--to", "gguf", "--type", "q4_0"}, 2, "--type: unknown value 'q4_0'");
  refuses({"export", model, "--out", "nowhere/a", "--to", "gguf"}, 5, "cannot write 'nowhere/a': No such file or directory");
  refuses({"export", model, "--out", ".", "--to", "gguf"}, 5, "cannot write '.': ");
  refuses({"export", model, "--out", "a.c"}, 2, "--out: a.c; a model of kind gpt has no such file");
  refuses({"export", model, "--out", "gpt.BIN"}, 2, "--out: gpt.BIN; a model of kind gpt has no such file; expected a folder");
  refuses({"export", model, "--out", "a.onnx", "--type", "q8_0"}, 2, "--type: q8_0; expected f32 or f16");
  refuses({"export", model, "--out", ".", "--to", "onnx"}, 5, "cannot write '.': ");
  refuses({"export", model, "--out", "a", "--to", "ggml"}, 2,
          "--to: 'ggml'; expected transformers or gguf or onnx, to which a model of kind gpt can be exported");
  refuses({"import", "gpt", "nowhere", "--out", "a"}, 3, "nowhere: there is no such folder");
  refuses({"import", "gpt", ".", "--out", "a"}, 3, "config.json");
  refuses({"import", "bert", "."}, 2, "unknown kind 'bert'");
  REQUIRE(models.run(with(quick_training("binary"), {})).code == 0);
  refuses({"export", "binary", "--to", "transformers", "--out", "hf"}, 2,
          "--to: 'transformers'; expected c or onnx or qonnx, to which a model of kind binary can be exported");
  refuses({"sample", "binary"}, 3,
          "a model of kind binary; expected one of kind gpt or dalle. For this one there is `bitloom predict`");
  refuses({"inspect", "binary", "--image-size", "32x32x3"}, 2, "--image-size: 32x32x3 has no effect");
  refuses({"eval", "binary", "--cloze", "text.txt"}, 2, "--cloze: not for a model of kind binary");
  CHECK(models.run({"verify", "binary"}).code == 0);
  CHECK(models.run({"eval", "binary"}).code == 0);
}
