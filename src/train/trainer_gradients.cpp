// Gradients of a step: how they are summed over processes, compressed, scaled and measured.
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/random.h"
#include "train/gradient_sum.h"
#include "train/trainer.h"

namespace bitloom::train {

// Matrices of residual blocks go by factors, where that saves bytes; tables of tokens and what the loss reads, gains and biases
// as they are (Ramesh et al. 2021, appendices D, 2, and E).
void Trainer::make_power_sgd(const Layout& layout) {
  mpi::Comm& group = sharding_ ? grid_->copies() : grid_->data();
  const auto shards = static_cast<std::size_t>(sharding_ ? grid_->shards().size() : 1);
  const int shard = sharding_ ? grid_->shards().rank() : 0;
  // A residual block's are sent together, as soon as the backward pass has left it; the others, of which the token table is
  // among the last, after all blocks' (Ramesh et al. 2021, appendix E.2: "opportunities for overlap").
  std::size_t blocks = 0;
  for (const nn::Parameter* moved : learned(moved_)) blocks = std::max(blocks, moved->block ? *moved->block + 1 : 0);
  std::vector<PowerSgdShape> shapes;
  for (const nn::Parameter* moved : learned(moved_)) {
    power_sgd_number_[moved] = shapes.size();
    const nn::Parameter& whole = sharding_ ? *sharding_->whole(*moved) : *moved;
    if (!whole.is_block_matrix()) {
      shapes.push_back(power_sgd_shape(moved->name, 1, moved->shape.size(), layout.compress_rank));
      shapes.back().part = moved->block ? blocks - 1 - *moved->block : blocks;
      continue;
    }
    const std::size_t rows = whole.shape[0];
    const std::size_t columns = whole.shape.size() / rows;
    shapes.push_back(power_sgd_shape_of_shard(moved->name, rows, columns, layout.compress_rank, shards, moved->shape.size()));
    shapes.back().part = blocks - 1 - *moved->block;
  }
  PowerSgdOptions compression = layout.compression;
  compression.seed = shard == 0 ? options_.seed : mix64(options_.seed + static_cast<std::uint64_t>(shard));
  power_sgd_.emplace(engine_, group, std::move(shapes), compression);
  if (sharding_) sharding_->on_gradient([this](nn::Parameter& own) { announce(own); });
}

std::vector<double> Trainer::scales_of_gradients() const {
  std::vector<double> scales(power_sgd_number_.size());
  for (const auto& [moved, number] : power_sgd_number_) {
    scales[number] = scales_ && moved->block ? scales_->of(*moved->block) : loss_scale_;
  }
  return scales;
}

void Trainer::announce(const nn::Parameter& moved) { power_sgd_->announce(power_sgd_number_.at(&moved), moved.gradient); }

void Trainer::make_norm() {
  std::vector<GradientNorm::Part> parts;
  for (const nn::Parameter* moved : learned(moved_)) {
    if (moved->shape.size() == 0) continue;
    const nn::Parameter* whole = sharding_ ? sharding_->whole(*moved) : moved;
    const std::size_t begin = sharding_ ? sharding_->holding(*moved).numbers.begin : 0;
    parts.push_back({whole, &moved->gradient, begin, pipeline_->is_counted_here(*whole)});
  }
  norm_.emplace(engine_, learned_, std::move(parts), *grid_, sharding_ ? &grid_->shards() : nullptr);
}

// A replica of the paper has one micro-batch of a step: as many make a step here, whichever processes pass them.
void Trainer::make_gradient_scales() {
  std::set<std::size_t> blocks;
  for (const nn::Parameter* parameter : learned_) {
    if (parameter->block) blocks.insert(*parameter->block);
  }
  scales_.emplace(std::vector<std::size_t>(blocks.begin(), blocks.end()), options_.micro_batches, *options_.block_scales);
  branch_scales_ = {options_.values, [this](std::size_t block) { return scales_->of(block) / loss_scale_; }};
}

void Trainer::begin_gradients() {
  if (sharding_) sharding_->begin_step();
  if (!sharding_ || sharding_->level() == ShardLevel::optimizer) nn::clear_gradients(engine_, parameters_);
}

void Trainer::sum_gradients(StepReport& report) {
  if (!buckets_ && !sharding_) nn::settle_gradients(engine_, parameters_);
  sum_over_data(report);
  // After that, as where gradients are sharded: the same bits.
  pipeline_->sum_shared_gradients();
}

std::vector<nn::Tensor> Trainer::moved_gradients() const {
  std::vector<nn::Tensor> gradients;
  for (const nn::Parameter* moved : learned(moved_)) gradients.push_back(moved->gradient);
  return gradients;
}

void Trainer::sum_over_data(StepReport& report) {
  const EventSpan span(&log_, EventKind::reduce, 0, 0, &engine_);
  if (buckets_) return buckets_->finish();
  if (sharding_) sharding_->reduce_gradients();
  if (!power_sgd_ && (sum_ == nullptr || sharding_)) return;
  std::vector<nn::Tensor> tensors = moved_gradients();
  if (power_sgd_) {
    const PowerSgdReport factors = power_sgd_->finish(tensors);
    report.narrowed = factors.narrowed;
    report.clamped = factors.clamped;
  } else {
    sum_->sum(tensors);
  }
}

Trainer::Settled Trainer::settle_norm() {
  if (!scales_) return {norm_->norm(1 / loss_scale_)};
  const std::vector<double> squares = norm_->squares();
  std::set<std::size_t> skipped;
  for (std::size_t i = 0; i < learned_.size(); ++i) {
    if (learned_[i]->block && !std::isfinite(squares[i])) skipped.insert(*learned_[i]->block);
  }
  double sum = 0;
  for (std::size_t i = 0; i < learned_.size(); ++i) {
    const std::optional<std::size_t>& block = learned_[i]->block;
    if (block && skipped.contains(*block)) continue;
    const double scale = block ? scales_->of(*block) : loss_scale_;
    sum += squares[i] / (scale * scale);
  }
  return {std::sqrt(sum), std::move(skipped)};
}

void Trainer::settle_power_sgd(bool is_skipped, const std::set<std::size_t>& skipped_blocks) {
  const std::vector<nn::Parameter*> moved = learned(moved_);
  power_sgd_->settle(moved_gradients(), [&](std::size_t shape) {
    const std::optional<std::size_t>& block = moved[shape]->block;
    return is_skipped || (block && skipped_blocks.contains(*block));
  });
}

}  // namespace bitloom::train
