#include "nn/layers/tokens.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "nn/layers/parts.h"

namespace bitloom::nn {
namespace {

SelfAttentionOptions with_own_heads(const std::string& name, std::size_t width, SelfAttentionOptions options) {
  if (options.heads == 0 || width % options.heads != 0) {
    fail(ErrorKind::usage, "{}: {} heads; expected a divisor of the width, {}", name, options.heads, width);
  }
  if (options.own_heads == 0) options.own_heads = options.heads;
  if (options.first_head + options.own_heads > options.heads) {
    fail(ErrorKind::internal, "{}: heads {} to {} of {}", name, options.first_head, options.first_head + options.own_heads,
         options.heads);
  }
  return options;
}

// Options of the columns of a process's heads.
LinearOptions divided(std::size_t width, const SelfAttentionOptions& options, LinearOptions::Division division) {
  LinearOptions linear;
  linear.transposed = options.transposed;
  if (options.own_heads == options.heads) return linear;
  const std::size_t size = width / options.heads;
  linear.division = division;
  linear.begin = options.first_head * size;
  linear.end = linear.begin + options.own_heads * size;
  return linear;
}

LinearOptions qkv_options(std::size_t width, const SelfAttentionOptions& options) {
  LinearOptions linear = divided(width, options, LinearOptions::Division::outputs);
  linear.blocks = 3;
  linear.deviation = options.deviation;
  return linear;
}

LinearOptions projection_options(std::size_t width, const SelfAttentionOptions& options) {
  LinearOptions linear = divided(width, options, LinearOptions::Division::inputs);
  linear.bias = linear.division == LinearOptions::Division::none;
  linear.deviation = options.projection_deviation;
  return linear;
}

}  // namespace

// --- KeyValueCache ---

KeyValueCache::KeyValueCache(std::size_t sequences, std::size_t capacity) : sequences_(sequences), capacity_(capacity) {
  if (sequences == 0 || capacity == 0) {
    fail(ErrorKind::usage, "cache: {} sequences of {} tokens; expected at least one of 1", sequences, capacity);
  }
}

std::uint64_t KeyValueCache::bytes() const {
  std::uint64_t sum = 0;
  for (const Tensor& call : calls_) sum += call.bytes();
  return sum;
}

void KeyValueCache::begin(std::size_t tokens) {
  if (tokens == 0 || tokens > capacity_ - size_) {
    fail(ErrorKind::usage, "cache: {} tokens after {}; expected 1 to {}", tokens, size_, capacity_ - size_);
  }
  tokens_ = tokens;
  call_ = 0;
  rows_.clear();
}

const AttentionMask& KeyValueCache::rows_of(const AttentionMask& mask) {
  const auto found = rows_.find(mask.id());
  if (found != rows_.end()) return found->second;
  if (mask.keys() != capacity_) {
    fail(ErrorKind::usage, "cache: of {} tokens for a mask of {}; expected as many", capacity_, mask.keys());
  }
  return rows_.emplace(mask.id(), AttentionMask::rows(mask, size_, tokens_)).first->second;
}

void KeyValueCache::end() {
  size_ += tokens_;
  tokens_ = 0;
}

const Tensor& KeyValueCache::append(Engine& engine, const Tensor& qkv) {
  const Shape& shape = qkv.shape();
  if (shape[0] != sequences_ || shape[1] != tokens_) {
    fail(ErrorKind::usage, "cache: {}; expected {} sequences of {} tokens", to_text(qkv), sequences_, tokens_);
  }
  // Zeros: attention multiplies what no query sees by 0, and NaN would stay NaN.
  if (call_ == calls_.size()) {
    calls_.push_back(engine.zeros({sequences_, capacity_, shape[2]}, qkv.dtype(), Use::activations));
  }
  Tensor& call = calls_[call_++];
  const Tensor to = call.reshaped({sequences_ * capacity_, shape[2]});
  const Tensor from = qkv.reshaped({sequences_ * tokens_, shape[2]});
  for (std::size_t b = 0; b < sequences_; ++b) {
    const std::size_t row = b * capacity_ + size_;
    Tensor rows = to.slice(row, row + tokens_);
    scale_add(engine, 1, from.slice(b * tokens_, (b + 1) * tokens_), 0, rows);
  }
  return call;
}

// --- SelfAttention ---

SelfAttention::SelfAttention(const std::string& name, std::size_t width, std::shared_ptr<const AttentionMask> mask,
                             const SelfAttentionOptions& options)
    : name_(name),
      width_(width),
      mask_(std::move(mask)),
      options_(with_own_heads(name, width, options)),
      own_width_(width / options_.heads * options_.own_heads),
      qkv_(name + ".qkv", width, 3 * width, qkv_options(width, options_)),
      projection_(name + ".projection", width, width, projection_options(width, options_)) {
  if (options_.order == nullptr) return;
  ordered_.tokens = options_.order->tokens;
  back_.tokens.assign(ordered_.tokens.size(), -1);
  for (std::size_t i = 0; i < ordered_.tokens.size(); ++i) {
    const auto token = static_cast<std::size_t>(ordered_.tokens[i]);
    if (token < back_.tokens.size()) back_.tokens[token] = static_cast<std::int32_t>(i);
  }
  if (back_.tokens.size() != mask_->queries() || options_.order->mask.queries() != mask_->queries() ||
      std::ranges::count(back_.tokens, -1) != 0) {
    fail(ErrorKind::internal, "{}: an order of {} tokens, not all of them once; expected one of {}", name, back_.tokens.size(),
         mask_->queries());
  }
}

Tensor SelfAttention::Rows::of(Engine& engine, const Tensor& x) {
  const Shape& shape = x.shape();
  const std::size_t rows = shape[0] * shape[1];
  if (!ids || ids.size() != rows) {
    std::vector<std::int32_t> all(rows);
    for (std::size_t i = 0; i < rows; ++i) {
      all[i] = static_cast<std::int32_t>(i / shape[1] * shape[1]) + tokens[i % shape[1]];
    }
    ids = engine.from(std::span<const std::int32_t>(all), {rows}, Use::data);
  }
  Tensor y = engine.empty(shape, x.dtype(), Use::activations);
  Tensor flat = y.reshaped({rows, shape[2]});
  gather(engine, x.reshaped({rows, shape[2]}), ids, flat);
  return y;
}

Tensor SelfAttention::in_order(Engine& engine, const Tensor& x) {
  return options_.order == nullptr ? x : ordered_.of(engine, x);
}

Tensor SelfAttention::out_of_order(Engine& engine, const Tensor& x) {
  return options_.order == nullptr ? x : back_.of(engine, x);
}

Dropout SelfAttention::dropout(const Pass& pass, std::size_t sequences) const {
  const std::uint64_t pairs = static_cast<std::uint64_t>(mask().queries()) * mask().keys();
  return pass.dropout(options_.dropout, options_.dropout_number, sequences, options_.heads * pairs);
}

AttentionShape SelfAttention::shape() const {
  const std::size_t size = width_ / options_.heads;
  return {options_.own_heads, size, 1 / std::sqrt(static_cast<double>(size)), options_.first_head, options_.heads};
}

Tensor SelfAttention::empty_lse(Engine& engine, const Tensor& x) const {
  return engine.empty({x.shape()[0], options_.own_heads, x.shape()[1]}, parameter_type(x.dtype()), Use::activations);
}

Shape SelfAttention::output(const Shape& x) const {
  if (x.axes() != 3 || x[1] != mask_->queries() || x[2] != width_) {
    fail(ErrorKind::usage, "{}: x {}; expected sequences of {} tokens of {}", name_, to_text(x), mask_->queries(), width_);
  }
  return x;
}

Tensor SelfAttention::forward_cached(Pass& pass, const Tensor& x) {
  const Tensor qkv = qkv_.apply(pass, x);
  const Tensor& all = pass.cache->append(pass.engine, qkv);
  const Tensor mixed = pass.engine.empty(x.shape().with(2, own_width_), x.dtype(), Use::activations);
  Tensor lse = empty_lse(pass.engine, x);
  attention(pass.engine, shape(), pass.cache->rows_of(*mask_), {}, {qkv, 0}, {all, own_width_}, {all, 2 * own_width_},
            {mixed, 0}, lse);
  return projection_.apply(pass, mixed);
}

Tensor SelfAttention::forward(Pass& pass, const Tensor& given) {
  if (pass.cache != nullptr) return forward_cached(pass, given);
  output(given.shape());
  const Tensor x = in_order(pass.engine, given);
  const Tensor qkv = qkv_.apply(pass, x);
  const Tensor mixed = pass.engine.empty(x.shape().with(2, own_width_), x.dtype(), Use::activations);
  Tensor lse = empty_lse(pass.engine, x);
  attention(pass.engine, shape(), mask(), dropout(pass, x.shape()[0]), {qkv, 0}, {qkv, own_width_}, {qkv, 2 * own_width_},
            {mixed, 0}, lse);
  for (const Tensor& kept : {x, qkv, mixed, lse}) pass.keep(kept);
  return out_of_order(pass.engine, projection_.apply(pass, mixed));
}

Tensor SelfAttention::backward(Pass& pass, const Tensor& dgiven) {
  const Tensor dy = in_order(pass.engine, dgiven);
  const Tensor lse = pass.stash->take();
  const Tensor mixed = pass.stash->take();
  const Tensor qkv = pass.stash->take();
  const Tensor x = pass.stash->take();
  const Tensor dmixed = projection_.apply_backward(pass, mixed, dy);
  const Tensor dqkv = pass.engine.empty(qkv.shape(), qkv.dtype(), Use::activations);
  attention_backward(pass.engine, shape(), mask(), dropout(pass, x.shape()[0]), {qkv, 0}, {qkv, own_width_},
                     {qkv, 2 * own_width_}, {mixed, 0}, lse, {dmixed, 0}, {dqkv, 0}, {dqkv, own_width_},
                     {dqkv, 2 * own_width_});
  return out_of_order(pass.engine, qkv_.apply_backward(pass, x, dqkv));
}

void SelfAttention::add_parameters(std::vector<Parameter*>& all) {
  qkv_.add_parameters(all);
  projection_.add_parameters(all);
}

double SelfAttention::cost(const Shape& x) const {
  const double pairs = static_cast<double>(x[0]) * static_cast<double>(mask_->size());
  return qkv_.cost(x) + projection_.cost(x.with(2, own_width_)) + 4 * pairs * static_cast<double>(own_width_);
}

std::uint64_t SelfAttention::stash_bytes(const Shape& x, DType values) const {
  return (x.size() + 4 * x.rows() * own_width_) * dtype_size(values) +
         x[0] * options_.own_heads * x[1] * dtype_size(parameter_type(values));
}

// --- Embedding ---

void add_rows(Engine& engine, const Tensor& table, const Tensor& ids, Tensor& out, const VocabularySlice& slice) {
  if (out.dtype() == table.dtype()) return gather(engine, table, ids, out, true, slice);
  Tensor rows = engine.empty(out.shape(), table.dtype(), Use::activations);
  gather(engine, table, ids, rows, false, slice);
  scale_add(engine, 1, rows, 1, out);
}

Embedding::Embedding(const std::string& name, std::size_t vocabulary, std::size_t positions, std::size_t width,
                     double deviation)
    : name_(name), width_(width), slice_{0, vocabulary} {
  tokens_.name = name + ".tokens";
  tokens_.shape = {vocabulary, width};
  positions_.name = name + ".positions";
  positions_.shape = {positions, width};
  for (Parameter* table : {&tokens_, &positions_}) table->deviation = deviation;
  tokens_.overwrites = true;  // where a net's logits come from the same table
}

void Embedding::divide(std::size_t begin, std::size_t end) {
  tokens_.part = Part{tokens_.shape, 0, 1, begin, end};
  tokens_.shape = tokens_.part->shape();
  slice_.first = begin;
}

Shape Embedding::output(const Shape& ids) const {
  if (ids.axes() != 2 || ids[1] > positions_.shape[0]) {
    fail(ErrorKind::usage, "{}: ids {}; expected sequences of at most {} tokens", name_, to_text(ids), positions_.shape[0]);
  }
  return {ids[0], ids[1], width_};
}

Tensor Embedding::position_ids(Engine& engine, const Shape& ids, std::size_t first) {
  const Shape flat = {ids.size()};
  if (first == 0 && position_ids_ && position_ids_.shape() == ids) return position_ids_.reshaped(flat);
  std::vector<std::int32_t> positions(ids.size());
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int32_t>(first + i % ids[1]);
  Tensor made = engine.from(std::span<const std::int32_t>(positions), ids, Use::data);
  if (first == 0) position_ids_ = made;
  return made.reshaped(flat);
}

Tensor Embedding::forward(Pass& pass, const Tensor& ids) {
  const Shape shape = output(ids.shape());
  const std::size_t first = pass.cache == nullptr ? 0 : pass.cache->size();
  if (first + ids.shape()[1] > positions_.shape[0]) {
    fail(ErrorKind::usage, "{}: {} tokens after {}; expected at most {} positions", name_, ids.shape()[1], first,
         positions_.shape[0]);
  }
  Tensor flat = pass.engine.empty({ids.size(), width_}, tokens_.read().dtype(), Use::activations);
  gather(pass.engine, tokens_.read(), ids.reshaped({ids.size()}), flat, false, slice_);
  complete(pass.engine, flat);
  if (is_wide_) flat = converted(pass.engine, flat, parameter_type(flat.dtype()));
  add_rows(pass.engine, positions_.read(), position_ids(pass.engine, ids.shape(), first), flat);
  pass.keep(ids);
  return flat.reshaped(shape);
}

Tensor Embedding::backward(Pass& pass, const Tensor& dy) {
  const Tensor ids = pass.stash->take();
  const Tensor flat = dy.reshaped({ids.size(), width_});
  settle_gradients(pass.engine, std::array{&tokens_});
  scatter_add(pass.engine, flat, ids.reshaped({ids.size()}), tokens_.gradient, slice_);
  scatter_add(pass.engine, flat, position_ids(pass.engine, ids.shape(), 0), positions_.gradient);
  pass.announce(tokens_);
  pass.announce(positions_);
  return {};
}

void Embedding::add_parameters(std::vector<Parameter*>& all) { all.insert(all.end(), {&tokens_, &positions_}); }

std::uint64_t Embedding::stash_bytes(const Shape& ids, DType /*values*/) const { return ids.size() * sizeof(std::int32_t); }

}  // namespace bitloom::nn
