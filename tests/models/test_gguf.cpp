// GPTs as GGUF files: keys, names and layouts of tensors, tokenizers, and what is refused. What other programs make of the
// files is tested by tests/peers/test_gguf.py.
#include "models/gpt/gguf.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "core/half.h"
#include "data/text/tokenizer_tables.h"
#include "models/gpt/gguf_tokenizer.h"
#include "tests/data/text/texts.h"
#include "tests/models/gpt_nets.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::models;
using namespace bitloom::test;

namespace {

// A net for the tokenizer "bytes" whose rows of 32 and 128 numbers are whole blocks.
GptConfig byte_gpt(std::size_t width = 32) {
  GptConfig config = small_gpt();
  config.heads = 2;
  config.width = width;
  config.vocabulary = 257;
  return config;
}

// Keys and tensors of a file.
class GgufReader {
 public:
  struct Tensor {
    std::vector<std::uint64_t> lengths;  // of a row first
    std::uint32_t type = 0;
    std::uint64_t place = 0;
  };

  explicit GgufReader(const std::filesystem::path& path) : bytes_(read_file(path)), at_(8) {
    REQUIRE(bytes_.substr(0, 4) == "GGUF");
    const auto count = take<std::uint64_t>();
    for (auto left = take<std::uint64_t>(); left > 0; --left) {
      const std::string key = take_string();
      values[key] = take_value(take<std::uint32_t>());
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      Tensor& tensor = tensors[take_string()];
      tensor.lengths.resize(take<std::uint32_t>());
      for (std::uint64_t& length : tensor.lengths) length = take<std::uint64_t>();
      tensor.type = take<std::uint32_t>();
      tensor.place = take<std::uint64_t>();
    }
    data_ = (at_ + 31) / 32 * 32;
  }

  float f32(const std::string& name, std::size_t index) const { return number<float>(name, 4 * index); }
  template <typename T>
  T number(const std::string& name, std::size_t offset) const {
    T value;
    std::memcpy(&value, bytes_.data() + data_ + tensors.at(name).place + offset, sizeof value);
    return value;
  }

  std::map<std::string, std::string> values;  // as text, those of arrays with commas behind them
  std::map<std::string, Tensor> tensors;

 private:
  template <typename T>
  T take() {
    T value;
    REQUIRE(at_ + sizeof value <= bytes_.size());
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string take_string() {
    const auto length = take<std::uint64_t>();
    at_ += length;
    return bytes_.substr(at_ - length, length);
  }
  std::string take_value(std::uint32_t type) {
    if (type == 0) return std::to_string(take<std::uint8_t>());
    if (type == 4) return std::to_string(take<std::uint32_t>());
    if (type == 5) return std::to_string(take<std::int32_t>());
    if (type == 6) return fmt::format("{}", take<float>());
    if (type == 7) return take<bool>() ? "true" : "false";
    if (type == 8) return take_string();
    REQUIRE(type == 9);
    const auto inner = take<std::uint32_t>();
    std::string all;
    for (auto left = take<std::uint64_t>(); left > 0; --left) all += take_value(inner) + ",";
    return all;
  }

  std::string bytes_;
  std::size_t at_, data_ = 0;
};

struct SavedGguf {
  explicit SavedGguf(GgufType type, const GptConfig& config = byte_gpt())
      : gpt(config),
        summary(save_gguf(gpt.engine, gpt.net, *data::load_tokenizer("bytes"), type, "a name", folder / "m.gguf")),
        file(folder / "m.gguf") {}

  std::vector<float> ours(const std::string& name) { return gpt.engine.to_host<float>(gpt.parameter(name).value); }

  TempDir folder;
  SharpGpt gpt;
  GgufSummary summary;
  GgufReader file;
};

using Lengths = std::vector<std::uint64_t>;

}  // namespace

TEST_CASE("a GGUF file says what a GPT is as llama.cpp's gpt2 has it", "[gguf]") {
  SavedGguf saved(GgufType::f32);
  auto& values = saved.file.values;
  CHECK(values["general.architecture"] == "gpt2");
  CHECK(values["general.name"] == "a name");
  CHECK(values["general.file_type"] == "0");
  CHECK(values["general.quantization_version"] == "2");
  CHECK(values["gpt2.context_length"] == "37");
  CHECK(values["gpt2.embedding_length"] == "32");
  CHECK(values["gpt2.feed_forward_length"] == "128");
  CHECK(values["gpt2.block_count"] == "2");
  CHECK(values["gpt2.attention.head_count"] == "2");
  CHECK(values["gpt2.attention.layer_norm_epsilon"] == "1e-05");
  CHECK(values["tokenizer.ggml.model"] == "gpt2");
  CHECK(values["tokenizer.ggml.pre"] == "gpt-2");
  CHECK(values["tokenizer.ggml.tokens"].starts_with("\xC4\x80,\xC4\x81,"));  // bytes 0 and 1 as U+0100 and U+0101
  CHECK(values["tokenizer.ggml.tokens"].ends_with(",\xC3\xBF,<|endoftext|>,"));
  CHECK(values["tokenizer.ggml.token_type"].ends_with("1,1,3,"));
  CHECK(values.contains("tokenizer.ggml.merges"));
  CHECK(values["tokenizer.ggml.merges"].empty());
  CHECK(values["tokenizer.ggml.bos_token_id"] == "256");
  CHECK(values["tokenizer.ggml.eos_token_id"] == "256");
  CHECK(values["tokenizer.ggml.add_bos_token"] == "false");
}

TEST_CASE("tensors of a GGUF file are those of the net, matrices turned", "[gguf]") {
  SavedGguf saved(GgufType::f32);
  auto& tensors = saved.file.tensors;
  CHECK(tensors.size() == 2 + 2 * 12 + 2);
  CHECK(saved.summary.tensors == tensors.size());
  CHECK(saved.summary.in_f16.empty());
  CHECK(tensors["token_embd.weight"].lengths == Lengths{32, 257});  // without the padding
  CHECK(tensors["position_embd.weight"].lengths == Lengths{32, 37});
  CHECK(tensors["blk.1.attn_qkv.weight"].lengths == Lengths{32, 96});
  CHECK(tensors["blk.0.ffn_up.weight"].lengths == Lengths{32, 128});
  CHECK(tensors["blk.0.ffn_down.weight"].lengths == Lengths{128, 32});
  CHECK(tensors["blk.0.ffn_down.bias"].lengths == Lengths{32});
  CHECK(tensors["output_norm.weight"].lengths == Lengths{32});
  for (const auto& [name, tensor] : tensors) {
    CHECK(tensor.type == 0);
    CHECK(tensor.place % 32 == 0);
  }
  const std::vector<float> table = saved.ours("embedding.tokens");
  const std::vector<float> up = saved.ours("blocks.1.feed_forward.first.weight");  // (32,128)
  for (std::size_t i = 0; i < 257 * 32; ++i) REQUIRE(saved.file.f32("token_embd.weight", i) == table[i]);
  for (std::size_t in = 0; in < 32; ++in) {
    for (std::size_t out = 0; out < 128; ++out) {
      REQUIRE(saved.file.f32("blk.1.ffn_up.weight", out * 32 + in) == up[in * 128 + out]);
    }
  }
}

TEST_CASE("matrices have the type that is asked for, vectors and positions stay f32", "[gguf]") {
  for (const GgufType type : {GgufType::f16, GgufType::q8_0}) {
    SavedGguf saved(type);
    CHECK(saved.file.values["general.file_type"] == (type == GgufType::f16 ? "1" : "7"));
    for (const auto& [name, tensor] : saved.file.tensors) {
      const bool is_matrix = tensor.lengths.size() == 2 && name != "position_embd.weight";
      CHECK(tensor.type == (is_matrix ? static_cast<std::uint32_t>(type) : 0));
    }
    CHECK(saved.summary.in_f16.empty());
    CHECK(saved.file.f32("position_embd.weight", 5) == saved.ours("embedding.positions")[5]);
  }
}

TEST_CASE("a matrix whose rows are not whole blocks stays f16", "[gguf]") {
  SavedGguf saved(GgufType::q8_0, byte_gpt(24));
  const std::vector<std::string> expected = {"token_embd.weight",   "blk.0.attn_qkv.weight", "blk.0.attn_output.weight",
                                             "blk.0.ffn_up.weight", "blk.1.attn_qkv.weight", "blk.1.attn_output.weight",
                                             "blk.1.ffn_up.weight"};
  CHECK(saved.summary.in_f16 == expected);
  CHECK(saved.file.tensors["blk.1.ffn_up.weight"].type == 1);
  CHECK(saved.file.tensors["blk.1.ffn_down.weight"].type == 8);              // rows of 96
  const float first = saved.ours("blocks.1.feed_forward.first.weight")[96];  // input 1, output 0
  CHECK(f16{saved.file.number<std::uint16_t>("blk.1.ffn_up.weight", 2)} == to_f16(first));
}

TEST_CASE("a net with values in bf16 goes into a GGUF file as the numbers they are", "[gguf]") {
  TempDir folder;
  nn::Engine engine({}, "cpu");
  Gpt net(byte_gpt());
  const std::vector<nn::Parameter*> parameters = nn::parameters_of(net);
  nn::initialise(engine, parameters, DType::bf16, 11, nn::MasterWeights::none);
  save_gguf(engine, net, *data::load_tokenizer("bytes"), GgufType::f32, "x", folder / "m.gguf");
  const GgufReader file(folder / "m.gguf");
  const auto found = std::ranges::find(parameters, "blocks.0.feed_forward.first.weight", &nn::Parameter::name);
  REQUIRE(found != parameters.end());
  REQUIRE((*found)->value.dtype() == DType::bf16);
  const std::vector<bf16> matrix = engine.to_host<bf16>((*found)->value);
  CHECK(matrix[40] != bf16{});
  // There by outputs, here by inputs.
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    REQUIRE(file.f32("blk.0.ffn_up.weight", i % 128 * 32 + i / 128) == to_float(matrix[i]));
  }
}

TEST_CASE("a sentencepiece tokenizer goes into a GGUF file as llama.cpp's llama", "[gguf]") {
  TempDir folder;
  GgufFile file;
  const auto tokenizer = small_sentencepiece(340);
  set_gguf_tokenizer(file, *tokenizer);
  file.save(folder / "t.gguf");
  auto values = GgufReader(folder / "t.gguf").values;
  CHECK(values["tokenizer.ggml.model"] == "llama");
  CHECK(values["tokenizer.ggml.tokens"].starts_with("<unk>,</s>,<0x00>,"));
  CHECK(values["tokenizer.ggml.token_type"].starts_with("2,3,6,"));
  CHECK(values["tokenizer.ggml.token_type"].ends_with(",1,1,"));
  CHECK(values["tokenizer.ggml.scores"].starts_with("0,0,0,"));
  CHECK(has(values["tokenizer.ggml.scores"], ",-1,-2,-3,"));
  CHECK(values["tokenizer.ggml.unknown_token_id"] == "0");
  CHECK(values["tokenizer.ggml.eos_token_id"] == "1");
  CHECK(values["tokenizer.ggml.add_space_prefix"] == "false");
  CHECK(values["tokenizer.ggml.remove_extra_whitespaces"] == "false");
}

TEST_CASE("sentencepiece models that llama.cpp would read otherwise are refused", "[gguf]") {
  TempDir folder;
  // Later fields of a protocol buffer replace earlier ones: fields of the training's and the normaliser's description.
  const auto message_with = [&](const std::string& fields) {
    write_file(folder / "t.model", data::sentencepiece_file(*small_sentencepiece(340)) + fields);
    const auto tokenizer = data::load_tokenizer((folder / "t.model").string());
    GgufFile file;
    return message_of(ErrorKind::usage, [&] { set_gguf_tokenizer(file, *tokenizer); });
  };
  CHECK(message_with("") == "no error");
  CHECK(has(message_with("\x12\x02\x18\x01"),
            "has byte_fallback true; in a GGUF file llama.cpp would read other tokens: expected "
            "false for the type unigram"));
  CHECK(has(message_with("\x12\x02\x18\x04"), "has the type char;"));
  CHECK(has(message_with("\x12\x03\xC0\x01\x01"), "has treat_whitespace_as_suffix true;"));
  CHECK(has(message_with("\x1A\x02\x20\x01"), "has remove_extra_whitespaces true;"));
  CHECK(has(message_with(std::string("\x1A\x02\x28\0", 4)), "has escape_whitespaces false;"));
}

TEST_CASE("what llama.cpp's gpt2 does not have is refused with field, value and what was expected", "[gguf]") {
  TempDir folder;
  GptConfig config = byte_gpt();
  config.activation = "gelu";
  SharpGpt gpt(config);
  const std::string message = message_of(ErrorKind::usage, [&] {
    save_gguf(gpt.engine, gpt.net, *data::load_tokenizer("bytes"), GgufType::f32, "x", folder / "m.gguf");
  });
  CHECK(has(message, "activation: gelu; expected gelu_tanh"));
  CHECK(!std::filesystem::exists(folder / "m.gguf"));
}

TEST_CASE("a GGUF file that cannot be written leaves nothing behind", "[gguf]") {
  TempDir folder;
  SharpGpt gpt(byte_gpt());
  const auto save = [&](const std::filesystem::path& path) {
    return message_of(ErrorKind::io,
                      [&] { save_gguf(gpt.engine, gpt.net, *data::load_tokenizer("bytes"), GgufType::f32, "x", path); });
  };
  CHECK(has(save(folder / "nowhere" / "m.gguf"), "m.gguf': No such file or directory"));
  CHECK(has(save(folder.path()), "Is a directory"));
  CHECK(has(save("/dev/full"), "No space left on device"));
  CHECK(temporaries_in(folder.path()) == 0);
  CHECK(std::filesystem::is_empty(folder.path()));
}
