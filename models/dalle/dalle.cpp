#include "models/dalle/dalle.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/error.h"
#include "models/transformer/blocks.h"
#include "nn/layers/tokens.h"

namespace bitloom::models {
namespace {

constexpr double deviation = 0.02;

nn::Parameter table(const std::string& name, std::size_t rows, std::size_t width) {
  nn::Parameter parameter;
  parameter.name = name;
  parameter.shape = {rows, width};
  parameter.deviation = deviation;
  return parameter;
}

const DalleConfig& checked(const DalleConfig& config) {
  check(config);
  return config;
}

// Text, then an image column by column: there the tokens of a column, which see one another, stand together, and the map of a
// column mask has fewer blocks (Ramesh et al. 2021, appendix B.1, keep these layers transposed). None where that saves little.
std::shared_ptr<const nn::TokenOrder> column_order(const DalleConfig& config, const nn::AttentionMask& mask) {
  auto order = std::make_shared<nn::TokenOrder>();
  for (std::size_t t = 0; t < config.text; ++t) order->tokens.push_back(static_cast<std::int32_t>(t));
  for (std::size_t i = 0; i < config.image(); ++i) {
    const std::size_t row = i % config.grid, column = i / config.grid;
    order->tokens.push_back(static_cast<std::int32_t>(config.text + row * config.grid + column));
  }
  const auto at = [&](std::size_t i) { return static_cast<std::size_t>(order->tokens[i]); };
  order->mask = nn::AttentionMask(config.tokens(), config.tokens(),
                                  [&](std::size_t q, std::size_t k) { return mask.sees(at(q), at(k)); });
  // Moving tokens costs something, too.
  if (10 * order->mask.entries().size() > 8 * mask.entries().size()) return nullptr;
  return order;
}

BlockBuilder::Mask mask_of(const DalleConfig& config, ImageAttention kind) {
  auto mask = std::make_shared<nn::AttentionMask>(attention_mask(config, kind));
  auto order = kind == ImageAttention::column ? column_order(config, *mask) : nullptr;
  return {std::move(mask), std::move(order)};
}

}  // namespace

nn::AttentionMask attention_mask(const DalleConfig& config, ImageAttention kind) {
  using nn::AttentionMask;
  const std::size_t largest = config.grid - (config.grid % 2 == 0 ? 1 : 0);  // odd
  switch (kind) {
    case ImageAttention::row: return AttentionMask::row(config.text, config.grid);
    case ImageAttention::column: return AttentionMask::column(config.text, config.grid);
    case ImageAttention::convolutional: break;
  }
  return AttentionMask::convolutional(config.text, config.grid, std::min(config.extent, largest));
}

// --- DalleEmbedding ---

DalleEmbedding::DalleEmbedding(const DalleConfig& config)
    : config_(config),
      inputs_(table("embedding.inputs", config.inputs(), config.width)),
      positions_{Positions{table("embedding.text", config.text, config.width), {}, {}},
                 Positions{table("embedding.rows", config.grid, config.width), {}, {}},
                 Positions{table("embedding.columns", config.grid, config.width), {}, {}}} {
  const auto number = [](std::size_t n) { return static_cast<std::int32_t>(n); };
  for (std::size_t t = 0; t < config.tokens(); ++t) {
    const bool is_text = t < config.text;
    const std::size_t pixel = is_text ? 0 : t - config.text;
    positions_[0].row_of.push_back(number(is_text ? t : config.text));
    positions_[1].row_of.push_back(number(is_text ? config.grid : pixel / config.grid));
    positions_[2].row_of.push_back(number(is_text ? config.grid : pixel % config.grid));
  }
}

nn::Shape DalleEmbedding::output(const nn::Shape& ids) const {
  if (ids.axes() != 2 || ids[1] > config_.tokens()) {
    fail(ErrorKind::usage, "embedding: ids {}; expected sequences of at most {} tokens", nn::to_text(ids), config_.tokens());
  }
  return {ids[0], ids[1], config_.width};
}

nn::Tensor DalleEmbedding::rows_of(nn::Engine& engine, Positions& positions, const nn::Shape& ids, std::size_t first) {
  const nn::Shape flat = {ids.size()};
  if (first == 0 && positions.ids && positions.ids.shape() == ids) return positions.ids.reshaped(flat);
  std::vector<std::int32_t> rows(ids.size());
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = positions.row_of[first + i % ids[1]];
  nn::Tensor made = engine.from(std::span<const std::int32_t>(rows), ids, nn::Use::data);
  if (first == 0) positions.ids = made;
  return made.reshaped(flat);
}

nn::Tensor DalleEmbedding::forward(nn::Pass& pass, const nn::Tensor& ids) {
  const nn::Shape shape = output(ids.shape());
  const std::size_t first = pass.cache == nullptr ? 0 : pass.cache->size();
  if (first + ids.shape()[1] > config_.tokens()) {
    fail(ErrorKind::usage, "embedding: {} tokens after {}; expected at most {}", ids.shape()[1], first, config_.tokens());
  }
  nn::Tensor flat = pass.engine.empty({ids.size(), config_.width}, inputs_.read().dtype(), nn::Use::activations);
  nn::gather(pass.engine, inputs_.read(), ids.reshaped({ids.size()}), flat);
  if (config_.branch_values) flat = nn::converted(pass.engine, flat, nn::parameter_type(flat.dtype()));
  for (Positions& each : positions_) {
    const nn::VocabularySlice slice{0, each.table.shape[0] + 1};  // the last row is none
    nn::add_rows(pass.engine, each.table.read(), rows_of(pass.engine, each, ids.shape(), first), flat, slice);
  }
  pass.keep(ids);
  return flat.reshaped(shape);
}

nn::Tensor DalleEmbedding::backward(nn::Pass& pass, const nn::Tensor& dy) {
  const nn::Tensor ids = pass.stash->take();
  const nn::Tensor flat = dy.reshaped({ids.size(), config_.width});
  nn::scatter_add(pass.engine, flat, ids.reshaped({ids.size()}), inputs_.gradient);
  pass.announce(inputs_);
  for (Positions& each : positions_) {
    const nn::VocabularySlice slice{0, each.table.shape[0] + 1};
    nn::scatter_add(pass.engine, flat, rows_of(pass.engine, each, ids.shape(), 0), each.table.gradient, slice);
    pass.announce(each.table);
  }
  return {};
}

void DalleEmbedding::add_parameters(std::vector<nn::Parameter*>& all) {
  all.push_back(&inputs_);
  for (Positions& each : positions_) all.push_back(&each.table);
}

std::uint64_t DalleEmbedding::stash_bytes(const nn::Shape& ids, DType /*values*/) const {
  return ids.size() * sizeof(std::int32_t);
}

// --- DalleOutput ---

DalleOutput::DalleOutput(const DalleConfig& config)
    : norm_("norm", config.width, config.branch_values),
      text_(table("head.text", config.text_vocabulary, config.width)),
      codes_(table("head.codes", config.codes, config.width)) {
  text_.overwrites = codes_.overwrites = true;
}

nn::Tensor DalleOutput::backward(nn::Pass& pass, const nn::Tensor& dy) {
  // The loss, which came before, has completed both gradients.
  pass.announce(text_);
  pass.announce(codes_);
  return norm_.backward(pass, dy);
}

void DalleOutput::add_parameters(std::vector<nn::Parameter*>& all) {
  norm_.add_parameters(all);
  all.insert(all.end(), {&text_, &codes_});
}

// --- Dalle ---

Dalle::Dalle(const DalleConfig& config, train::TensorGroup* group) : config_(checked(config)) {
  const BlockConfig blocks = blocks_of(config_);
  BlockBuilder builder(blocks, group);
  layers_.emplace<DalleEmbedding>(config_);
  builder.add_dropout(layers_);
  std::map<ImageAttention, BlockBuilder::Mask> masks;
  builder.add_blocks(layers_, [&](std::size_t i) {
    const ImageAttention kind = config_.attention_of(i);
    BlockBuilder::Mask& mask = masks[kind];
    if (mask.mask == nullptr) mask = mask_of(config_, kind);
    return mask;
  });
  DalleOutput& output = layers_.emplace<DalleOutput>(config_);
  text_head_ = std::make_unique<train::VocabularyHead>(nullptr, output.text(), config_.text_vocabulary, config_.logit_clip);
  code_head_ = std::make_unique<train::VocabularyHead>(nullptr, output.codes(), config_.codes, config_.logit_clip);
}

double Dalle::cost(std::size_t pairs) const {
  const std::size_t logits = (config_.text - 1) * config_.text_vocabulary + config_.image() * config_.codes;
  return layers_.cost({pairs, config_.tokens()}) + 2 * static_cast<double>(pairs * config_.width * logits);
}

}  // namespace bitloom::models
