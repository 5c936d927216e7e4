#include "plan/float_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "models/dalle/dalle.h"

namespace bitloom::plan {
namespace {

// Self-attention and a feed-forward part, a layer norm before each, in residual branches.
struct BlockShape {
  std::uint64_t tokens = 0, width = 0, inside = 0, heads = 0;
  std::uint64_t attention = 0;  // heads times their size
  double pairs = 0;             // of queries and keys that see one another
  std::uint64_t memory = 0;     // tokens that a second attention looks at; 0: there is none
  std::uint64_t handed_on = 0;  // elements that pass by
  std::uint64_t path = 1;       // numbers of type V that one of the identity path takes
};

// Where these have type P in place of V.
std::uint64_t path_of(const std::optional<DType>& branch_values) {
  return branch_values ? dtype_size(nn::parameter_type(*branch_values)) / dtype_size(*branch_values) : 1;
}

FloatParameter whole_vector(std::uint64_t elements) { return {{elements}}; }
FloatParameter split_vector(std::uint64_t elements) { return {{0, elements}}; }
FloatParameter whole_matrix(std::uint64_t rows, std::uint64_t columns) { return {{rows * columns}, true, rows}; }
FloatParameter split_matrix(std::uint64_t rows, std::uint64_t columns) { return {{0, rows * columns}, true, rows}; }

// The gain and shift of a norm.
void add_norm(FloatLayer& layer, std::uint64_t width) {
  for (int i = 0; i < 2; ++i) layer.parameters.push_back(whole_vector(width));
}

// Adds an attention: its norm, the products that make queries, keys and values and lead back, and attention itself.
void add_attention(FloatLayer& layer, const BlockShape& s, std::uint64_t keys, double pairs) {
  const std::uint64_t hidden = s.tokens * s.width;
  add_norm(layer, s.width);
  layer.parameters.push_back(split_matrix(s.width, 3 * s.attention));
  layer.parameters.back().column_blocks = 3;
  layer.parameters.push_back(split_vector(3 * s.attention));
  layer.parameters.push_back(split_matrix(s.attention, s.width));
  layer.parameters.push_back(whole_vector(s.width));  // added once, after the sum
  // Norm, residual sum, dropout.
  layer.whole_operations += static_cast<double>((8 + 1 + 2) * hidden);
  layer.split_operations += static_cast<double>(2 * 2 * hidden * s.attention) +
                            static_cast<double>(2 * 2 * keys * s.width * s.attention) +
                            4 * pairs * static_cast<double>(s.attention);
  layer.values.whole += (s.path + 1) * hidden;                // inputs of the norm and of the products
  layer.values.split += 2 * (s.tokens + keys) * s.attention;  // queries, keys, values, and what is mixed of these
  layer.statistics.whole += 2 * s.tokens;
  layer.statistics.split += s.heads * s.tokens;
  layer.sum_operations += static_cast<double>(hidden);  // the bias
  ++layer.forward_sums;
  ++layer.backward_sums;
}

FloatLayer transformer_block(const std::string& name, const BlockShape& s) {
  const std::uint64_t hidden = s.tokens * s.width;
  const std::uint64_t inner = s.tokens * s.inside;
  FloatLayer layer;
  layer.name = name;
  add_attention(layer, s, s.tokens, s.pairs);
  if (s.memory > 0) add_attention(layer, s, s.memory, static_cast<double>(s.tokens * s.memory));
  add_norm(layer, s.width);
  layer.parameters.push_back(split_matrix(s.width, s.inside));
  layer.parameters.push_back(split_vector(s.inside));
  layer.parameters.push_back(split_matrix(s.inside, s.width));
  layer.parameters.push_back(whole_vector(s.width));
  layer.whole_operations += static_cast<double>((8 + 1 + 2) * hidden);
  layer.split_operations += static_cast<double>(2 * 2 * hidden * s.inside) + static_cast<double>(10 * inner);
  layer.values.whole += (s.path + 1) * hidden;
  layer.values.split += inner;
  layer.activations.split += inner;
  layer.statistics.whole += 2 * s.tokens;
  layer.working = {2 * s.path * hidden, 2 * inner};
  layer.output = s.path * (hidden + s.handed_on);
  layer.summed = hidden;
  layer.keeps_input = true;
  layer.is_block = true;
  layer.sum_operations += static_cast<double>(hidden);
  ++layer.forward_sums;
  ++layer.backward_sums;
  return layer;
}

FloatLayer embedding(std::uint64_t vocabulary, std::uint64_t width, std::uint64_t tokens, std::uint64_t positions,
                     std::uint64_t path = 1) {
  FloatLayer layer;
  layer.name = "embedding";
  layer.parameters.push_back({{0, vocabulary * width, width}, true, vocabulary});
  if (positions > 0) layer.parameters.push_back(whole_matrix(positions, width));
  layer.whole_operations = static_cast<double>(tokens * width);
  layer.integers = tokens;
  layer.output = path * tokens * width;
  layer.summed = tokens * width;
  layer.keeps_input = true;
  layer.forward_sums = 1;
  return layer;
}

FloatLayer dropout(std::uint64_t elements, std::uint64_t path) {
  FloatLayer layer;
  layer.name = "dropout";
  layer.whole_operations = static_cast<double>(2 * elements);
  layer.output = path * elements;
  return layer;
}

FloatLayer norm(std::uint64_t tokens, std::uint64_t width, std::uint64_t path = 1) {
  FloatLayer layer;
  layer.name = "norm";
  add_norm(layer, width);
  layer.whole_operations = static_cast<double>(8 * tokens * width);
  layer.values.whole = path * tokens * width;
  layer.statistics.whole = 2 * tokens;
  layer.output = tokens * width;
  layer.keeps_input = true;
  return layer;
}

// --- AmoebaNet-D ---

// Sizes of what a cell gets and gives.
struct CellState {
  std::uint64_t channels = 0, side = 0;
  std::uint64_t size() const { return channels * side * side; }
};

// ReLU, convolution, batch norm. area: of the kernel.
void add_convolution(FloatLayer& layer, std::uint64_t inputs, std::uint64_t outputs, std::uint64_t area, std::uint64_t side_in,
                     std::uint64_t side_out) {
  const std::uint64_t result = outputs * side_out * side_out;
  layer.parameters.push_back(whole_matrix(outputs, inputs * area));
  add_norm(layer, outputs);
  layer.whole_operations += static_cast<double>(2 * inputs * area * result);
  layer.activations.whole += inputs * side_in * side_in;
  layer.values.whole += inputs * side_in * side_in + result;  // inputs of the convolution and of the norm
  layer.working.whole = std::max(layer.working.whole, 2 * inputs * side_in * side_in + 2 * result);
}

void add_conv_1x7_7x1(FloatLayer& layer, std::uint64_t channels, std::uint64_t side) {
  const std::uint64_t narrow = channels / 4;
  add_convolution(layer, channels, narrow, 1, side, side);
  for (int i = 0; i < 2; ++i) add_convolution(layer, narrow, narrow, 7, side, side);
  add_convolution(layer, narrow, channels, 1, side, side);
}

// How the net grows: the states of the last cell and the one before it.
struct AmoebaBuilder {
  FloatModel& model;
  std::uint64_t channels = 0;
  CellState previous, before;
  bool was_reduction = false;

  void add_cell(bool is_reduction) {
    if (is_reduction) channels *= 2;
    const std::uint64_t side = previous.side;
    const std::uint64_t out_side = is_reduction ? side / 2 : side;
    FloatLayer layer;
    layer.name = fmt::format("{}.{}", is_reduction ? "reduction" : "normal", model.layers.size());
    add_convolution(layer, previous.channels, channels, 1, side, side);
    if (was_reduction) {
      // Two convolutions of half the channels each, one of them moved by a pixel, over every second pixel.
      add_convolution(layer, before.channels, channels / 2 * 2, 1, before.side, side);
    } else if (before.channels != channels) {
      add_convolution(layer, before.channels, channels, 1, before.side, side);
    }
    if (is_reduction) {
      const std::uint64_t narrow = channels / 4;
      add_convolution(layer, channels, narrow, 1, side, side);
      add_convolution(layer, narrow, narrow, 9, side, out_side);
      add_convolution(layer, narrow, channels, 1, out_side, out_side);
      add_conv_1x7_7x1(layer, channels, out_side);
      add_convolution(layer, channels, channels, 1, out_side, out_side);
    } else {
      for (int i = 0; i < 3; ++i) add_convolution(layer, channels, channels, 1, side, side);
      for (int i = 0; i < 2; ++i) add_conv_1x7_7x1(layer, channels, side);
    }
    before = previous;
    previous = {(is_reduction ? 3 : 4) * channels, out_side};
    was_reduction = is_reduction;
    layer.output = previous.size() + before.size();
    layer.is_block = true;
    model.layers.push_back(layer);
  }
};

}  // namespace

std::vector<FloatParameter> FloatHead::parameters() const {
  std::vector<FloatParameter> all{{table(), true, vocabulary}};
  if (has_bias) all.push_back(split_vector(vocabulary));
  return all;
}

std::vector<FloatParameter> FloatModel::head_parameters() const {
  std::vector<FloatParameter> all;
  for (const FloatHead& head : vocabulary_heads) {
    for (const FloatParameter& each : head.parameters()) all.push_back(each);
  }
  return all;
}

std::uint64_t FloatModel::parameters() const {
  std::uint64_t sum = 0;
  const auto add = [&](const std::vector<FloatParameter>& parameters) {
    for (const FloatParameter& parameter : parameters) sum += parameter.is_frozen ? 0 : parameter.elements.of(1);
  };
  for (const FloatLayer& layer : layers) add(layer.parameters);
  if (!has_tied_head()) add(head_parameters());
  return sum;
}

double FloatModel::operations() const {
  double sum = 0;
  for (const FloatLayer& layer : layers) sum += layer.operations_of(1);
  return sum + head_operations_of(1);
}

double FloatModel::head_operations_of(std::size_t tensor) const {
  double sum = 0;
  for (const FloatHead& head : vocabulary_heads) sum += 2 * static_cast<double>(tokens_of(head) * head.table().of(tensor));
  return sum;
}

FloatModel describe_gpt(const models::GptConfig& config) {
  FloatModel model;
  model.name = "GPT";
  model.tokens = config.context;
  model.heads = config.heads;
  model.input = sizeof(std::int32_t) * config.context;
  const std::uint64_t path = path_of(config.branch_values);
  model.layers.push_back(embedding(config.padded_vocabulary(), config.width, config.context, config.context, path));
  model.layers.push_back(dropout(config.context * config.width, path));
  BlockShape shape;
  shape.tokens = config.context;
  shape.width = shape.attention = config.width;
  shape.inside = 4 * shape.width;
  shape.heads = config.heads;
  shape.pairs = 0.5 * static_cast<double>(config.context) * static_cast<double>(config.context + 1);
  shape.path = path;
  for (std::size_t i = 0; i < config.layers; ++i) {
    model.layers.push_back(transformer_block(fmt::format("blocks.{}", i), shape));
  }
  model.layers.push_back(norm(config.context, config.width, path));
  model.vocabulary_heads = {FloatHead{config.padded_vocabulary(), config.width, true}};
  model.vocabulary_heads.front().is_clipped = config.logit_clip > 0;
  return model;
}

FloatModel describe_dalle(const models::DalleConfig& config) {
  FloatModel model;
  model.name = "DALL-E";
  model.example = "pair";
  model.tokens = config.tokens();
  model.heads = config.heads;
  model.input = sizeof(std::int32_t) * config.tokens();
  FloatLayer tables;
  tables.name = "embedding";
  for (const std::size_t rows : {config.inputs(), config.text, config.grid, config.grid}) {
    tables.parameters.push_back(whole_matrix(rows, config.width));
  }
  const std::uint64_t path = path_of(config.branch_values);
  tables.output = path * config.tokens() * config.width;
  tables.whole_operations = static_cast<double>(3 * config.tokens() * config.width);
  tables.integers = config.tokens();
  tables.keeps_input = true;
  model.layers.push_back(tables);
  model.layers.push_back(dropout(config.tokens() * config.width, path));
  BlockShape shape;
  shape.tokens = config.tokens();
  shape.width = shape.attention = config.width;
  shape.inside = 4 * shape.width;
  shape.heads = config.heads;
  shape.path = path;
  std::map<models::ImageAttention, double> pairs;
  for (std::size_t i = 0; i < config.layers; ++i) {
    const models::ImageAttention kind = config.attention_of(i);
    if (!pairs.contains(kind)) pairs[kind] = static_cast<double>(models::attention_mask(config, kind).size());
    shape.pairs = pairs[kind];
    model.layers.push_back(transformer_block(fmt::format("blocks.{}", i), shape));
  }
  model.layers.push_back(norm(config.tokens(), config.width, path));
  model.vocabulary_heads = {FloatHead{config.text_vocabulary, config.width, false, false, config.text - 1, true},
                            FloatHead{config.codes, config.width, false, false, config.image(), true}};
  for (FloatHead& head : model.vocabulary_heads) head.is_clipped = config.logit_clip > 0;
  return model;
}

FloatModel describe_transformer(std::size_t layers) {
  constexpr std::uint64_t vocabulary = 32000;
  BlockShape shape;
  shape.tokens = 1024;
  shape.width = shape.attention = 2048;
  shape.inside = 8192;
  shape.heads = 32;
  shape.pairs = 0.5 * 1024 * 1025;
  FloatModel model;
  model.name = fmt::format("Transformer-{}", layers);
  model.tokens = shape.tokens;
  model.heads = shape.heads;
  model.input = sizeof(std::int32_t) * shape.tokens;
  model.layers.push_back(embedding(vocabulary, shape.width, shape.tokens, 0));
  for (std::size_t i = 0; i < layers; ++i) model.layers.push_back(transformer_block(fmt::format("blocks.{}", i), shape));
  model.layers.push_back(norm(shape.tokens, shape.width));
  model.vocabulary_heads = {FloatHead{vocabulary, shape.width, false, true}};
  return model;
}

FloatModel describe_translation(std::size_t layers, std::size_t inside, std::size_t heads) {
  constexpr std::uint64_t vocabulary = 64000;
  constexpr std::uint64_t head_size = 64;
  BlockShape shape;
  shape.tokens = 1024;
  shape.width = 1024;
  shape.inside = inside;
  shape.heads = heads;
  shape.attention = heads * head_size;
  const std::uint64_t hidden = shape.tokens * shape.width;
  FloatModel model;
  model.name = fmt::format("T({},{},{})", layers, inside, heads);
  model.tokens = shape.tokens;
  model.heads = heads;
  model.input = 2 * sizeof(std::int32_t) * shape.tokens;  // source and target
  model.layers.push_back(embedding(vocabulary, shape.width, 2 * shape.tokens, 0));
  shape.handed_on = hidden;  // the target's embeddings
  shape.pairs = 1024 * 1024;
  for (std::size_t i = 0; i < layers; ++i) model.layers.push_back(transformer_block(fmt::format("encoder.{}", i), shape));
  shape.pairs = 0.5 * 1024 * 1025;
  shape.memory = shape.tokens;
  for (std::size_t i = 0; i < layers; ++i) model.layers.push_back(transformer_block(fmt::format("decoder.{}", i), shape));
  model.layers.push_back(norm(shape.tokens, shape.width));
  model.vocabulary_heads = {FloatHead{vocabulary, shape.width, false, true}};
  return model;
}

FloatModel describe_amoebanet_d(std::size_t cells, std::size_t filters) {
  constexpr std::uint64_t image_side = 224;
  constexpr std::uint64_t classes = 1000;
  FloatModel model;
  model.name = fmt::format("AmoebaNet-D ({},{})", cells, filters);
  model.example = "image";
  model.input = sizeof(float) * 3 * image_side * image_side;
  const std::uint64_t channels = filters / 4;
  FloatLayer stem;
  stem.name = "stem";
  add_convolution(stem, 3, channels, 9, image_side, image_side / 2);
  const CellState state{channels, image_side / 2};
  stem.output = state.size();
  model.layers.push_back(stem);
  AmoebaBuilder builder{model, channels, state, state};
  builder.add_cell(true);  // with the next one the rest of the stem
  for (int third = 0; third < 3; ++third) {
    builder.add_cell(true);
    for (std::size_t i = 0; i < cells / 3; ++i) builder.add_cell(false);
  }
  FloatLayer classify;
  classify.name = "classify";
  classify.parameters = {whole_matrix(builder.previous.channels, classes), whole_vector(classes)};
  classify.values.whole = builder.previous.channels;
  classify.whole_operations = static_cast<double>(2 * builder.previous.channels * classes + builder.previous.size());
  classify.output = classes;
  model.layers.push_back(classify);
  return model;
}

}  // namespace bitloom::plan
