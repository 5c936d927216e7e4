#include "train/parallel/sharding.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/field.h"
#include "core/suggest.h"
#include "mpi/float_collectives.h"
#include "nn/ops.h"

namespace bitloom::train {
namespace {

struct NamedLevel {
  const char* name;
  ShardLevel level;
};
constexpr NamedLevel levels[] = {{"none", ShardLevel::none},
                                 {"optimizer", ShardLevel::optimizer},
                                 {"gradients", ShardLevel::gradients},
                                 {"parameters", ShardLevel::parameters}};

// Calls f with the elements of a tensor of any floating type.
template <typename F>
void on_elements(const nn::Tensor& tensor, F&& f) {
  switch (tensor.dtype()) {
    case DType::f32: return f(tensor.as<float>());
    case DType::f64: return f(tensor.as<double>());
    case DType::bf16: return f(tensor.as<bf16>());
    case DType::f16: return f(tensor.as<f16>());
    default: fail(ErrorKind::internal, "sharding: {}; expected floats", nn::to_text(tensor));
  }
}

nn::Tensor flat(const nn::Tensor& tensor) { return tensor.reshaped({tensor.size()}); }

}  // namespace

std::vector<std::string> shard_level_names() { return names_of(levels); }

ShardLevel shard_level_named(std::string_view name) { return find_named(levels, name, marked_field("shard")).level; }

Sharding::Sharding(nn::Engine& engine, mpi::Comm& group, std::vector<std::vector<nn::Parameter*>> blocks,
                   std::span<nn::Parameter* const> apart, const Options& options)
    : engine_(engine), group_(group), options_(options) {
  const char* const level = levels[static_cast<std::size_t>(options.level)].name;
  if (engine.device().kind != nn::Device::Kind::cpu) {
    fail_field(ErrorKind::usage, "shard", "{}; expected none on GPUs, which do not have it yet", level);
  }
  if (options.master_weights == nn::MasterWeights::none) {
    fail_field(ErrorKind::usage, "shard", "{} with `master_weights` none; expected `master_weights` f32", level);
  }
  std::map<const nn::Parameter*, Shard*> known;
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    std::vector<Shard*>& used = blocks_.emplace_back();
    std::vector<Shard*> fresh;
    for (nn::Parameter* parameter : blocks[block]) {
      Shard*& shard = known[parameter];
      if (shard == nullptr) {
        shard = shards_.emplace_back(std::make_unique<Shard>()).get();
        shard->whole = parameter;
        shard->first_block = block;
        if (std::ranges::count(apart, parameter) == 0) {
          fresh.push_back(shard);
        } else {
          divide({shard});
        }
      }
      used.push_back(shard);
    }
    divide(fresh);
  }
  for (const auto& shard : shards_) make(*shard);
}

// Chunks c of the block's parameters, one after the other, with c in [n r / R, n (r + 1) / R) are rank r's.
void Sharding::divide(const std::vector<Shard*>& shards) const {
  const auto chunks_of = [](const Shard* shard) {
    const std::size_t size = shard->whole->is_frozen ? 0 : shard->whole->shape.size();
    return (size + nn::squares_chunk - 1) / nn::squares_chunk;
  };
  std::size_t all = 0;
  for (const Shard* shard : shards) all += chunks_of(shard);
  const auto ranks = static_cast<std::size_t>(group_.size());
  std::size_t first = 0;  // chunk of the block
  for (Shard* shard : shards) {
    const std::size_t size = shard->whole->shape.size();
    const std::size_t chunks = chunks_of(shard);
    std::size_t begin = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::size_t until = std::clamp(all * (rank + 1) / ranks, first, first + chunks) - first;
      const std::size_t end = std::min(size, until * nn::squares_chunk);
      shard->counts.push_back(end - begin);
      if (rank == static_cast<std::size_t>(group_.rank())) {
        shard->begin = begin;
        shard->count = end - begin;
      }
      begin = end;
    }
    first += chunks;
  }
}

void Sharding::make(Shard& shard) {
  nn::Parameter& whole = *shard.whole;
  nn::initialise(engine_, std::array{&whole}, options_.values, options_.seed, options_.master_weights);
  if (whole.is_frozen) {
    own_.push_back(&whole);
    by_own_[&whole] = &shard;
    return;
  }
  shard.part = std::make_unique<nn::Parameter>();
  nn::Parameter& part = *shard.part;
  part.name = whole.name;
  part.shape = {shard.count};
  part.decays = whole.decays;
  part.reads_values = whole.reads_values;
  part.rate = whole.rate;
  part.block = whole.block;
  const std::size_t end = shard.begin + shard.count;
  const auto slice = [&](const nn::Tensor& tensor) { return flat(tensor).slice(shard.begin, end); };
  const auto copied = [&](const nn::Tensor& tensor, nn::Use use) {
    nn::Tensor own = engine_.empty({shard.count}, tensor.dtype(), use);
    nn::scale_add(engine_, 1, slice(tensor), 0, own);
    return own;
  };
  const bool has_copy = whole.copy.dtype() != whole.value.dtype();
  const bool keeps_values = options_.level != ShardLevel::parameters;
  // Masters of 16-bit values go with the optimiser.
  part.value = keeps_values && !has_copy ? slice(whole.value) : copied(whole.value, nn::Use::parameters);
  part.copy = !has_copy ? part.value : keeps_values ? slice(whole.copy) : copied(whole.copy, nn::Use::parameters);
  if (options_.level == ShardLevel::optimizer) {
    part.gradient = slice(whole.gradient);
  } else {
    part.gradient = engine_.zeros({shard.count}, whole.gradient.dtype(), nn::Use::gradients);
    whole.gradient = {};
  }
  if (has_copy) whole.value = {};
  if (!keeps_values) whole.value = whole.copy = {};
  own_.push_back(&part);
  by_own_[&part] = &shard;
}

Holding Sharding::holding(const nn::Parameter& own) const {
  const Shard& shard = *by_own_.at(&own);
  Holding holding = holding_of(*shard.whole);
  if (shard.part == nullptr) return holding;
  holding.numbers.begin = shard.begin;
  holding.count = shard.count;
  return holding;
}

nn::Parameter& Sharding::own(const nn::Parameter& whole) const {
  for (const auto& shard : shards_) {
    if (shard->whole == &whole) return shard->part == nullptr ? *shard->whole : *shard->part;
  }
  fail(ErrorKind::internal, "sharding: '{}' is not divided here", whole.name);
}

const nn::Parameter* Sharding::whole(const nn::Parameter& own) const { return by_own_.at(&own)->whole; }

void Sharding::begin_step() {
  if (options_.level == ShardLevel::optimizer) return;
  for (const auto& shard : shards_) {
    shard->has_gradient = false;
    if (shard->part != nullptr) nn::fill(engine_, shard->part->gradient, 0);
  }
}

void Sharding::enter(std::size_t block, bool backward) {
  for (Shard* shard : blocks_[block]) {
    if (shard->part == nullptr) continue;
    if (options_.level == ShardLevel::parameters) gather(*shard);
    if (backward && options_.level >= ShardLevel::gradients) begin_gradient(*shard);
  }
}

void Sharding::leave(std::size_t block, bool backward) {
  for (Shard* shard : blocks_[block]) {
    if (shard->part == nullptr) continue;
    if (backward && options_.level >= ShardLevel::gradients && shard->first_block == block) reduce(*shard);
    if (options_.level == ShardLevel::parameters) release(*shard);
  }
}

void Sharding::gather(Shard& shard) {
  nn::Parameter& whole = *shard.whole;
  const nn::Tensor& part = shard.part->read();
  nn::Tensor values = engine_.empty(whole.shape, part.dtype(), nn::Use::parameters);
  nn::Tensor own = flat(values).slice(shard.begin, shard.begin + shard.count);
  nn::scale_add(engine_, 1, part, 0, own);
  engine_.synchronize();
  on_elements(values, [&](auto elements) { mpi::all_gather(group_, elements, shard.counts); });
  whole.value = whole.copy = values;
}

void Sharding::release(Shard& shard) { shard.whole->value = shard.whole->copy = {}; }

void Sharding::begin_gradient(Shard& shard) {
  nn::Parameter& whole = *shard.whole;
  if (whole.gradient) return;  // of a block above, which shares it
  whole.gradient = engine_.empty(whole.shape, shard.part->gradient.dtype(), nn::Use::gradients);
  nn::clear_gradients(engine_, std::array{&whole});
}

void Sharding::reduce_into(const Shard& shard, const nn::Tensor& sum) {
  engine_.synchronize();
  on_elements(shard.whole->gradient, [&](auto elements) {
    using T = typename decltype(elements)::value_type;
    mpi::reduce_scatter_in_order(group_, std::span<const T>(elements), sum.as<T>(), shard.counts);
  });
}

void Sharding::reduce(Shard& shard) {
  nn::Parameter& whole = *shard.whole;
  nn::Tensor& part = shard.part->gradient;
  nn::settle_gradients(engine_, std::array{&whole});
  nn::Tensor sum = shard.has_gradient ? engine_.empty(part.shape(), part.dtype(), nn::Use::gradients) : part;
  reduce_into(shard, sum);
  if (shard.has_gradient) nn::add(engine_, sum, part, part);
  shard.has_gradient = true;
  whole.gradient = {};
}

void Sharding::reduce_gradients() {
  if (options_.level != ShardLevel::optimizer) return;
  for (const auto& shard : shards_) {
    if (shard->part != nullptr) reduce_into(*shard, shard->part->gradient);
  }
}

void Sharding::publish() {
  if (options_.level == ShardLevel::parameters) return;
  for (const auto& shard : shards_) {
    if (shard->part == nullptr) continue;
    nn::Tensor values = shard->whole->read();
    nn::Tensor own = flat(values).slice(shard->begin, shard->begin + shard->count);
    const nn::Tensor& part = shard->part->read();
    // Averages that stand in for values have memory of their own.
    if (part.data() != own.data()) nn::scale_add(engine_, 1, part, 0, own);
    engine_.synchronize();
    on_elements(values, [&](auto elements) { mpi::all_gather(group_, elements, shard->counts); });
  }
}

}  // namespace bitloom::train
