#include "models/gpt/onnx.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string_view>

#include "core/error.h"
#include "core/gguf.h"
#include "data/text/hugging_face_tokenizer.h"
#include "models/gpt/foreign_names.h"
#include "models/model_kind.h"

namespace bitloom::models {
namespace {

using Lengths = std::vector<std::int64_t>;

constexpr const char* ids_name = "input_ids";
constexpr const char* logits_name = "logits";
// Names of sizes that may be any.
constexpr const char* batch_size = "batch_size";
constexpr const char* new_tokens = "sequence_length";
constexpr const char* past_tokens = "past_sequence_length";
constexpr const char* all_tokens = "past_sequence_length + sequence_length";

// --- activation functions, of f32 ---

std::string times(OnnxGraph& graph, const std::string& value, float factor) {
  return graph.node("Mul", {value, graph.scalar(factor)});
}

// x (1 + share) / 2
std::string gelu_of(OnnxGraph& graph, const std::string& x, const std::string& share) {
  return graph.node("Mul", {times(graph, x, 0.5F), graph.node("Add", {share, graph.scalar(1.0F)})});
}

std::string add_gelu(OnnxGraph& graph, const std::string& x) {
  return gelu_of(graph, x, graph.node("Erf", {times(graph, x, static_cast<float>(std::numbers::sqrt2 / 2))}));
}

std::string add_gelu_tanh(OnnxGraph& graph, const std::string& x) {
  const std::string cube = graph.node("Mul", {graph.node("Mul", {x, x}), x});
  const std::string sum = graph.node("Add", {x, times(graph, cube, 0.044715F)});
  const auto slope = static_cast<float>(std::numbers::sqrt2 * std::numbers::inv_sqrtpi);  // sqrt(2 / pi)
  return gelu_of(graph, x, graph.node("Tanh", {times(graph, sum, slope)}));
}

std::string add_silu(OnnxGraph& graph, const std::string& x) { return graph.node("Mul", {x, graph.node("Sigmoid", {x})}); }

struct OnnxActivation {
  std::string_view name;
  const char* operation;                                                 // that computes it; nullptr: several do
  std::string (*add)(OnnxGraph& graph, const std::string& x) = nullptr;  // those
};
constexpr std::array<OnnxActivation, 8> onnx_activations{
    {{"gelu", nullptr, &add_gelu},
     {"gelu_tanh", nullptr, &add_gelu_tanh},
     {"silu", nullptr, &add_silu},
     {"sigmoid", "Sigmoid"},
     {"tanh", "Tanh"},
     {"selu", "Selu"},  // by default with the constants of Klambauer et al.
     {"softplus", "Softplus"},
     {"relu", "Relu"}}};

const OnnxActivation& onnx_activation(const std::string& name) {
  const auto found = std::ranges::find(onnx_activations, name, &OnnxActivation::name);
  if (found != onnx_activations.end()) return *found;
  std::vector<std::string_view> names;
  for (const OnnxActivation& each : onnx_activations) names.push_back(each.name);
  fail(ErrorKind::usage, "activation: {}; expected one of {}, which have a graph of ONNX's operators", name,
       fmt::join(names, ", "));
}

// --- the graph ---

class GptGraph {
 public:
  GptGraph(nn::Engine& engine, Gpt& net, OnnxType type)
      : engine_(engine),
        config_(net.config()),
        activation_(onnx_activation(config_.activation)),
        type_(type),
        heads_(static_cast<std::int64_t>(config_.heads)),
        width_(static_cast<std::int64_t>(config_.width)),
        vocabulary_(static_cast<std::int64_t>(config_.vocabulary)) {
    declare();
    for (const nn::Parameter* parameter : nn::parameters_of(net)) add(*parameter);
    std::string x = embed();
    for (std::size_t layer = 0; layer < config_.layers; ++layer) {
      const std::string name = fmt::format("blocks.{}", layer);
      x = graph_.node("Add", {x, attention(name + ".attention", layer, norm(name + ".attention.norm", x))});
      x = graph_.node("Add", {x, feed_forward(name + ".feed_forward", norm(name + ".feed_forward.norm", x))});
    }
    write_logits(norm("norm", x));
  }

  const OnnxGraph& graph() const { return graph_; }

 private:
  // "past_key_values.2.key"
  static std::string cached(const char* of, std::size_t layer, const char* what) {
    return fmt::format("{}.{}.{}", of, layer, what);
  }
  void declare();
  void add(const nn::Parameter& parameter);
  std::string length(const std::string& value, std::int64_t axis);
  std::string embed();
  std::string norm(const std::string& name, const std::string& x);
  std::string linear(const std::string& name, const std::string& x);
  std::string by_heads(const std::string& x);
  std::string attention(const std::string& name, std::size_t layer, const std::string& x);
  std::string feed_forward(const std::string& name, const std::string& x);
  void write_logits(const std::string& x);

  nn::Engine& engine_;
  const GptConfig& config_;
  const OnnxActivation& activation_;
  const OnnxType type_;
  const std::int64_t heads_, width_, vocabulary_;
  OnnxGraph graph_;
  std::map<std::string, std::string> parameters_;  // names of the values, in f32, by those of parameters
  std::string seen_;                               // bool (T, P + T): whether a token sees a key
};

void GptGraph::declare() {
  graph_.input({ids_name, OnnxType::i64, {batch_size, new_tokens}, "tokens after those of the cache"});
  graph_.output({logits_name, OnnxType::f32, {batch_size, new_tokens, vocabulary_}, "of the token after each"});
  for (std::size_t layer = 0; layer < config_.layers; ++layer) {
    for (const char* what : {"key", "value"}) {
      const std::int64_t head = width_ / heads_;
      graph_.input({cached("past_key_values", layer, what), OnnxType::f32, {batch_size, heads_, past_tokens, head}, ""});
      graph_.output({cached("present", layer, what), OnnxType::f32, {batch_size, heads_, all_tokens, head}, ""});
    }
  }
}

void GptGraph::add(const nn::Parameter& parameter) {
  const std::vector<std::size_t> lengths = unpadded_shape(parameter, config_);
  const Lengths shape(lengths.begin(), lengths.end());
  const bool is_half = type_ == OnnxType::f16 && shape.size() == 2 && parameter.name != "embedding.positions";
  const GgufType stored = is_half ? GgufType::f16 : GgufType::f32;
  graph_.tensor(parameter.name, is_half ? OnnxType::f16 : OnnxType::f32, shape, [this, &parameter, stored] {
    try {
      return to_gguf(stored, unpadded_values(engine_, parameter, config_));
    } catch (const Error& error) {
      fail(error.kind(), "the tensor '{}': {}", parameter.name, error.what());
    }
  });
  graph_.scope(parameter.name);
  parameters_[parameter.name] = is_half ? onnx_cast(graph_, parameter.name, OnnxType::f32) : parameter.name;
}

// A scalar.
std::string GptGraph::length(const std::string& value, std::int64_t axis) {
  return graph_.node("Gather", {graph_.node("Shape", {value}), graph_.scalar(axis)});
}

// (batch, T, width), and what tokens see.
std::string GptGraph::embed() {
  graph_.scope("positions");
  const std::string past = length(cached("past_key_values", 0, "key"), 2);
  const std::string all = graph_.node("Add", {past, length(ids_name, 1)});
  const std::string one = graph_.scalar(std::int64_t{1});
  const std::string keys = graph_.node("Range", {graph_.scalar(std::int64_t{0}), all, one});
  const std::string positions = graph_.node("Range", {past, all, one});
  const std::string column = graph_.node("Unsqueeze", {positions, graph_.constant<std::int64_t>({1}, {1})});
  seen_ = graph_.node("LessOrEqual", {keys, column});
  graph_.scope("embedding");
  const std::string tokens = graph_.node("Gather", {parameters_.at("embedding.tokens"), ids_name});
  return graph_.node("Add", {tokens, graph_.node("Gather", {parameters_.at("embedding.positions"), positions})});
}

std::string GptGraph::norm(const std::string& name, const std::string& x) {
  graph_.scope(name);
  return graph_.node("LayerNormalization", {x, parameters_.at(name + ".gain"), parameters_.at(name + ".bias")},
                     {{"axis", std::int64_t{-1}}, {"epsilon", static_cast<float>(gpt_norm_epsilon)}});
}

// Matrices are (inputs, outputs).
std::string GptGraph::linear(const std::string& name, const std::string& x) {
  graph_.scope(name);
  const std::string product = graph_.node("MatMul", {x, parameters_.at(name + ".weight")});
  return graph_.node("Add", {product, parameters_.at(name + ".bias")});
}

// (batch, T, width) -> (batch, heads, T, width of a head)
std::string GptGraph::by_heads(const std::string& x) {
  const std::string divided = onnx_reshape(graph_, x, {0, 0, heads_, width_ / heads_});
  return graph_.node("Transpose", {divided}, {{"perm", Lengths{0, 2, 1, 3}}});
}

std::string GptGraph::attention(const std::string& name, std::size_t layer, const std::string& x) {
  const std::string qkv = linear(name + ".qkv", x);
  graph_.scope(name);
  const std::vector<std::string> parts = graph_.nodes(3, "Split", {qkv}, {{"axis", std::int64_t{2}}});
  const auto with_past = [&](const char* what, const std::string& part) {
    std::string all = cached("present", layer, what);
    graph_.output_node(all, "Concat", {cached("past_key_values", layer, what), by_heads(part)}, {{"axis", std::int64_t{2}}});
    return all;
  };
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(width_ / heads_)));
  const std::string queries = times(graph_, by_heads(parts[0]), scale);
  const std::string keys = graph_.node("Transpose", {with_past("key", parts[1])}, {{"perm", Lengths{0, 1, 3, 2}}});
  const std::string values = with_past("value", parts[2]);
  const std::string nothing = graph_.scalar(-std::numeric_limits<float>::infinity());
  const std::string scores = graph_.node("Where", {seen_, graph_.node("MatMul", {queries, keys}), nothing});
  const std::string shares = graph_.node("Softmax", {scores}, {{"axis", std::int64_t{-1}}});
  const std::string mixed =
      graph_.node("Transpose", {graph_.node("MatMul", {shares, values})}, {{"perm", Lengths{0, 2, 1, 3}}});
  return linear(name + ".projection", onnx_reshape(graph_, mixed, {0, 0, width_}));
}

std::string GptGraph::feed_forward(const std::string& name, const std::string& x) {
  const std::string inside = linear(name + ".first", x);
  graph_.scope(name + ".activation");
  const std::string active =
      activation_.add != nullptr ? activation_.add(graph_, inside) : graph_.node(activation_.operation, {inside});
  return linear(name + ".second", active);
}

// One matrix serves for embedding and logits, which Gemm reads as it is: no transposed copy.
void GptGraph::write_logits(const std::string& x) {
  graph_.scope(logits_name);
  const std::string rows = onnx_reshape(graph_, x, {-1, width_});
  const std::string logits = graph_.node("Gemm", {rows, parameters_.at("embedding.tokens")}, {{"transB", std::int64_t{1}}});
  const std::vector<std::string> sizes = {graph_.node("Shape", {ids_name}), graph_.constant<std::int64_t>({1}, {vocabulary_})};
  graph_.output_node(logits_name, "Reshape", {logits, onnx_concat(graph_, sizes, 0)});
}

}  // namespace

GptOnnxSummary save_gpt_onnx(nn::Engine& engine, Gpt& net, const data::Tokenizer& tokenizer, OnnxType type,
                             const std::filesystem::path& path, std::uint64_t most) {
  if (type != OnnxType::f32 && type != OnnxType::f16) {
    fail(ErrorKind::usage, "type: {}; expected that of f32 or f16", static_cast<int>(type));
  }
  const GptConfig& config = net.config();
  const GptGraph built(engine, net, type);
  const data::TokenizerJson json = data::hugging_face_json(tokenizer);
  std::map<std::string, std::string> metadata = {{kind_key, gpt_kind},
                                                 {config_key, to_json(config).dump()},
                                                 {"context", std::to_string(config.context)},
                                                 {"end_of_text", std::to_string(tokenizer.end_of_text())},
                                                 {"tokenizer", std::string(tokenizer.kind())}};
  if (json.reason.empty()) metadata["tokenizer.json"] = json.text;
  const std::string doc = fmt::format(
      "GPT of Bitloom, {} layers of width {}. Inputs: input_ids, tokens; past_key_values.N, keys and values of the tokens "
      "before "
      "them, of length 0 at the beginning. Outputs: logits; present.N, the cache for the next call. At most {} tokens in all. "
      "Metadata: end_of_text, the token that ends a text; tokenizer.json, where there is one, the tokenizer.",
      config.layers, config.width, config.context);
  return {built.graph().save(path, doc, metadata, most), json.reason};
}

}  // namespace bitloom::models
