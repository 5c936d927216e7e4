// GPT-2 in Hugging Face's layout: out and in again, from every type and name that is in use, and what is refused. What other
// programs make of the files is tested by tests/peers/test_gpt2.py.
#include <nlohmann/json.hpp>

#include "core/half.h"
#include "core/safetensors.h"
#include "models/gpt/evaluate.h"
#include "models/gpt/hugging_face.h"
#include "tests/models/gpt_nets.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::models;
using namespace bitloom::test;
using Json = nlohmann::json;

namespace {

// A net with values of their own in all vectors too, and its folder.
struct Exported {
  Exported() {
    std::uint64_t seed = 1;
    for (nn::Parameter* parameter : gpt.parameters) {
      if (parameter->shape.axes() != 1) continue;
      std::vector<float> values(parameter->shape.size());
      Random random(seed++, Stream::test);
      for (float& value : values) value = static_cast<float>(0.5 + random.uniform());
      gpt.set(parameter->name, values);
    }
    save_hugging_face(gpt.engine, gpt.net, folder.path(), 82);
    weights = TensorFile::load(folder / "model.safetensors");
    config = Json::parse(read_file(folder / "config.json"));
  }
  // The files as they are here now.
  void write() const {
    weights.save(folder / "model.safetensors");
    write_file(folder / "config.json", config.dump());
  }
  void rename(const std::string& from, const std::string& to) {
    auto node = weights.tensors.extract(from);
    REQUIRE(!node.empty());
    node.key() = to;
    weights.tensors.insert(std::move(node));
  }

  TempDir folder;
  SharpGpt gpt;
  TensorFile weights;
  Json config;
};

// The net of a folder.
struct Imported {
  explicit Imported(const std::filesystem::path& folder, std::size_t multiple = 16)
      : net(read_hugging_face_config(folder, multiple)), parameters(nn::parameters_of(net)) {
    nn::make_parameters(engine, parameters, DType::f32);
    load_hugging_face(engine, folder, net);
  }
  nn::Engine engine;
  Gpt net;
  std::vector<nn::Parameter*> parameters;
};

// Logits of all tokens that a net may draw.
template <typename Net>
std::vector<float> logits_of(Net& net) {
  return token_logits({net.engine, net.net}, random_tokens(20, 83, 1));
}

std::string message_of_import(const Exported& exported) {
  exported.write();
  return message_of(ErrorKind::data, [&] { Imported imported(exported.folder.path()); });
}

}  // namespace

TEST_CASE("a net that went out and came in is the same to the bit", "[hugging_face]") {
  Exported exported;
  Imported imported(exported.folder.path());
  const GptConfig& config = imported.net.config();
  CHECK(to_json(config) == to_json(exported.gpt.net.config()));
  for (std::size_t p = 0; p < imported.parameters.size(); ++p) {
    const std::string& name = imported.parameters[p]->name;
    INFO(name);
    std::vector<float> out = exported.gpt.engine.to_host<float>(exported.gpt.parameters[p]->value);
    std::vector<float> in = imported.engine.to_host<float>(imported.parameters[p]->value);
    if (name == "embedding.tokens") {
      for (std::size_t i = 83 * 24; i < in.size(); ++i) REQUIRE(in[i] == 0);  // the padding
      in.resize(83 * 24);
      out.resize(83 * 24);
    }
    CHECK(in == out);
  }
  CHECK(logits_of(imported) == logits_of(exported.gpt));
}

TEST_CASE("the files are those of transformers' GPT-2", "[hugging_face]") {
  Exported exported;
  CHECK(exported.weights.metadata.at("format") == "pt");
  const auto shape = [&](const std::string& name) { return exported.weights.get(name).shape; };
  using Lengths = std::vector<std::size_t>;
  CHECK(exported.weights.tensors.size() == 2 + 2 * 12 + 2);
  CHECK(shape("transformer.wte.weight") == Lengths{83, 24});
  CHECK(shape("transformer.wpe.weight") == Lengths{37, 24});
  CHECK(shape("transformer.h.0.ln_1.weight") == Lengths{24});
  CHECK(shape("transformer.h.1.attn.c_attn.weight") == Lengths{24, 72});
  CHECK(shape("transformer.h.1.attn.c_proj.bias") == Lengths{24});
  CHECK(shape("transformer.h.1.mlp.c_fc.weight") == Lengths{24, 96});
  CHECK(shape("transformer.h.0.mlp.c_proj.weight") == Lengths{96, 24});
  CHECK(shape("transformer.ln_f.bias") == Lengths{24});
  CHECK(exported.config["model_type"] == "gpt2");
  CHECK(exported.config["activation_function"] == "gelu_new");
  CHECK(exported.config["vocab_size"] == 83);
  CHECK(exported.config["n_positions"] == 37);
  CHECK(exported.config["eos_token_id"] == 82);
}

TEST_CASE("names without prefix, old masks, a head of its own and other padding", "[hugging_face]") {
  Exported exported;
  const std::vector<float> expected = logits_of(exported.gpt);
  exported.weights.tensors["lm_head.weight"] = exported.weights.get("transformer.wte.weight");
  exported.weights.put("transformer.h.0.attn.bias", {1, 1, 37, 37}, std::vector<std::uint8_t>(37 * 37, 1));
  exported.weights.put("transformer.h.0.attn.masked_bias", {}, std::vector<float>{-1e4F});
  exported.write();
  Imported full(exported.folder.path(), 1);
  // A product with another padding of N may be summed by another kernel, as by oneDNN's for AVX2.
  CHECK(compare(logits_of(full), expected, 1e-6) == "");
  CHECK(full.net.config().padded_vocabulary() == 83);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : exported.weights.tensors) names.push_back(name);
  for (const std::string& name : names) {
    if (name.starts_with("transformer.")) exported.rename(name, name.substr(std::string("transformer.").size()));
  }
  exported.write();
  Imported bare(exported.folder.path(), 128);
  CHECK(compare(logits_of(bare), expected, 1e-6) == "");
  CHECK(bare.net.config().padded_vocabulary() == 128);
}

TEST_CASE("weights of 16 bits are read as the numbers they are", "[hugging_face]") {
  for (const bool brain : {false, true}) {
    Exported exported;
    for (nn::Parameter* parameter : exported.gpt.parameters) {
      std::vector<float> values = exported.gpt.engine.to_host<float>(parameter->value);
      for (float& value : values) value = brain ? to_float(to_bf16(value)) : to_float(to_f16(value));
      exported.gpt.set(parameter->name, values);
    }
    for (auto& [name, tensor] : exported.weights.tensors) {
      const auto values = tensor.as<float>();
      const std::vector<std::size_t> shape = tensor.shape;
      std::vector<f16> half;
      std::vector<bf16> other;
      for (const float value : values) half.push_back(to_f16(value));
      for (const float value : values) other.push_back(to_bf16(value));
      if (brain) {
        exported.weights.put(name, shape, other);
      } else {
        exported.weights.put(name, shape, half);
      }
    }
    exported.write();
    Imported imported(exported.folder.path());
    CHECK(logits_of(imported) == logits_of(exported.gpt));
  }
}

TEST_CASE("activation functions have their names on both sides", "[hugging_face]") {
  Exported exported;
  const std::vector<std::pair<const char*, const char*>> names = {{"gelu_new", "gelu_tanh"}, {"gelu_pytorch_tanh", "gelu_tanh"},
                                                                  {"gelu", "gelu"},          {"relu", "relu"},
                                                                  {"silu", "silu"},          {"swish", "silu"}};
  for (const auto& [theirs, ours] : names) {
    exported.config["activation_function"] = theirs;
    exported.write();
    CHECK(read_hugging_face_config(exported.folder.path()).activation == ours);
  }
  for (const auto& [ours, theirs] : {std::pair("gelu", "gelu"), std::pair("silu", "silu")}) {
    GptConfig config = small_gpt();
    config.activation = ours;
    SharpGpt gpt(config);
    save_hugging_face(gpt.engine, gpt.net, exported.folder.path(), 0);
    CHECK(Json::parse(read_file(exported.folder / "config.json"))["activation_function"] == theirs);
  }
  GptConfig config = small_gpt();
  config.activation = "softplus";
  SharpGpt gpt(config);
  CHECK(has(message_of(ErrorKind::usage, [&] { save_hugging_face(gpt.engine, gpt.net, exported.folder.path(), 0); }),
            "softplus"));
}

TEST_CASE("what config.json leaves out is GPT-2's", "[hugging_face]") {
  TempDir folder;
  write_file(folder / "config.json", "{}");
  const GptConfig config = read_hugging_face_config(folder.path());
  CHECK(config.parameters() == 124439808 + 47 * 768);
  CHECK(config.activation == "gelu_tanh");
  CHECK(config.dropout == 0.1);
  write_file(folder / "config.json", R"({"n_ctx": 64, "n_inner": null, "resid_pdrop": 0.2, "embd_pdrop": 0})");
  CHECK(read_hugging_face_config(folder.path()).context == 64);
  CHECK(read_hugging_face_config(folder.path()).dropout == 0.2);
}

TEST_CASE("a config.json that no net here can be is refused with key, value and what was expected", "[hugging_face]") {
  const auto refuses = [](const char* key, const Json& value, const std::string& text) {
    Exported exported;
    exported.config[key] = value;
    const std::string message = message_of_import(exported);
    INFO(message);
    CHECK(has(message, "config.json"));
    CHECK(has(message, text));
  };
  refuses("model_type", "gptj", "'gptj'; expected 'gpt2'");
  refuses("layer_norm_epsilon", 1e-6, "'layer_norm_epsilon' is 1e-06; nets here have 1e-05");
  refuses("n_inner", 50, "'n_inner' is 50; nets here have four times the width, 96");
  refuses("activation_function", "mish", "'mish'; expected one of gelu_new");
  refuses("scale_attn_weights", false, "'scale_attn_weights' is false");
  refuses("scale_attn_by_inverse_layer_idx", true, "'scale_attn_by_inverse_layer_idx' is true");
  refuses("tie_word_embeddings", false, "'tie_word_embeddings' is false");
  refuses("n_layer", -1, "'n_layer' is -1; expected a whole number");
  refuses("n_head", 5, "`heads`: 5; expected a divisor of the width, 24");
  TempDir folder;
  const auto message = [&] { return message_of(ErrorKind::data, [&] { read_hugging_face_config(folder.path()); }); };
  CHECK(has(message(), "config.json"));
  write_file(folder / "config.json", "[1");
  CHECK(has(message(), "not a JSON object"));
}

TEST_CASE("weights that do not fit are refused with file, tensor and shapes", "[hugging_face]") {
  const std::string fc = "transformer.h.1.mlp.c_fc.weight";
  {
    Exported exported;
    exported.weights.tensors.erase(fc);
    const std::string message = message_of_import(exported);
    CHECK(has(message, "model.safetensors: the tensor '" + fc + "' is missing; expected one of shape [24, 96]"));
  }
  {
    Exported exported;
    exported.weights.put(fc, {96, 24}, std::vector<float>(96 * 24));
    CHECK(has(message_of_import(exported), "'" + fc + "' has the shape [96, 24]; expected [24, 96]"));
  }
  {
    Exported exported;
    exported.weights.put(fc, {24, 96}, std::vector<std::int32_t>(96 * 24));
    CHECK(has(message_of_import(exported), "'" + fc + "' is of type I32; expected F32, F16 or BF16"));
  }
  {
    Exported exported;  // a table of the padded size is one of other tokens
    exported.weights.put("transformer.wte.weight", {96, 24}, std::vector<float>(96 * 24));
    CHECK(has(message_of_import(exported), "'transformer.wte.weight' has the shape [96, 24]; expected [83, 24]"));
  }
  {
    Exported exported;
    exported.weights.put("transformer.h.2.ln_1.weight", {24}, std::vector<float>(24));
    CHECK(has(message_of_import(exported), "'transformer.h.2.ln_1.weight' has no place in the net"));
  }
  {
    Exported exported;
    exported.weights.put("lm_head.weight", {83, 24}, std::vector<float>(83 * 24));
    CHECK(has(message_of_import(exported), "'lm_head.weight' is not equal to 'transformer.wte.weight'"));
  }
  {
    Exported exported;
    std::string bytes = read_file(exported.folder / "model.safetensors");
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_file(exported.folder / "model.safetensors", bytes);
    CHECK(has(message_of(ErrorKind::data, [&] { Imported imported(exported.folder.path()); }), "checksum"));
    std::filesystem::remove(exported.folder / "model.safetensors");
    const auto message = [&] { return message_of(ErrorKind::data, [&] { Imported imported(exported.folder.path()); }); };
    CHECK(has(message(), "there is no such file"));
    write_file(exported.folder / "pytorch_model.bin", "x");
    CHECK(has(message(), "there is a pytorch_model.bin"));
    write_file(exported.folder / "model.safetensors.index.json", "{}");
    CHECK(has(message(), "several files"));
  }
}
