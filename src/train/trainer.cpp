#include "train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/clock.h"
#include "core/error.h"
#include "core/field.h"
#include "mpi/float_collectives.h"
#include "train/gradient_sum.h"
#include "train/muon.h"
#include "train/parallel/layer_costs.h"

namespace bitloom::train {
namespace {

// Steps between comparisons of what several processes have.
constexpr std::uint64_t compare_every = 100;

}  // namespace

void check(const TrainOptions& options) {
  check(options.rate);
  check(options.optimizer);
  if (options.master_weights == nn::MasterWeights::none) {
    if (options.values != DType::bf16) {
      fail_field(ErrorKind::usage, "master_weights", "none with `dtype` {}; expected `dtype` bf16",
                 nn::to_text(options.values));
    }
    if (options.optimizer.rule == "muon") {
      fail_field(ErrorKind::usage, "master_weights", "none with `optimizer` muon; expected f32");
    }
    if (options.optimizer.average > 0) {
      fail_field(ErrorKind::usage, "master_weights", "none with `average` {}; expected `average` 0", options.optimizer.average);
    }
  }
  if (options.micro_batches == 0) fail(ErrorKind::usage, "micro_batches: 0; expected at least 1");
  if (options.loss_scale && !(options.loss_scale->first >= 1 && options.loss_scale->first <= options.loss_scale->largest)) {
    fail(ErrorKind::usage, "loss_scale: {}; expected 1 to {}", options.loss_scale->first, options.loss_scale->largest);
  }
  if (options.block_scales && options.values != DType::f16) {
    fail_field(ErrorKind::usage, "loss_scale", "blocks with `dtype` {}; expected `dtype` f16, whose range is small",
               nn::to_text(options.values));
  }
}

namespace {

// Cuts the net for the grid's stages.
PipelineOptions pipeline_options(nn::Engine& engine, Task& task, const TrainOptions& options, const Layout& layout,
                                 mpi::Grid& grid) {
  PipelineOptions pipeline;
  pipeline.schedule = layout.schedule;
  pipeline.recompute = layout.recompute_stages;
  pipeline.input = task.input_shape();
  pipeline.input_type = task.input_type();
  pipeline.values = options.values;
  pipeline.partition = layout.partition;
  if (!pipeline.partition.empty()) return pipeline;
  const std::size_t parts = layout.chunks * static_cast<std::size_t>(grid.shape().pipeline);
  if (parts == 1) {
    pipeline.partition = {{0, task.net().size()}};
    return pipeline;
  }
  std::vector<double> costs;
  if (layout.measures_costs) {
    // By all at once, as they will compute; where tensor ranks have parts of layers they need one another.
    costs = measured_costs(engine, task, options.values);
    grid.world().broadcast(std::span(costs));
  } else {
    costs = estimated_costs(task.net(), pipeline.input, task.loss_cost());
  }
  pipeline.partition = partition(costs, parts);
  return pipeline;
}

// Throws Error(usage) where gradients cannot be compressed.
void check_compression(nn::Engine& engine, const TrainOptions& options, const Layout& layout, mpi::Grid& grid) {
  const auto refuse = [&](const std::string& found, const char* expected) {
    fail_field(ErrorKind::usage, "compress_rank", "{} with {}; expected {}", layout.compress_rank, found, expected);
  };
  const auto shard_ranks = static_cast<std::size_t>(grid.is_divided() ? grid.shards().size() : 0);
  const std::string reason =
      reason_against_compression(layout.compress_rank, grid.shape(), layout.shard, shard_ranks, layout.compression.warm_start);
  if (!reason.empty()) fail(ErrorKind::usage, "{}", reason);
  if (engine.device().kind != nn::Device::Kind::cpu) refuse("`device` cuda", "`device` cpu");
  if (options.values == DType::f64) refuse("`dtype` f64", "`dtype` f32, bf16 or f16");
}

}  // namespace

bool can_start_warm(ShardLevel shard, std::size_t shard_ranks) { return shard == ShardLevel::none || shard_ranks == 1; }

std::string reason_against_compression(std::size_t rank, const mpi::GridShape& shape, ShardLevel shard, std::size_t shard_ranks,
                                       bool warm_start) {
  const auto reason = [&](const char* field, const auto& found, const char* expected) {
    const std::string marked = marked_field(field);
    return fmt::format("{}: {} with {} {}; expected {} {}", marked_field("compress_rank"), rank, marked, found, marked,
                       expected);
  };
  if (shard != ShardLevel::none) {
    const std::string divided = marked_field("shard_ranks");
    const std::string level = shard_level_names()[static_cast<std::size_t>(shard)];
    if (warm_start && !can_start_warm(shard, shard_ranks)) {
      return fmt::format("{}: warm with {} {}; expected fixed, or {} none", marked_field("compress_start"),
                         marked_field("shard"), level, marked_field("shard"));
    }
    if (shard_ranks == 0) {
      return reason("shard", level, "none") + fmt::format(", or {} of which there are several groups", divided);
    }
    if (rank % shard_ranks != 0) {
      return fmt::format("{}: {}; expected a multiple of {} {}", marked_field("compress_rank"), rank, divided, shard_ranks);
    }
  }
  if (shape.tensor > 1) return reason("tensor", shape.tensor, "1");
  return shape.pipeline > 1 ? reason("pipeline", shape.pipeline, "1") : "";
}

std::string reason_against_block_scales(const TrainOptions& options, const mpi::GridShape& shape) {
  if (!options.block_scales || shape.pipeline == 1) return "";
  const std::string pipeline = marked_field("pipeline");
  return fmt::format("{}: blocks with {} {}; expected {} 1, since stages send gradients of f16", marked_field("loss_scale"),
                     pipeline, shape.pipeline, pipeline);
}

std::string reason_against_rule(std::string_view rule, const mpi::GridShape& shape, ShardLevel shard) {
  if (rule != "muon") return "";
  const auto reason = [&](const char* field, const auto& found, const char* expected) {
    const std::string marked = marked_field(field);
    return fmt::format("{}: muon with {} {}; expected adamw, or {} {}", marked_field("optimizer"), marked, found, marked,
                       expected);
  };
  if (shard != ShardLevel::none) return reason("shard", shard_level_names()[static_cast<std::size_t>(shard)], "none");
  return shape.tensor > 1 ? reason("tensor", shape.tensor, "1") : "";
}

Trainer::Trainer(nn::Engine& engine, Task& task, const TrainOptions& options, const Layout& layout)
    : engine_(engine), task_(task), options_(options), log_(layout.events) {
  if (layout.grid == nullptr) own_grid_.emplace(alone_, mpi::GridShape{});
  grid_ = layout.grid == nullptr ? &*own_grid_ : layout.grid;
  check(options);
  const auto data_ranks = static_cast<std::size_t>(grid_->shape().data);
  if (options.micro_batches % data_ranks != 0) {
    fail(ErrorKind::usage, "{} micro-batches per step for {} data-parallel processes; expected a multiple",
         options.micro_batches, data_ranks);
  }
  for (const std::string& reason : {reason_against_rule(options.optimizer.rule, grid_->shape(), layout.shard),
                                    reason_against_block_scales(options, grid_->shape())}) {
    if (!reason.empty()) fail(ErrorKind::usage, "{}", reason);
  }
  if (layout.compress_rank > 0) check_compression(engine, options, layout, *grid_);
  pipeline_.emplace(engine, task, grid_->pipeline(), pipeline_options(engine, task, options, layout, *grid_), &log_);
  parameters_ = pipeline_->parameters();
  learned_ = learned(nn::parameters_of(task.net()));
  if (layout.shard != ShardLevel::none) {
    sharding_.emplace(
        engine, grid_->shards(), pipeline_->parameters_by_layer(), pipeline_->shared_parameters(),
        Sharding::Options{layout.shard, options.values, options.master_weights, options.seed, layout.compress_rank > 0});
    pipeline_->shard(*sharding_);
    moved_ = sharding_->own();
  } else {
    nn::initialise(engine, parameters_, options.values, options.seed, options.master_weights);
    moved_ = parameters_;
  }
  pipeline_->add_buffers(buffers_);
  optimizer_.emplace(engine, moved_, options.optimizer, options.seed, buffers_);
  if (options.optimizer.rule == "muon" && data_ranks > 1 && !orthogonalise_alike(engine, grid_->data(), moved_)) {
    optimizer_->on_moved([this] { share_matrices(); });
  }
  make_norm();
  // Other stages of a pipeline would wait for a part of the step, and sums of shards may be under way.
  if (!sharding_ && grid_->shape().pipeline == 1) {
    giving_up_.emplace(comm(), options.micro_batches / data_ranks, layout.asking_seconds);
  }
  if (options.loss_scale) loss_scale_ = options.loss_scale->first;
  if (options.block_scales) make_gradient_scales();
  if (layout.compress_rank > 0) make_power_sgd(layout);
  if (data_ranks == 1) return;
  sum_ = std::make_unique<GradientSum>(engine, grid_->data());
  if (sharding_ && !power_sgd_ && grid_->copies().size() > 1) sharding_->sum_over(grid_->copies());
  if (sharding_ || power_sgd_ || engine.device().kind != nn::Device::Kind::cpu) return;
  buckets_.emplace(engine, grid_->data(), learned(parameters_), layout.bucket_bytes);
}

Trainer::~Trainer() = default;

void Trainer::on_micro_batch(std::function<void()> f) { pipeline_->on_pass(std::move(f)); }

Loss Trainer::sum_over_grid(Loss loss) {
  if (sum_ != nullptr) sum_->sum(loss);
  std::array<double, 2> sums = {loss.sum, static_cast<double>(loss.count)};
  if (task_.has_layer_losses()) {
    mpi::sum_in_order(grid_->pipeline(), std::span<double>(sums));
    return {sums[0], static_cast<std::uint64_t>(sums[1])};
  }
  grid_->pipeline().broadcast(std::span<double>(sums), grid_->shape().pipeline - 1);
  return {sums[0], static_cast<std::uint64_t>(sums[1])};
}

void Trainer::sum_statistics() {
  if (sum_ == nullptr || buffers_.empty()) return;
  std::vector<nn::Tensor> tensors;
  for (const nn::Tensor* sum : pipeline_->step_sums()) tensors.push_back(*sum);
  sum_->sum(tensors);
}

nn::Pass Trainer::make_pass(std::uint64_t step) const {
  nn::Pass pass{engine_};
  pass.seed = options_.draw_seed.value_or(options_.seed);
  pass.step = step;
  if (scales_) pass.branch_scales = &branch_scales_;
  return pass;
}

std::vector<std::uint64_t> Trainer::own_micro_batches(std::uint64_t first, std::uint64_t count) const {
  std::vector<std::uint64_t> own;
  const auto ranks = static_cast<std::uint64_t>(grid_->shape().data);
  for (auto i = static_cast<std::uint64_t>(grid_->data_index()); i < count; i += ranks) own.push_back(first + i);
  return own;
}

StepReport Trainer::step() { return *step_unless({}); }

std::optional<StepReport> Trainer::step_unless(const std::function<bool()>& is_given_up) {
  const Clock::time_point start = Clock::now();
  const std::uint64_t sent_before = sent_so_far();
  StepReport report;
  report.step = step_;
  report.rate = options_.rate.at(step_);
  report.loss_scale = loss_scale_;
  log_.begin_step(step_, grid_->world());
  begin_gradients();
  const std::uint64_t targets = task_.targets(step_, options_.micro_batches);
  const double scale = loss_scale_ / static_cast<double>(std::max<std::uint64_t>(targets, 1));
  nn::Pass pass = make_pass(step_);
  if (buckets_) {
    buckets_->begin_step();
    pass.on_gradient = [this](nn::Parameter& parameter) { buckets_->announce(parameter); };
  }
  if (power_sgd_) power_sgd_->begin_step(scales_of_gradients());
  if (power_sgd_ && !sharding_) {
    pass.on_gradient = [this](nn::Parameter& parameter) {
      if (parameter.is_frozen) return;
      nn::settle_gradients(engine_, std::array{&parameter});
      announce(parameter);
    };
  }
  const std::optional<Loss> own = pipeline_->run(pass, own_micro_batches(0, options_.micro_batches), scale,
                                                 giving_up_ ? giving_up_->asked(is_given_up) : std::function<bool()>());
  if (!own) {
    task_.net().end_step(pass, false, 1);
    return std::nullopt;
  }
  Loss loss = *own;
  report.stash_bytes = pipeline_->peak_stash_bytes();
  sum_gradients(report);
  loss = sum_over_grid(loss);
  report.targets = loss.count;
  report.loss = loss.sum / static_cast<double>(std::max<std::uint64_t>(loss.count, 1));
  const double unscale = 1 / loss_scale_;
  const auto [norm, skipped_blocks] = settle_norm();
  report.gradient_norm = norm;
  report.skipped = !std::isfinite(report.gradient_norm);
  if (scales_) report.block_scales = scales_->all();
  report.skipped_blocks = skipped_blocks.size();
  if (power_sgd_) settle_power_sgd(report.skipped, skipped_blocks);
  if (!report.skipped) sum_statistics();
  task_.net().end_step(pass, !report.skipped, static_cast<std::size_t>(grid_->shape().data));
  if (report.skipped) {
    if (!options_.loss_scale || loss_scale_ <= 1) refuse_gradients(report.loss);
    loss_scale_ = std::max(1.0, loss_scale_ / 2);
    clean_steps_ = 0;
    if (optimizer_->look_ahead(step_ + 1) && sharding_) sharding_->publish();
  } else {
    const EventSpan span(&log_, EventKind::optimizer, 0, 0, &engine_);
    step_optimizer(report, unscale, skipped_blocks);
    optimizer_->look_ahead(step_ + 1);
    if (sharding_) sharding_->publish();
    if (options_.loss_scale && ++clean_steps_ == options_.loss_scale->double_every) {
      loss_scale_ = std::min(options_.loss_scale->largest, 2 * loss_scale_);
      clean_steps_ = 0;
    }
  }
  ++step_;
  if (step_ % compare_every == 0) compare_replicas();
  if (giving_up_) giving_up_->agree(seconds_since(start));
  if (power_sgd_) report.compression = power_sgd_->times();
  report.sent_bytes = sent_so_far() - sent_before;
  report.seconds = seconds_since(start);
  return report;
}

void Trainer::settle_statistics(std::uint64_t steps, const std::function<void()>& alive) {
  if (!comm().flag_any(!buffers_.empty())) return;
  std::uint64_t counted = 0;
  for (std::uint64_t i = 0; i < steps; ++i) {
    nn::Pass pass = make_pass(step_ + i);
    pass.statistics_momentum = 1 / static_cast<double>(counted + 1);
    const Loss loss = sum_over_grid(pipeline_->evaluate(pass, own_micro_batches(0, options_.micro_batches)));
    sum_statistics();
    const bool counts = std::isfinite(loss.sum);
    task_.net().end_step(pass, counts, static_cast<std::size_t>(grid_->shape().data));
    counted += counts ? 1 : 0;
    alive();
  }
}

void Trainer::step_optimizer(const StepReport& report, double unscale, const std::set<std::size_t>& skipped_blocks) {
  const double share = options_.rate.peak > 0 ? report.rate / options_.rate.peak : 0;
  if (!scales_) return optimizer_->step(report.rate, share, unscale, report.gradient_norm);
  // No smaller scale would make them finite.
  if (std::ranges::any_of(skipped_blocks, [&](std::size_t block) { return scales_->is_least(block); })) {
    refuse_gradients(report.loss);
  }
  const auto factor = [&](std::optional<std::size_t> block) -> std::optional<double> {
    if (!block) return 1.0;
    if (skipped_blocks.contains(*block)) return std::nullopt;
    return loss_scale_ / scales_->of(*block);
  };
  optimizer_->step(report.rate, share, unscale, report.gradient_norm, factor);
  scales_->update([&](std::size_t block) { return !skipped_blocks.contains(block); });
}

std::uint64_t Trainer::sent_so_far() const {
  std::uint64_t bytes = grid_->world().traffic().bytes_sent;
  for (mpi::Comm* group : {&grid_->data(), &grid_->pipeline(), &grid_->tensor(), &grid_->copies()}) {
    bytes += group->traffic().bytes_sent;
  }
  if (grid_->is_divided()) bytes += grid_->shards().traffic().bytes_sent;
  return bytes;
}

// The gradient that is not finite may be on any rank.
void Trainer::refuse_gradients(double loss) {
  const auto message = [&](const std::string& what) {
    return fmt::format("step {}: {}; the loss is {}. A smaller learning rate or clipping may help", step_, what, loss);
  };
  const nn::Parameter* bad = optimizer_->find_bad_gradient();
  comm().check(bad == nullptr ? "" : message(fmt::format("the gradient of '{}' is not finite", bad->name)), ErrorKind::data);
  throw mpi::SharedError(ErrorKind::data, message("the gradients together are too large for a number"));
}

nn::Tensor Trainer::predict(nn::Tensor x, const std::function<void(const nn::Tensor& y)>& use) {
  return pipeline_->predict(make_pass(step_), std::move(x), use);
}

void Trainer::averaged(const std::function<void()>& f) {
  const auto swap = [&](bool publishes) {
    if (optimizer_->swap_averages() && sharding_ && publishes) sharding_->publish();
  };
  swap(true);
  try {
    f();
  } catch (const mpi::SharedError&) {
    swap(true);
    throw;
  } catch (...) {
    // Others may know nothing of it: this rank would wait for them to publish, and never tell what happened.
    swap(comm().size() == 1);
    throw;
  }
  swap(true);
}

Loss Trainer::evaluate(std::uint64_t step, std::uint64_t first, std::uint64_t count) {
  Loss loss;
  averaged([&] {
    std::vector<std::uint64_t> own = own_micro_batches(first, count);
    // Every pass gathers sharded parameters from all ranks that have shards: those that have one micro-batch less join in with
    // any.
    const auto ranks = static_cast<std::uint64_t>(grid_->shape().data);
    const bool gathers = sharding_ && sharding_->level() == ShardLevel::parameters;
    const std::size_t uncounted = gathers && own.size() < (count + ranks - 1) / ranks ? 1 : 0;
    if (uncounted > 0) own.push_back(first);
    nn::Pass pass = make_pass(step);
    pass.training = false;
    if (!own.empty()) loss = pipeline_->evaluate(pass, own, uncounted);
  });
  return sum_over_grid(loss);
}

}  // namespace bitloom::train
