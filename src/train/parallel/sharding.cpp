#include "train/parallel/sharding.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/suggest.h"
#include "mpi/float_collectives.h"
#include "nn/ops.h"
#include "train/parallel/elements.h"
#include "train/parallel/gpu_comm.h"

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

nn::Tensor flat(const nn::Tensor& tensor) { return tensor.reshaped({tensor.size()}); }

// Columns of a matrix: where they are row by row, and one shard's after the other's.
void move_columns(const nn::Shape& shape, std::span<const std::size_t> counts, const nn::Tensor& by_row,
                  const nn::Tensor& by_shard, bool packs) {
  const std::size_t size = dtype_size(by_row.dtype());
  const std::size_t rows = shape[0];
  const std::size_t columns = shape.size() / rows;
  auto* const whole = static_cast<std::byte*>(by_row.data());
  auto* shard = static_cast<std::byte*>(by_shard.data());
  std::size_t first = 0;  // column
  for (const std::size_t count : counts) {
    const std::size_t bytes = count / rows * size;
    for (std::size_t row = 0; row < rows && bytes > 0; ++row, shard += bytes) {
      std::byte* const part = whole + (row * columns + first) * size;
      std::memcpy(packs ? shard : part, packs ? part : shard, bytes);
    }
    first += count / rows;
  }
}

}  // namespace

std::vector<std::string> shard_level_names() { return names_of(levels); }

ShardLevel shard_level_named(std::string_view name) { return find_named(levels, name, marked_field("shard")).level; }

Sharding::Sharding(nn::Engine& engine, mpi::Comm& group, std::vector<std::vector<nn::Parameter*>> blocks,
                   std::span<nn::Parameter* const> apart, const Options& options)
    : engine_(engine), group_(group), options_(options) {
  const char* const level = levels[static_cast<std::size_t>(options.level)].name;
  if (options.master_weights == nn::MasterWeights::none) {
    fail_field(ErrorKind::usage, "shard", "{} with `master_weights` none; expected `master_weights` f32", level);
  }
  if (engine.device().kind == nn::Device::Kind::cuda) {
    if (options.cuts_matrices) fail(ErrorKind::internal, "sharding: matrices on a GPU are not cut into matrices");
    gpus_ = std::make_unique<GpuComm>(engine, group);
  }
  make_units(blocks, apart);
  for (const auto& unit : units_) {
    divide(*unit);
    make_gradient(*unit);
  }
  std::map<const Shard*, Unit*> unit_of;
  for (const auto& unit : units_) {
    for (const Shard* shard : unit->shards) unit_of[shard] = unit.get();
  }
  for (const auto& shard : shards_) {
    const auto unit = unit_of.find(shard.get());
    make(*shard, unit == unit_of.end() ? nullptr : unit->second);
  }
}

Sharding::~Sharding() = default;

DType Sharding::gradient_type() const { return nn::parameter_type(options_.values); }

void Sharding::make_units(const std::vector<std::vector<nn::Parameter*>>& blocks, std::span<nn::Parameter* const> apart) {
  std::map<const nn::Parameter*, std::size_t> uses;
  for (const auto& block : blocks) {
    for (const nn::Parameter* parameter : block) ++uses[parameter];
  }
  std::map<const nn::Parameter*, Unit*> shared;
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    std::vector<Unit*>& units = blocks_.emplace_back();
    // Where tensor ranks have parts, what all of them have is divided alike everywhere.
    std::map<std::pair<DType, bool>, Unit*> by_kind;
    const auto add_unit = [&] {
      Unit* const unit = units_.emplace_back(std::make_unique<Unit>()).get();
      unit->first_block = block;
      units.push_back(unit);
      return unit;
    };
    for (nn::Parameter* parameter : blocks[block]) {
      if (const auto found = shared.find(parameter); found != shared.end()) {
        if (found->second != nullptr) units.push_back(found->second);
        continue;
      }
      Shard* const shard = shards_.emplace_back(std::make_unique<Shard>()).get();
      shard->whole = parameter;
      const bool is_shared = uses[parameter] > 1 || std::ranges::count(apart, parameter) > 0;
      const bool is_matrix = options_.cuts_matrices && parameter->is_block_matrix();
      Unit* unit = nullptr;
      if (!parameter->is_frozen) {
        Unit*& of_kind = by_kind[{parameter->reads_values ? options_.values : gradient_type(), parameter->part.has_value()}];
        const bool is_alone = is_shared || is_matrix;
        if (is_alone || of_kind == nullptr) unit = add_unit();
        if (!is_alone) unit = of_kind = unit == nullptr ? of_kind : unit;
        unit->is_matrix = is_matrix;
        unit->is_by_columns = is_matrix && group_.size() > 1 &&
                              is_cut_by_columns(parameter->shape[0], parameter->shape.size() / parameter->shape[0]);
        shard->place = unit->size;
        unit->size += parameter->shape.size();
        unit->shards.push_back(shard);
      }
      if (is_shared) shared[parameter] = unit;
    }
  }
}

// Chunks c of all n, one parameter's after the other's, with c in [n r / R, n (r + 1) / R) are rank r's.
std::vector<std::vector<std::size_t>> divide_parameters(std::span<const std::size_t> sizes, std::size_t ranks) {
  const auto chunks_of = [](std::size_t size) { return (size + nn::squares_chunk - 1) / nn::squares_chunk; };
  std::size_t all = 0;
  for (const std::size_t size : sizes) all += chunks_of(size);
  std::vector<std::vector<std::size_t>> counts;
  std::size_t first = 0;  // chunk of the parameter
  for (const std::size_t size : sizes) {
    const std::size_t chunks = chunks_of(size);
    std::vector<std::size_t>& own = counts.emplace_back();
    std::size_t begin = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::size_t until = std::clamp(all * (rank + 1) / ranks, first, first + chunks) - first;
      const std::size_t end = std::min(size, until * nn::squares_chunk);
      own.push_back(end - begin);
      begin = end;
    }
    first += chunks;
  }
  return counts;
}

std::vector<std::size_t> divide_matrix(std::size_t rows, std::size_t columns, std::size_t ranks) {
  const auto [shorter, longer] = std::minmax(rows, columns);
  std::vector<std::size_t> counts;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    counts.push_back((longer * (rank + 1) / ranks - longer * rank / ranks) * shorter);
  }
  return counts;
}

nn::Tensor Sharding::packed(const Unit& unit, const nn::Tensor& rows) const {
  engine_.synchronize();
  nn::Tensor shards = engine_.empty({rows.size()}, rows.dtype(), nn::Use::workspace);
  move_columns(unit.shards.front()->whole->shape, unit.counts, rows, shards, true);
  return shards;
}

void Sharding::unpack(const Unit& unit, const nn::Tensor& shards, nn::Tensor& rows) const {
  engine_.synchronize();
  move_columns(unit.shards.front()->whole->shape, unit.counts, rows, shards, false);
}

void Sharding::divide(Unit& unit) const {
  std::vector<std::size_t> sizes;
  for (const Shard* shard : unit.shards) sizes.push_back(shard->whole->shape.size());
  const auto own = static_cast<std::size_t>(group_.rank());
  unit.counts.assign(static_cast<std::size_t>(group_.size()), 0);
  std::vector<std::vector<std::size_t>> counts;
  if (unit.is_matrix) {
    const std::size_t rows = unit.shards.front()->whole->shape[0];
    counts.push_back(divide_matrix(rows, unit.size / rows, unit.counts.size()));
  } else {
    counts = divide_parameters(sizes, unit.counts.size());
  }
  for (std::size_t i = 0; i < counts.size(); ++i) {
    for (std::size_t rank = 0; rank < unit.counts.size(); ++rank) unit.counts[rank] += counts[i][rank];
    Shard& shard = *unit.shards[i];
    shard.begin = std::accumulate(counts[i].begin(), counts[i].begin() + group_.rank(), std::size_t{0});
    shard.count = counts[i][own];
  }
  unit.begin = std::accumulate(unit.counts.begin(), unit.counts.begin() + group_.rank(), std::size_t{0});
  unit.count = unit.counts[own];
}

void Sharding::make_gradient(Unit& unit) {
  if (options_.level == ShardLevel::optimizer) {
    unit.gradient = engine_.zeros({unit.size}, gradient_type(), nn::Use::gradients);
    unit.own_gradient = unit.gradient.slice(unit.begin, unit.begin + unit.count);
  }
  if (options_.level != ShardLevel::optimizer || unit.is_by_columns) {
    unit.own_gradient = engine_.zeros({unit.count}, gradient_type(), nn::Use::gradients);
  }
}

void Sharding::make(Shard& shard, Unit* unit) {
  nn::Parameter& whole = *shard.whole;
  nn::initialise(engine_, std::array{&whole}, options_.values, options_.seed, options_.master_weights);
  if (unit == nullptr) {
    own_.push_back(&whole);
    by_own_[&whole] = &shard;
    return;
  }
  shard.part = std::make_unique<nn::Parameter>();
  nn::Parameter& part = *shard.part;
  part.name = whole.name;
  part.shape = {shard.count};
  part.part = whole.part;
  part.begin = shard.begin;
  if (unit->is_by_columns) {
    const std::size_t rows = whole.shape[0];
    const nn::Shape matrix{rows, whole.shape.size() / rows};
    part.part = nn::Part{matrix, 1, 1, shard.begin / rows, (shard.begin + shard.count) / rows};
    part.begin = 0;
  }
  part.decays = whole.decays;
  part.reads_values = whole.reads_values;
  part.rate = whole.rate;
  part.block = whole.block;
  const std::size_t end = shard.begin + shard.count;
  const auto slice = [&](const nn::Tensor& tensor) {
    return (unit->is_by_columns ? packed(*unit, tensor) : flat(tensor)).slice(shard.begin, end);
  };
  const auto copied = [&](const nn::Tensor& tensor, nn::Use use) {
    nn::Tensor own = engine_.empty({shard.count}, tensor.dtype(), use);
    nn::scale_add(engine_, 1, slice(tensor), 0, own);
    return own;
  };
  const bool has_copy = whole.copy.dtype() != whole.value.dtype();
  const bool keeps_values = options_.level != ShardLevel::parameters;
  const bool is_slice = keeps_values && !unit->is_by_columns;  // of what is kept
  if (keeps_values) {
    if (!unit->values) unit->values = engine_.empty({unit->size}, whole.read().dtype(), nn::Use::parameters);
    nn::Tensor kept = unit->values.slice(shard.place, shard.place + whole.shape.size()).reshaped(whole.shape);
    nn::scale_add(engine_, 1, whole.read(), 0, kept);
    whole.copy = kept;
    if (!has_copy) whole.value = kept;
  }
  // Masters of 16-bit values go with the optimiser.
  part.value = is_slice && !has_copy ? slice(whole.value) : copied(whole.value, nn::Use::parameters);
  part.copy = !has_copy ? part.value : is_slice ? slice(whole.copy) : copied(whole.copy, nn::Use::parameters);
  if (has_copy || !keeps_values) whole.value = {};
  if (!keeps_values) whole.copy = {};
  whole.gradient = {};
  if (options_.level == ShardLevel::optimizer) {
    whole.gradient = unit->gradient.slice(shard.place, shard.place + whole.shape.size()).reshaped(whole.shape);
  }
  const std::size_t place = std::clamp(shard.place + shard.begin, unit->begin, unit->begin + unit->count) - unit->begin;
  part.gradient = unit->own_gradient.slice(place, place + shard.count);
  own_.push_back(&part);
  by_own_[&part] = &shard;
}

Holding Sharding::holding(const nn::Parameter& own) const {
  const Shard& shard = *by_own_.at(&own);
  Holding holding = holding_of(*shard.whole);
  if (shard.part == nullptr) return holding;
  holding.numbers = shard.part->numbers();
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
  for (const auto& unit : units_) unit->has_gradient = false;
}

void Sharding::begin_passes(std::span<const std::size_t> blocks) {
  order_.clear();
  std::ranges::copy_if(blocks, std::back_inserter(order_), [&](std::size_t block) { return !blocks_[block].empty(); });
}

bool Sharding::is_next(const Unit& unit) const {
  return !order_.empty() && std::ranges::count(blocks_[order_.front()], &unit) > 0;
}

void Sharding::enter(std::size_t block, BlockPass pass) {
  const std::vector<Unit*>& units = blocks_[block];
  if (units.empty()) return;
  if (order_.empty() || order_.front() != block) {
    fail(ErrorKind::internal, "sharding: a pass enters block {}; expected {}", block,
         order_.empty() ? "none" : fmt::format("block {}", order_.front()));
  }
  order_.pop_front();
  finish_reductions(1);
  if (options_.level == ShardLevel::parameters) {
    for (Unit* unit : units) gather(*unit);
    for (Unit* unit : units) finish_gather(*unit);
    if (!order_.empty()) {
      for (Unit* unit : blocks_[order_.front()]) gather(*unit);
    }
  }
  if (pass == BlockPass::forward || options_.level < ShardLevel::gradients) return;
  for (Unit* unit : units) begin_gradient(*unit);
}

void Sharding::leave(std::size_t block, BlockPass pass) {
  const bool reduces = options_.level == ShardLevel::optimizer ? pass == BlockPass::last_backward : pass != BlockPass::forward;
  std::vector<Reduction> reductions;
  for (Unit* unit : blocks_[block]) {
    if (reduces && unit->first_block == block) reductions.push_back(reduce(*unit, pass == BlockPass::last_backward));
    if (options_.level == ShardLevel::parameters && !is_next(*unit)) release(*unit);
  }
  if (!reductions.empty()) reductions_.push_back(std::move(reductions));
}

// Nothing where it is whole or on its way, because the block before has it.
void Sharding::gather(Unit& unit) {
  if (unit.values) return;
  unit.values = engine_.empty({unit.size}, unit.shards.front()->part->read().dtype(), nn::Use::parameters);
  for (const Shard* shard : unit.shards) {
    const std::size_t begin = shard->place + shard->begin;
    nn::Tensor own = unit.values.slice(begin, begin + shard->count);
    nn::scale_add(engine_, 1, shard->part->read(), 0, own);
  }
  unit.is_packed = unit.is_by_columns;
  start_gather(unit, unit.values);
}

void Sharding::start_gather(Unit& unit, const nn::Tensor& values) {
  if (gpus_) return gpus_->all_gather(on_device(values), unit.counts);
  engine_.synchronize();
  with_elements(values, [&](auto elements) { unit.gathering = mpi::start_all_gather(group_, elements, unit.counts); });
}

void Sharding::finish_gather(Unit& unit) {
  unit.gathering.wait();
  if (std::exchange(unit.is_packed, false)) {
    const nn::Tensor shards = unit.values;
    unit.values = engine_.empty({unit.size}, shards.dtype(), nn::Use::parameters);
    unpack(unit, shards, unit.values);
  }
  for (const Shard* shard : unit.shards) {
    nn::Parameter& whole = *shard->whole;
    whole.value = whole.copy = unit.values.slice(shard->place, shard->place + whole.shape.size()).reshaped(whole.shape);
  }
}

void Sharding::release(Unit& unit) {
  for (const Shard* shard : unit.shards) shard->whole->value = shard->whole->copy = {};
  unit.values = {};
}

void Sharding::begin_gradient(Unit& unit) {
  if (unit.gradient) return;  // of a block above, which shares it
  unit.gradient = engine_.empty({unit.size}, gradient_type(), nn::Use::gradients);
  for (const Shard* shard : unit.shards) {
    nn::Parameter& whole = *shard->whole;
    whole.gradient = unit.gradient.slice(shard->place, shard->place + whole.shape.size()).reshaped(whole.shape);
    nn::clear_gradients(engine_, std::array{&whole});
  }
}

Sharding::Reduction Sharding::reduce(Unit& unit, bool is_last) {
  for (const Shard* shard : unit.shards) nn::settle_gradients(engine_, std::array{shard->whole});
  Reduction reduction{&unit, unit.is_by_columns ? packed(unit, unit.gradient) : unit.gradient, {}, is_last};
  if (gpus_) {
    const nn::Tensor own = unit.gradient.slice(unit.begin, unit.begin + unit.count);
    gpus_->reduce_scatter(on_device(unit.gradient), on_device(own), unit.counts);
  } else {
    engine_.synchronize();
    with_elements(reduction.gradient, [&](auto elements) {
      using T = typename decltype(elements)::value_type;
      const auto own = elements.subspan(unit.begin, unit.count);
      reduction.sum = mpi::start_reduce_scatter(group_, std::span<const T>(elements), own, unit.counts);
    });
  }
  if (options_.level == ShardLevel::optimizer) return reduction;
  for (const Shard* shard : unit.shards) shard->whole->gradient = {};
  unit.gradient = {};
  return reduction;
}

void Sharding::finish_reductions(std::size_t blocks) {
  while (reductions_.size() > blocks) {
    for (Reduction& reduction : reductions_.front()) {
      reduction.sum.wait();
      Unit& unit = *reduction.unit;
      if (options_.level != ShardLevel::optimizer || unit.is_by_columns) {
        // In the order of micro-batches, which is that in which sums were started.
        const nn::Tensor sum = reduction.gradient.slice(unit.begin, unit.begin + unit.count);
        if (std::exchange(unit.has_gradient, true)) {
          nn::add(engine_, sum, unit.own_gradient, unit.own_gradient);
        } else {
          nn::scale_add(engine_, 1, sum, 0, unit.own_gradient);
        }
      }
      if (reduction.is_last) settle(unit);
    }
    reductions_.pop_front();
  }
}

// Nothing more is added to the unit's own gradient.
void Sharding::settle(Unit& unit) {
  if (copies_ != nullptr && copies_gpus_ == nullptr && unit.count > 0) {
    engine_.synchronize();
    with_elements(unit.own_gradient, [&](auto elements) { unit.copies_sum = mpi::start_sum(*copies_, elements); });
  }
  if (!on_gradient_) return;
  for (const Shard* shard : unit.shards) on_gradient_(*shard->part);
}

void Sharding::sum_over(mpi::Comm& copies) {
  copies_ = &copies;
  if (gpus_) copies_gpus_ = std::make_unique<GpuComm>(engine_, copies);
}

void Sharding::reduce_gradients() {
  finish_reductions(0);
  for (const auto& unit : units_) unit->copies_sum.wait();
  if (gpus_) gpus_->wait();
  if (!copies_gpus_) return;
  std::vector<mpi::DeviceComm::Values> values;
  for (const auto& unit : units_) values.push_back(on_device(unit->own_gradient));
  copies_gpus_->sum(values);
  copies_gpus_->wait();
}

void Sharding::publish() {
  if (options_.level == ShardLevel::parameters) return;
  for (const auto& unit : units_) {
    if (!unit->is_by_columns) start_gather(*unit, unit->values);
  }
  // Columns of one matrix are on their way while those of the one before are put in their places.
  Unit* before = nullptr;
  nn::Tensor columns_before;
  const auto finish = [&] {
    if (before == nullptr) return;
    before->gathering.wait();
    unpack(*before, columns_before, before->values);
  };
  for (const auto& unit : units_) {
    if (!unit->is_by_columns) continue;
    nn::Tensor columns = engine_.empty({unit->size}, unit->values.dtype(), nn::Use::workspace);
    nn::Tensor own = columns.slice(unit->begin, unit->begin + unit->count);
    nn::scale_add(engine_, 1, unit->shards.front()->part->read(), 0, own);
    start_gather(*unit, columns);
    finish();
    before = unit.get();
    columns_before = std::move(columns);
  }
  finish();
  for (const auto& unit : units_) unit->gathering.wait();
  if (gpus_) gpus_->wait();
}

}  // namespace bitloom::train
