// Text to image as a user makes it: codes of a discrete VAE, a transformer, a contrastive model, pictures; interrupted runs,
// several processes, what is refused.
#include <csignal>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "core/file.h"
#include "core/metrics.h"
#include "core/safetensors.h"
#include "data/image.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;
using Json = nlohmann::json;

namespace {

namespace fs = std::filesystem;

// A folder with pairs and a discrete VAE of 4 x 4 tokens of 32 codes.
struct CodedScenes : Workplace {
  CodedScenes() {
    run({"data", "synth-pairs", "--count", "60", "--side", "32", "--seed", "3", "--out", "scenes"});
    run({"train", "dvae", "--data", "scenes", "--net", "tiny", "--batch", "12", "--steps", "60", "--out", "codes"});
  }
};

Args dalle(const std::string& out, const Args& more = {}) {
  return with({"train",   "dalle", "--data",           "scenes", "--dvae",    "codes",
               "--net",   "tiny",  "--text-positions", "24",     "--batch",   "12",
               "--steps", "24",    "--evaluate-every", "8",      "--average", "0",
               "--out",   out},
              more);
}

Args clip(const std::string& out, const Args& more = {}) {
  return with({"train", "clip", "--data", "scenes", "--net", "tiny", "--side", "16", "--batch", "12", "--steps", "24",
               "--evaluate-every", "8", "--out", out},
              more);
}

double last(const fs::path& run, const char* what) { return read_metrics(run / "metrics.jsonl").back()[what]; }

}  // namespace

TEST_CASE("images are drawn for a caption, ranked, and completed", "[dalle]") {
  const CodedScenes place;
  const std::string out = place.run(dalle("run"));
  CHECK(has(out, "4 x 4 image tokens of 32 codes"));
  CHECK(has(out, "validation loss"));
  const std::vector<Json> lines = read_metrics(place / "run/metrics.jsonl");
  CHECK(std::ranges::count_if(lines, [](const Json& line) { return line.contains("image_loss"); }) == 3);
  CHECK(has(out, "of other parts of the images in every epoch"));  // of 32 pixels; codes are of 16
  CHECK(last(place / "run", "validation_loss") < 3.4);             // chance: log 32 = 3.47 of images
  CHECK(has(place.run(clip("near")), "retrieval at the end"));
  const Args draw = {"sample",   "run",    "--prompt", "a large red circle at the top", "--count", "9", "--seed", "5", "--out",
                     "grid.png", "--json", "--rerank"};
  const Json likely = Json::parse(place.run(with(draw, {"likelihood", "--best", "4", "--columns", "2"})));
  REQUIRE(likely["images"].size() == 4);
  for (std::size_t i = 1; i < 4; ++i) CHECK(likely["images"][i - 1]["score"] >= likely["images"][i]["score"]);
  // Two rows of two, with gaps of four.
  const data::Image grid = data::read_image(place / "grid.png");
  CHECK(grid.shape.width == 2 * 16 + 3 * 4);
  CHECK(grid.shape.height == 2 * 16 + 3 * 4);
  const Json near = Json::parse(place.run(with(draw, {"clip", "--clip", "near"})));
  CHECK(near["images"].size() == 9);
  // The same images, in another order, whatever the batch.
  const Json plain = Json::parse(place.run(with(draw, {"none", "--at-once", "2"})));
  for (std::size_t i = 0; i < 9; ++i) {
    CHECK(plain["images"][i]["image"] == i);
    const auto at = near["images"][i]["image"].get<std::size_t>();
    CHECK(near["images"][i]["codes"] == plain["images"][at]["codes"]);
  }
  const Json whole = Json::parse(place.run(with(draw, {"none", "--image-prompt", "grid.png", "--rows", "3"})));
  const auto given = [&](std::size_t i) {
    const auto codes = whole["images"][i]["codes"].get<std::vector<int>>();
    return std::vector<int>(codes.begin(), codes.begin() + 12);
  };
  CHECK(given(0) == given(8));
  // Prompts of a file: a set of pairs, the best two of three for each.
  write_atomically(place / "prompts.txt",
                   std::string_view("a large red circle at the top\n\n{\"caption\": \"a small blue ring\"}\r\n"));
  place.run({"sample", "run", "--prompts", "prompts.txt", "--count", "3", "--best", "2", "--rerank", "likelihood", "--seed",
             "5", "--folder", "drawn", "--out", "both.png", "--columns", "4"});
  CHECK(data::read_image(place / "both.png").shape.width == 4 * 16 + 5 * 4);
  const Json drawn = Json::parse(place.run({"data", "pairs", "drawn", "--json"}));
  CHECK(drawn["pairs"] == 4);
  CHECK(drawn["captions"] == 2);
  const Json alone =
      Json::parse(place.run({"sample", "run", "--prompts", "prompts.txt", "--seed", "5", "--out", "a.png", "--json"}));
  REQUIRE(alone["images"].size() == 2);
  CHECK(alone["images"][0]["codes"] == plain["images"][0]["codes"]);
  CHECK(alone["images"][1]["prompt"] == "a small blue ring");
  // With the mark by which some editors begin a file.
  write_file(place / "marked.txt", "\xef\xbb\xbf" + read_file(place / "prompts.txt"));
  const Json marked =
      Json::parse(place.run({"sample", "run", "--prompts", "marked.txt", "--seed", "5", "--out", "a.png", "--json"}));
  CHECK(marked["images"] == alone["images"]);
  for (const char* model : {"run", "near"}) {
    CHECK(has(place.run({"inspect", model}), model == std::string("run") ? "dalle" : "clip"));
    CHECK(place.run({"verify", model}) != "");
  }
  const Json measured = Json::parse(place.run({"eval", "run", "--json"}));
  CHECK(measured["image_loss"].get<double>() > 0);
  CHECK(measured["image_loss_of_other_captions"].get<double>() > 0);
  const Json retrieved = Json::parse(place.run({"eval", "near", "--json"}));
  CHECK(retrieved["texts_at_5"] >= retrieved["texts_at_1"]);
  CHECK(retrieved["texts_by_chance"].get<double>() >= 1 / retrieved["pairs"].get<double>());
  std::set<std::string> splits;
  for (const char* seed : {"1", "2", "3", "4"}) {
    splits.insert(place.run({"eval", "near", "--json", "--validation", "0.3", "--split-seed", seed}));
  }
  CHECK(splits.size() > 1);
}

// They said that there were no pairs.
TEST_CASE("commands that are proposed after a training without held-out pairs work", "[dalle][clip][dvae]") {
  const CodedScenes place;
  const Args blind = {"--validation", "0", "--evaluate-every", "0", "--steps", "2"};
  const Args train_dvae = {"train", "dvae", "--data", "scenes", "--net", "tiny", "--batch", "12", "--out", "blind-dvae"};
  for (const Args& args : {dalle("blind-dalle", blind), clip("blind-clip", blind), with(train_dvae, blind)}) {
    const std::string said = place.run(args);
    const std::string& name = *(std::ranges::find(args, "--out") + 1);
    CHECK(has(said, "bitloom eval " + name + " --split all\n"));
    place.run({"eval", name, "--split", "all"});
  }
  place.run({"reconstruct", "blind-dvae", "--split", "all", "--out", "grid.png"});
}

TEST_CASE("what a run names and is not there any more is told with the run and the option", "[dalle]") {
  const CodedScenes place;
  place.run(dalle("run", {"--steps", "2"}));
  const Args draw = {"sample", "run", "--prompt", "a small blue ring", "--out", "grid.png"};
  fs::rename(place / "codes", place / "moved");
  const std::string of_codes = (place / "codes").string() +
                               ": there is no such file or folder, which the run run names; expected --dvae with its place now";
  place.refuses(draw, 3, "--dvae: " + of_codes);
  place.refuses({"eval", "run"}, 3, "--dvae: " + of_codes);
  place.run(with(draw, {"--dvae", "moved"}));
  fs::rename(place / "scenes", place / "away");
  place.refuses({"eval", "run", "--dvae", "moved"}, 3,
                "--data: " + (place / "scenes").string() + ": there is no such file or folder, which the run run names");
  place.run({"eval", "run", "--dvae", "moved", "--data", "away"});
}

TEST_CASE("stopped trainings of text to image go on to the same bits, and several processes come to the same", "[dalle][mpi]") {
  const CodedScenes place;
  for (const bool is_clip : {false, true}) {
    const auto args = [&](const std::string& out, const Args& more = {}) {
      return is_clip ? clip(out, more) : dalle(out, more);
    };
    const std::string whole = is_clip ? "clip-whole" : "whole";
    const std::string part = is_clip ? "clip-part" : "part";
    place.run(args(whole, {"--micro-batch", "6"}));
    const Hold hold(place.folder.path(), 9);
    {
      Background background(place.folder.path(), with(args(part, {"--micro-batch", "6"}), Hold::option()), 0, mpi_settings());
      REQUIRE(background.wait_for("step 8/24"));
      background.signal(SIGTERM);
      CHECK(background.wait().code == 4);
    }
    hold.release();
    // The run's micro-batch is kept, however much memory there is.
    place.run({"train", is_clip ? "clip" : "dalle", "--resume", "--out", part, "--micro-batch", "auto"});
    CHECK(read_file(place / (part + "/model.safetensors")) == read_file(place / (whole + "/model.safetensors")));
    // More steps than before, and with them a longer warm-up, which is over.
    place.run({"train", is_clip ? "clip" : "dalle", "--resume", "--steps", "48", "--out", part});
    CHECK(last(place / part, "steps") == 48);
    if (is_clip) {
      const Outcome four = run_ranks(place.folder.path(), 4,
                                     {"train", "clip", "--resume", "--steps", "72", "--out", part, "--micro-batch", "auto"});
      CHECK(four.code == 2);
      CHECK(has(four.err, "tells 6 pairs apart at once; a process's share of the batch would be 3"));
    }
    const std::string two = whole + "-two";
    place.run(args(two, {"--micro-batch", "6"}), 2);
    CHECK(last(place / two, "validation_loss") == Approx(last(place / whole, "validation_loss")).epsilon(1e-3));
  }
}

// The paper's own training divides parameters and exchanges factors of gradients (Ramesh et al. 2021, section 2.5).
TEST_CASE("processes divide a text-to-image transformer, and send factors of its gradients", "[dalle][mpi][grid]") {
  const CodedScenes place;
  const auto args = [](const std::string& out, const Args& more) { return with(dalle(out, {"--micro-batch", "3"}), more); };
  place.run(args("whole", {}));
  struct Layout {
    int ranks;
    const char* name;
    Args options;
    const char* says;
  };
  for (const Layout& layout : {Layout{2, "stages", {"--pipeline", "2"}, "1 data-parallel x 2 stages (1f1b)"},
                               {2, "tensor", {"--tensor", "2"}, "1 data-parallel x 2 tensor-parallel"},
                               {4,
                                "shards",
                                {"--pipeline", "2", "--shard", "parameters", "--recompute", "stage"},
                                "2 data-parallel x 2 stages (1f1b), parameters sharded"}}) {
    INFO(layout.name);
    CHECK(has(place.run(args(layout.name, layout.options), layout.ranks), layout.says));
    CHECK(last(place / layout.name, "validation_loss") == Approx(last(place / "whole", "validation_loss")).epsilon(1e-3));
    const auto cost = [&](const char* run) {
      return read_metrics(place / run / "metrics.jsonl").front()["operations_per_token"];
    };
    CHECK(cost(layout.name) == cost("whole"));
  }
  // More processes than batches to measure, which gather averages of shards.
  const Args averaged = {"--steps", "60", "--evaluate-every", "60", "--average", "0.5"};
  place.run(args("averaged", averaged));
  place.run(args("averaged-shards", with(averaged, {"--shard", "parameters"})), 4);
  CHECK(last(place / "averaged", "validation_loss") < last(place / "whole", "validation_loss"));
  CHECK(last(place / "averaged-shards", "validation_loss") ==
        Approx(last(place / "averaged", "validation_loss")).epsilon(1e-3));
  // Neighbours' sums have the same order.
  CHECK(read_file(place / "stages/model.safetensors") == read_file(place / "whole/model.safetensors"));
  const auto hashes_of = [&](const char* run) {
    std::vector<std::string> hashes;
    for (const Json& line : read_metrics(place / run / "metrics.jsonl")) {
      if (line.contains("parameters_hash")) hashes.push_back(line["parameters_hash"]);
    }
    return hashes;
  };
  CHECK(hashes_of("whole").size() == 3 + 1);
  CHECK(hashes_of("stages") == hashes_of("whole"));
  CHECK(hashes_of("whole").at(0) != hashes_of("whole").at(1));
  // It goes on in another grid, and what came of it draws.
  place.run(
      {"train", "dalle", "--resume", "--out", "shards", "--steps", "30", "--tensor", "2", "--pipeline", "1", "--shard", "none"},
      2);
  CHECK(last(place / "shards", "steps") == 30);
  place.run({"sample", "shards", "--prompt", "a large red circle", "--out", "drawn.png"});
  CHECK(has(place.run(args("factors", {"--compress-rank", "2"}), 2), "gradients go by factors of rank 2"));
  const double loss = last(place / "factors", "validation_loss");
  CHECK(loss == Approx(last(place / "whole", "validation_loss")).epsilon(0.05));
  CHECK(loss != last(place / "whole", "validation_loss"));
  place.refuses({"train", "dalle", "--resume", "--steps", "30", "--out", "factors", "--compress-rank", "4"}, 2,
                "--compress-rank: 2 stored, 4 given");
  const auto refuse = [&](const Args& more, const std::string& message) {
    const Outcome outcome = run_ranks(place.folder.path(), 2, args("a", more));
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 2);
    CHECK(has(outcome.err, message));
  };
  refuse({"--pipeline", "2", "--sample-every", "8"}, "--sample-every: 8 has no effect where processes have parts of the net");
  refuse({"--pipeline", "3"}, "--pipeline: 3 does not divide 2 ranks");
  refuse({"--tensor", "2", "--heads", "1"}, "--heads: 1; expected a multiple of the 2 processes that divide each layer");
  refuse({"--pipeline", "2", "--compress-rank", "4"}, "--compress-rank: 4");
  refuse({"--compress-rank", "4", "--compress-start", "warm", "--shard", "optimizer"},
         "--compress-start: warm with --shard optimizer; expected fixed, or --shard none");
}

TEST_CASE("a text-to-image transformer trains as the paper's does in 16 bits", "[dalle]") {
  const CodedScenes place;
  place.run(dalle("run", {"--backend", "ref", "--dtype", "f16", "--loss-scale", "blocks", "--optimizer-state", "16-bit",
                          "--variance-limit", "5", "--steps", "2", "--evaluate-every", "1"}));
  const std::vector<Json> lines = read_metrics(place / "run/metrics.jsonl");
  const auto step = std::ranges::find_if(lines, [](const Json& line) { return line.contains("block_scales"); });
  REQUIRE(step != lines.end());
  CHECK((*step)["block_scales"].size() % 2 == 0);  // two for each layer
  CHECK(last(place / "run", "validation_loss") < 4);
  place.refuses(clip("a", {"--loss-scale", "blocks"}), 2, "loss-scale");
}

TEST_CASE("what text to image refuses", "[dalle]") {
  const CodedScenes place;
  place.refuses({"train", "dalle", "--data", "scenes", "--out", "a"}, 2, "--dvae: missing");
  place.refuses({"train", "dalle", "--dvae", "codes", "--out", "a"}, 2, "--data: missing");
  place.refuses(dalle("a", {"--data", "none"}), 3, "none");
  place.refuses(dalle("a", {"--dvae", "scenes"}), 3, "scenes");
  place.refuses(dalle("a", {"--heads", "5"}), 2, "--heads: 5; expected a divisor of the width, 32");
  place.refuses(dalle("a", {"--halve-at", "10,5"}), 2, "--halve-at: '5' in '10,5'; expected steps in ascending order");
  place.refuses(dalle("a", {"--halve-at", "10,24"}), 2,
                "--halve-at: '24' in '10,24'; expected steps in ascending order, from 1 after the warm-up to 23");
  place.refuses(dalle("a", {"--batch", "500"}), 2, "--batch: 500; expected 1 to the 54 pairs of the training set");
  place.refuses(clip("a", {"--micro-batch", "1"}), 2, "--micro-batch: 1; expected at least 2 pairs");
  CHECK_FALSE(fs::exists(place / "a"));
  place.run(dalle("run"));
  // The paper's limit is the default.
  place.refuses({"train", "dalle", "--resume", "--steps", "48", "--out", "run", "--variance-limit", "4"}, 2,
                "--variance-limit: 5.0 stored, 4.0 given");
  place.refuses({"train", "gpt", "--resume", "--out", "run"}, 2,
                "the run in run is one of `bitloom train dalle`; `bitloom train dalle --resume --out run` goes on with it");
  place.refuses({"train", "dalle", "--resume", "--out", "run", "--init", "codes"}, 2,
                "--init: codes with --resume; the run in run has begun already, and not from it");
  place.refuses({"simulate", "--net", "tiny", "--data", "synth", "--lower", "run"}, 2, "--lower: ");
  place.run(dalle("deep", {"--feed-forward-init", "layers", "--logit-clip", "1"}));
  place.refuses({"train", "dalle", "--resume", "--steps", "48", "--out", "deep", "--logit-clip", "2"}, 2,
                "--logit-clip: 1.0 stored, 2.0 given");
  // The loss of such nets was 0.0000.
  place.refuses(dalle("far", {"--learning-rate", "1000", "--clip", "0", "--evaluate-every", "1"}), 3,
                "its training has diverged");
  const Args draw = {"sample", "run", "--prompt", "a small blue ring", "--out", "grid.png"};
  place.refuses({"sample", "run", "--out", "grid.png"}, 2, "--prompt: missing or empty");
  place.refuses({"sample", "run", "--prompt", "a"}, 2, "--out: missing");
  place.refuses(with(draw, {"--prompts", "scenes/held-out.jsonl"}), 2, "but there is --prompt too");
  place.refuses({"sample", "run", "--prompts", "scenes/held-out.jsonl", "--folder", "scenes"}, 2,
                "--folder: scenes is there already and not an empty folder; expected a new one");
  place.refuses({"sample", "run", "--prompt", "caf\xe9", "--out", "a.png"}, 2, "--prompt: 'caf\\xe9' is not UTF-8");
  write_atomically(place / "broken.jsonl", std::string_view("a red ring\n{\"text\": \"a\"}\n"));
  place.refuses({"sample", "run", "--prompts", "broken.jsonl", "--out", "a.png"}, 3, "broken.jsonl, line 2: no JSON object");
  write_file(place / "latin1-prompts.txt", "a red ring\ncaf\xe9\n");
  place.refuses({"sample", "run", "--prompts", "latin1-prompts.txt", "--out", "a.png"}, 3,
                "--prompts: latin1-prompts.txt, line 2: not UTF-8");
  write_atomically(place / "empty.txt", std::string_view("\n"));
  place.refuses({"sample", "run", "--prompts", "empty.txt", "--out", "a.png"}, 3, "empty.txt: no prompts");
  place.refuses(with(draw, {"--count", "2", "--best", "3"}), 2, "--best: 3; expected at most the 2 images of --count");
  place.refuses(with(draw, {"--out", "grid.JPG"}), 2, "--out: grid.JPG; expected a name in .png");
  place.refuses({"reconstruct", "codes", "--out", "grid.webp"}, 2, "--out: grid.webp; expected a name in .png");
  place.refuses({"data", "pairs", "scenes", "--sheet", "grid.jpeg"}, 2, "--sheet: grid.jpeg; expected a name in .png");
  place.refuses(dalle("a", {"--validation", "0", "--keep", "best"}), 2, "--keep: best has no effect without validation data");
  for (const Args& args : {dalle("a", {"--validation", "0"}), clip("a", {"--validation", "0"})}) {
    place.refuses(args, 2, "--evaluate-every: 8 has no effect without validation data");
  }
  place.refuses(with(draw, {"--tokens", "3"}), 2, "--tokens: not for a model of kind dalle");
  place.refuses(with(draw, {"--rerank", "clip"}), 2, "--clip: missing");
  place.refuses(with(draw, {"--rerank", "clip", "--clip", "run"}), 3, "dalle");
  place.refuses(with(draw, {"--image-prompt", "scenes", "--rows", "2"}), 3, "scenes");
  place.refuses(with(draw, {"--image-prompt", "scenes", "--rows", "4"}), 2, "--rows: 4; expected 1 to 3 rows of tokens");
  write_atomically(place / "latin1.txt", std::string_view("caf\xe9"));
  place.refuses({"sample", "run", "--prompt-file", "latin1.txt", "--out", "a.png"}, 3,
                "--prompt-file: latin1.txt is not UTF-8");
  std::string long_caption = "a small blue ring";
  for (int i = 0; i < 200; ++i) long_caption += " and more";
  const Outcome cut = run_program(place.folder.path(), {"sample", "run", "--prompt", long_caption, "--out", "cut.png"});
  CHECK(cut.code == 0);
  CHECK(has(cut.err, "1 of 1 caption has more than "));
  // Characters that no caption had are bytes.
  CHECK(run_program(place.folder.path(), {"sample", "run", "--prompt", "\xF0\x9F\xA6\x84?", "--out", "odd.png"}).code == 0);
  // JSON has no such escape as \x7f, by which DEL is shown in lines.
  const Json odd = Json::parse(place.run({"sample", "run", "--prompt", "a ring\x7f?", "--out", "odd.png", "--json"}));
  CHECK(odd["prompt"] == "a ring\x7f?");
  // Another codebook.
  place.run(
      {"train", "dvae", "--data", "scenes", "--net", "tiny", "--batch", "12", "--steps", "2", "--seed", "2", "--out", "other"});
  place.refuses(with(draw, {"--dvae", "other"}), 3, "another codebook");
  fs::resize_file(place / "codes/model.safetensors", 1000);
  place.refuses(draw, 3, "model.safetensors");
}

TEST_CASE("models of images with captions go to the layouts of other programs and back", "[dalle][dvae][clip]") {
  const CodedScenes place;
  place.run(dalle("run"));
  place.run(clip("near"));
  const auto same = [&](const std::string& a, const std::string& b) { return same_tensors(place / a, place / b); };
  CHECK(has(place.run({"export", "codes", "--out", "of-codes"}), "of-codes: encoder.safetensors, decoder.safetensors"));
  CHECK(has(place.run({"import", "dvae", "of-codes", "--out", "dvae.safetensors"}),
            "16 x 16 pixels become 4 x 4 tokens of 32 codes"));
  CHECK(same("codes/model.safetensors", "dvae.safetensors"));
  place.run({"import", "dvae", "of-codes/encoder.safetensors", "of-codes/decoder.safetensors", "--side", "32", "--out",
             "larger.safetensors"});
  CHECK(has(place.run({"inspect", "larger.safetensors"}), "32 x 32"));
  for (const auto& [kind, name] : {std::pair("dalle", "run"), std::pair("clip", "near")}) {
    const std::string out = std::string("of-") + name, model = std::string(kind) + ".safetensors";
    CHECK(has(place.run({"export", name, "--out", out}), "model.safetensors, with the names of PyTorch's layers"));
    place.run({"import", kind, out + "/model.safetensors", "--out", model});
    CHECK(same(name + std::string("/model.safetensors"), model));
    place.run({"import", kind, out + "/model.safetensors", "--like", name, "--out", "again.safetensors"});
    CHECK(read_file(place / "again.safetensors") == read_file(place / model));
  }
  // The same model is measured the same, with the same codebook, and gives logits.
  const Args measured = {"--data", "scenes", "--split", "train", "--json"};
  const Args imported =
      with({"eval", "dalle.safetensors", "--dvae", "dvae.safetensors", "--logits", "logits", "--pairs", "3"}, measured);
  CHECK(place.run(imported) == place.run(with({"eval", "run"}, measured)));
  const TensorFile logits = TensorFile::load(place / "logits", Checksum::required);
  using Shape = std::vector<std::size_t>;
  CHECK(logits.get("text").shape == Shape{3, 24});
  CHECK(logits.get("codes").shape == Shape{3, 4, 4});
  CHECK(logits.get("image_logits").shape == Shape{3, 16, 32});
  CHECK(logits.get("text_logits").shape[1] == 23);
  place.run(with({"eval", "dvae.safetensors", "--logits", "logits", "--pairs", "2"}, measured));
  const TensorFile maps = TensorFile::load(place / "logits", Checksum::required);
  CHECK(maps.get("logits").shape == Shape{2, 4, 4, 32});
  CHECK(maps.get("maps").shape == Shape{2, 16, 16, 6});
  place.run(with({"eval", "clip.safetensors", "--logits", "logits"}, measured));
  CHECK(TensorFile::load(place / "logits", Checksum::required).get("similarities").shape == Shape{8, 8});

  place.refuses({"import", "dvae", "of-codes"}, 2, "--out: missing");
  place.refuses({"import", "dvae", "of-codes", "--side", "18", "--out", "x"}, 3, "\"side\": 18; expected a multiple of 4");
  place.refuses({"import", "dvae", "of-codes/encoder.safetensors", "--out", "x"}, 3,
                "expected names that begin with 'encoder.'");
  place.refuses({"import", "dvae", "of-codes/decoder.safetensors", "of-codes/encoder.safetensors", "--out", "x"}, 3,
                "the tensor 'encoder.blocks.");
  place.refuses({"import", "dalle", "of-near/model.safetensors", "--out", "x"}, 3, "not a model of kind 'dalle'");
  place.refuses({"import", "clip", "of-near/model.safetensors", "--like", "run", "--out", "x"}, 3,
                "not a model of kind 'clip'");
  place.refuses({"eval", "near", "--dvae", "codes"}, 2, "--dvae: not for a model of kind clip");
  place.refuses({"eval", "near", "--pairs", "2"}, 2, "--pairs: 2 has no effect; it needs --logits");
  place.refuses({"eval", "dalle.safetensors", "--data", "scenes"}, 2, "--dvae: missing");
  CHECK_FALSE(fs::exists(place / "x"));
}
