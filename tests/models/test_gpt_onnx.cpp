// GPTs as ONNX files: inputs, outputs, operators, large constants in one file or two, and what is refused. What other programs
// compute from them is tested by tests/peers/test_gpt_onnx.py.
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "core/half.h"
#include "models/gpt/onnx.h"
#include "nn/activation.h"
#include "tests/models/gpt_nets.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::models;
using namespace bitloom::test;

namespace {

// Fields of a message of Protocol Buffers, by number: bytes of those with a length, numbers as text.
using Fields = std::multimap<unsigned, std::string>;

Fields fields_of(const std::string& bytes) {
  Fields fields;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      REQUIRE(at < bytes.size());
      const auto byte = static_cast<unsigned char>(bytes[at++]);
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < bytes.size()) {
    const std::uint64_t tag = varint();
    const auto number = static_cast<unsigned>(tag >> 3U);
    if ((tag & 7U) == 0) {
      fields.emplace(number, std::to_string(varint()));
    } else {
      const std::uint64_t length = (tag & 7U) == 2 ? varint() : 4;  // an f32
      REQUIRE(length <= bytes.size() - at);
      fields.emplace(number, bytes.substr(at, length));
      at += length;
    }
  }
  return fields;
}

std::vector<std::string> all(const Fields& fields, unsigned number) {
  std::vector<std::string> values;
  for (auto [at, end] = fields.equal_range(number); at != end; ++at) values.push_back(at->second);
  return values;
}
std::string one(const Fields& fields, unsigned number) {
  REQUIRE(fields.count(number) == 1);
  return fields.find(number)->second;
}

struct OnnxReader {
  explicit OnnxReader(const std::filesystem::path& path) : model(fields_of(read_file(path))), graph(fields_of(one(model, 7))) {
    for (const std::string& each : all(graph, 5)) {
      const Fields tensor = fields_of(each);
      tensors[one(tensor, 8)] = tensor;
    }
    for (const std::string& each : all(graph, 1)) ++operators[one(fields_of(each), 4)];
    for (const std::string& each : all(model, 14)) metadata[one(fields_of(each), 1)] = one(fields_of(each), 2);
  }

  // "name: a,b,c"
  std::vector<std::string> values(unsigned number) const {
    std::vector<std::string> shown;
    for (const std::string& each : all(graph, number)) {
      const Fields value = fields_of(each);
      const Fields tensor = fields_of(one(fields_of(one(value, 2)), 1));
      std::string text = one(value, 1) + ":";
      for (const std::string& dim : all(fields_of(one(tensor, 2)), 1)) text += " " + fields_of(dim).begin()->second + ",";
      shown.push_back(text);
    }
    return shown;
  }

  Fields model, graph;
  std::map<std::string, Fields> tensors;
  std::map<std::string, int> operators;
  std::map<std::string, std::string> metadata;
};

// For the tokenizer "bytes".
GptConfig onnx_gpt() {
  GptConfig config = small_gpt();
  config.vocabulary = 257;
  return config;
}

struct SavedOnnx {
  explicit SavedOnnx(OnnxType type = OnnxType::f32, std::uint64_t most = OnnxGraph::largest_file)
      : gpt(onnx_gpt()),
        summary(save_gpt_onnx(gpt.engine, gpt.net, *data::load_tokenizer("bytes"), type, folder / "m.onnx", most)),
        file(folder / "m.onnx") {}

  // Elements of a parameter, as many as the file is to have.
  std::vector<float> ours(const std::string& name) {
    std::vector<float> values = gpt.engine.to_host<float>(gpt.parameter(name).value);
    if (name == "embedding.tokens") values.resize(std::size_t{257} * 24);
    return values;
  }

  TempDir folder;
  SharpGpt gpt;
  GptOnnxSummary summary;
  OnnxReader file;
};

std::string bytes_of(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("a GPT's graph has the cache among its inputs and outputs", "[onnx]") {
  SavedOnnx saved;
  CHECK(saved.file.values(11) == Texts{"input_ids: batch_size, sequence_length,",
                                       "past_key_values.0.key: batch_size, 3, past_sequence_length, 8,",
                                       "past_key_values.0.value: batch_size, 3, past_sequence_length, 8,",
                                       "past_key_values.1.key: batch_size, 3, past_sequence_length, 8,",
                                       "past_key_values.1.value: batch_size, 3, past_sequence_length, 8,"});
  CHECK(saved.file.values(12) == Texts{"logits: batch_size, sequence_length, 257,",
                                       "present.0.key: batch_size, 3, past_sequence_length + sequence_length, 8,",
                                       "present.0.value: batch_size, 3, past_sequence_length + sequence_length, 8,",
                                       "present.1.key: batch_size, 3, past_sequence_length + sequence_length, 8,",
                                       "present.1.value: batch_size, 3, past_sequence_length + sequence_length, 8,"});
  CHECK(all(saved.file.model, 8).size() == 1);
  CHECK(one(fields_of(one(saved.file.model, 8)), 2) == "17");
  CHECK(saved.file.operators["LayerNormalization"] == 5);
  CHECK(saved.file.operators["Softmax"] == 2);
  CHECK(saved.file.operators["Tanh"] == 2);
  CHECK(saved.file.operators["Gemm"] == 1);
  CHECK(saved.file.operators["MatMul"] == 2 * (4 + 2));
  CHECK(saved.file.operators["Cast"] == 0);
  auto& metadata = saved.file.metadata;
  CHECK(metadata["context"] == "37");
  CHECK(metadata["end_of_text"] == "256");
  CHECK(metadata["tokenizer"] == "bytes");
  CHECK(metadata["bitloom.kind"] == "gpt");
  CHECK(has(metadata["bitloom.config"], "\"activation\":\"gelu_tanh\""));
  CHECK(has(metadata["tokenizer.json"], "\"type\":\"BPE\""));
  CHECK(saved.summary.no_tokenizer.empty());
  CHECK(saved.summary.saved.data.empty());
  CHECK(saved.summary.saved.bytes == std::filesystem::file_size(saved.folder / "m.onnx"));
}

TEST_CASE("parameters of a GPT are in its graph once, under their names, without padding", "[onnx]") {
  SavedOnnx saved;
  CHECK(saved.gpt.parameters.size() == 2 + 2 * 12 + 2);
  for (const nn::Parameter* parameter : saved.gpt.parameters) {
    INFO(parameter->name);
    REQUIRE(saved.file.tensors.contains(parameter->name));
    const Fields& tensor = saved.file.tensors[parameter->name];
    CHECK(one(tensor, 2) == "1");  // FLOAT
    CHECK(one(tensor, 9) == bytes_of(saved.ours(parameter->name)));
  }
  CHECK(all(saved.file.tensors["embedding.tokens"], 1) == Texts{"257", "24"});
  CHECK(all(saved.file.tensors["blocks.1.feed_forward.first.weight"], 1) == Texts{"24", "96"});
}

TEST_CASE("matrices of a GPT's graph may be f16, from which it makes f32", "[onnx]") {
  SavedOnnx saved(OnnxType::f16);
  const auto& tensor = saved.file.tensors["blocks.0.attention.qkv.weight"];
  CHECK(one(tensor, 2) == "10");  // FLOAT16
  const std::vector<float> ours = saved.ours("blocks.0.attention.qkv.weight");
  const std::string found = one(tensor, 9);
  REQUIRE(found.size() == 2 * ours.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    f16 value;
    std::memcpy(&value.bits, found.data() + 2 * i, 2);
    REQUIRE(value == to_f16(ours[i]));
  }
  CHECK(one(saved.file.tensors["embedding.positions"], 2) == "1");
  CHECK(one(saved.file.tensors["blocks.1.attention.qkv.bias"], 2) == "1");
  CHECK(saved.file.operators["Cast"] == 1 + 2 * 4);
}

TEST_CASE("a graph that is too large for one file has its large constants in a second one", "[onnx]") {
  SavedOnnx whole;
  SavedOnnx saved(OnnxType::f32, 100000);
  CHECK(std::filesystem::file_size(whole.folder / "m.onnx") > 100000);
  CHECK(saved.summary.saved.data == saved.folder / "m.onnx.data");
  const std::string data = read_file(saved.folder / "m.onnx.data");
  CHECK(saved.summary.saved.bytes == data.size() + std::filesystem::file_size(saved.folder / "m.onnx"));
  CHECK(std::filesystem::file_size(saved.folder / "m.onnx") < 100000);
  for (const nn::Parameter* parameter : saved.gpt.parameters) {
    INFO(parameter->name);
    const Fields& tensor = saved.file.tensors[parameter->name];
    CHECK(tensor.count(9) == 0);
    CHECK(one(tensor, 14) == "1");  // EXTERNAL
    std::map<std::string, std::string> place;
    for (const std::string& each : all(tensor, 13)) place[one(fields_of(each), 1)] = one(fields_of(each), 2);
    CHECK(place["location"] == "m.onnx.data");
    const std::size_t offset = std::stoul(place["offset"]), length = std::stoul(place["length"]);
    CHECK(offset % 4096 == 0);
    REQUIRE(offset + length <= data.size());
    CHECK(data.substr(offset, length) == bytes_of(saved.ours(parameter->name)));
  }
  CHECK(saved.file.operators == whole.file.operators);
  CHECK(saved.file.metadata == whole.file.metadata);
}

TEST_CASE("an export that takes the place of another has data of its own until it is whole", "[onnx]") {
  SavedOnnx saved(OnnxType::f32, 100000);
  const auto again = [&](std::uint64_t most) {
    return save_gpt_onnx(saved.gpt.engine, saved.gpt.net, *data::load_tokenizer("bytes"), OnnxType::f32,
                         saved.folder / "m.onnx", most)
        .saved.data.filename();
  };
  write_file(saved.folder / "other.data", "of one's own");
  const std::string data = read_file(saved.folder / "m.onnx.data");
  CHECK(again(100000) == "m.onnx.1.data");
  CHECK(read_file(saved.folder / "m.onnx.1.data") == data);
  CHECK_FALSE(std::filesystem::exists(saved.folder / "m.onnx.data"));
  CHECK(again(100000) == "m.onnx.data");
  CHECK_FALSE(std::filesystem::exists(saved.folder / "m.onnx.1.data"));

  // A folder cannot be replaced: the export fails when its data are there.
  std::filesystem::rename(saved.folder / "m.onnx", saved.folder / "kept");
  std::filesystem::create_directory(saved.folder / "m.onnx");
  CHECK(has(message_of(ErrorKind::io, [&] { again(100000); }), "Is a directory"));
  CHECK(read_file(saved.folder / "m.onnx.data") == data);
  CHECK_FALSE(std::filesystem::exists(saved.folder / "m.onnx.1.data"));
  std::filesystem::remove(saved.folder / "m.onnx");
  std::filesystem::rename(saved.folder / "kept", saved.folder / "m.onnx");
  CHECK(again(OnnxGraph::largest_file).empty());
  CHECK_FALSE(std::filesystem::exists(saved.folder / "m.onnx.data"));
  CHECK(std::filesystem::exists(saved.folder / "other.data"));
}

TEST_CASE("what a GPT's graph cannot have is refused, and nothing is left of it", "[onnx]") {
  TempDir folder;
  SharpGpt gpt(onnx_gpt());
  const auto tokenizer = data::load_tokenizer("bytes");
  const auto save = [&](ErrorKind kind, const std::filesystem::path& path, OnnxType type = OnnxType::f32,
                        std::uint64_t most = OnnxGraph::largest_file) {
    return message_of(kind, [&] { save_gpt_onnx(gpt.engine, gpt.net, *tokenizer, type, path, most); });
  };
  CHECK(has(save(ErrorKind::usage, folder / "m.onnx", OnnxType::f64), "type: 11; expected that of f32 or f16"));
  CHECK(has(save(ErrorKind::data, folder / "m.onnx", OnnxType::f32, 1000), "bytes; expected at most 1000"));
  CHECK(has(save(ErrorKind::io, folder / "nowhere" / "m.onnx"), "m.onnx': No such file or directory"));
  CHECK(has(save(ErrorKind::io, folder.path()), "Is a directory"));
  CHECK(has(save(ErrorKind::io, "/dev/full"), "No space left on device"));
  std::vector<float> table(gpt.parameter("embedding.tokens").shape.size(), 1.0F);
  table[7] = 1e6F;
  gpt.set("embedding.tokens", table);
  CHECK(has(save(ErrorKind::data, folder / "m.onnx", OnnxType::f16), "the tensor 'embedding.tokens': 1000000 has no f16"));
  CHECK(std::filesystem::is_empty(folder.path()));
  CHECK(save(ErrorKind::data, folder / "m.onnx") == "no error");
}

TEST_CASE("every activation function of a GPT has operators", "[onnx]") {
  std::map<std::string, std::string> operators = {
      {"gelu", "Erf"},  {"gelu_tanh", "Tanh"}, {"silu", "Sigmoid"},      {"sigmoid", "Sigmoid"},
      {"tanh", "Tanh"}, {"selu", "Selu"},      {"softplus", "Softplus"}, {"relu", "Relu"},
  };
  for (const std::string& name : nn::activation_names()) {
    INFO(name);
    TempDir folder;
    GptConfig config = onnx_gpt();
    config.activation = name;
    SharpGpt gpt(config);
    save_gpt_onnx(gpt.engine, gpt.net, *data::load_tokenizer("bytes"), OnnxType::f32, folder / "m.onnx");
    REQUIRE(operators.contains(name));
    CHECK(OnnxReader(folder / "m.onnx").operators[operators[name]] == 2);
  }
}
