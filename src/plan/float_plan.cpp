#include "plan/float_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/progress.h"
#include "core/suggest.h"
#include "models/gpt/language_task.h"
#include "nn/ops.h"
#include "train/parallel/schedule.h"
#include "train/update_rule.h"

namespace bitloom::plan {
namespace {

using train::ShardLevel;

using mpi::GridShape;
using train::LayerRange;

constexpr std::size_t most_listed = 6;  // grids in a message

constexpr std::pair<const char*, Recompute> recomputes[] = {
    {"none", Recompute::none}, {"block", Recompute::block}, {"stage", Recompute::stage}};

template <typename Table>
std::vector<std::string> names_of(const Table& table) {
  std::vector<std::string> names;
  for (const auto& [name, value] : table) names.emplace_back(name);
  return names;
}

template <typename Table>
auto find_in(const Table& table, std::string_view name, const char* field) {
  for (const auto& [known, value] : table) {
    if (name == known) return value;
  }
  const std::vector<std::string> names = names_of(table);
  fail_field(ErrorKind::usage, field, "'{}'{}; expected {}", name, did_you_mean(std::string(name), names),
             fmt::join(names, ", "));
}

std::size_t size(int count) { return static_cast<std::size_t>(count); }

// --- Links ---

// A group of ranks that are `stride` apart.
struct Group {
  std::size_t ranks = 1, on_host = 1;  // all of them, and those of one host
};

Group group_of(const FloatCluster& cluster, std::size_t ranks, std::size_t stride) {
  return {ranks, std::clamp<std::size_t>(cluster.ranks_per_host / stride, 1, ranks)};
}

// One half of a sum: every rank sends a part of `bytes` to every other one, while those of other groups do so too.
double exchange_seconds(const FloatCluster& cluster, std::size_t all_ranks, const Group& group, double bytes) {
  if (group.ranks == 1) return 0;
  const double part = bytes / static_cast<double>(group.ranks);
  const std::size_t away = group.ranks - group.on_host;
  const double inside = static_cast<double>(group.on_host - 1) * part * 8 / cluster.inside.bits_per_second;
  if (away == 0) return cluster.inside.latency + inside;
  const auto senders = static_cast<double>(std::min(cluster.ranks_per_host, all_ranks));
  const double outside = senders * static_cast<double>(away) * on_wire(part) * 8 / cluster.link.bits_per_second;
  return cluster.link.latency + std::max(inside, outside);
}

// Seconds of an activation from each rank of a tensor group to the one with its index in the next stage.
double message_seconds(const FloatCluster& cluster, const GridShape& grid, double bytes) {
  const std::size_t host = cluster.ranks_per_host;
  const std::size_t tensor = size(grid.tensor);
  bool leaves = false;
  for (std::size_t rank = 0; rank + tensor < size(grid.ranks()); rank += tensor) {
    const bool has_next = rank / tensor % size(grid.pipeline) + 1 < size(grid.pipeline);
    leaves |= has_next && rank / host != (rank + tensor) / host;
  }
  if (!leaves) return cluster.inside.latency + bytes * 8 / cluster.inside.bits_per_second;
  const auto senders = static_cast<double>(std::min(host, tensor));
  return cluster.link.latency + senders * on_wire(bytes) * 8 / cluster.link.bits_per_second;
}

// --- A plan of one grid ---

// Sums over the tensor group.
struct Sums {
  std::uint64_t calls = 0, bytes = 0;
  double seconds = 0;

  Sums& operator+=(const Sums& other) {
    calls += other.calls;
    bytes += other.bytes;
    seconds += other.seconds;
    return *this;
  }
};

class Planner {
 public:
  Planner(const FloatModel& model, const GridShape& grid, const FloatOptions& options, const FloatCluster& cluster)
      : model_(model),
        options_(options),
        cluster_(cluster),
        data_(size(grid.data)),
        stages_(size(grid.pipeline)),
        tensor_(size(grid.tensor)),
        ranks_(size(grid.ranks())),
        data_group_(group_of(cluster, data_, stages_ * tensor_)),
        tensor_group_(group_of(cluster, tensor_, 1)),
        value_bytes_(dtype_size(options.train.values)),
        parameter_bytes_(dtype_size(nn::parameter_type(options.train.values))) {
    plan_.grid = grid;
    plan_.micro_batch = options.micro_batch;
    plan_.micro_batches = options.batch / data_ / options.micro_batch;
    shape_ = {stages_, plan_.micro_batches, stages_ == 1 ? 1 : options.chunks};
  }

  FloatPlan run() {
    std::vector<double> costs;
    const auto micro_batch = static_cast<double>(options_.micro_batch);
    for (const FloatLayer& layer : model_.layers) costs.push_back(micro_batch * layer.operations_of(tensor_));
    costs.back() += micro_batch * model_.head_operations_of(tensor_);
    parts_ = options_.partition.empty() ? train::partition(costs, shape_.parts()) : options_.partition;
    // A process alone passes each micro-batch forward and backward before the next.
    const train::Schedule schedule = train::make_schedule(stages_ == 1 ? "1f1b" : options_.schedule, shape_);
    for (std::size_t s = 0; s < stages_; ++s) {
      StagePlan stage;
      for (std::size_t chunk = 0; chunk < shape_.chunks; ++chunk) {
        stage.layers.push_back(parts_[shape_.part(s, chunk)]);
      }
      plan_.stages.push_back(std::move(stage));
    }
    std::vector<train::PassCosts> computing, whole;
    for (std::size_t p = 0; p < shape_.parts(); ++p) {
      computing.push_back(plan_compute(p));
      whole.push_back(plan_passes(p, computing.back()));
    }
    const train::Simulation ideal = train::simulate(schedule, shape_, computing);
    plan_.bubble = ideal.bubble;
    output_waits_ = has_waiting_output(schedule.back());
    for (std::size_t s = 0; s < stages_; ++s) plan_stage(s, ideal.in_flight[s]);
    plan_time(train::simulate(schedule, shape_, whole, way()), whole);
    return std::move(plan_);
  }

 private:
  // Whether other passes come between the last part's forward and backward pass of a micro-batch, for which its output is kept.
  bool has_waiting_output(const std::vector<train::Action>& actions) const {
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const auto& [work, micro_batch, chunk] = actions[i];
      if (work != train::Work::forward || chunk + 1 != shape_.chunks) continue;
      if (i + 1 == actions.size() || actions[i + 1] != train::Action{train::Work::backward, micro_batch, chunk}) return true;
    }
    return false;
  }

  StagePlan& stage_of(std::size_t part) { return plan_.stages[part % stages_]; }
  bool has_head(std::size_t part) const { return model_.head && part + 1 == shape_.parts(); }
  std::uint64_t rows() const { return std::uint64_t{options_.micro_batch} * model_.tokens; }

  // Bytes of a micro-batch of what layer `i` gets.
  std::uint64_t input_bytes(std::size_t i) const {
    return options_.micro_batch * (i == 0 ? model_.input : model_.layers[i - 1].output * value_bytes_);
  }
  std::uint64_t output_bytes(std::size_t part) const {
    return options_.micro_batch * model_.layers[parts_[part].last - 1].output * value_bytes_;
  }
  // Whether the stages keep the inputs of their parts alone. The last part is passed forward once, when its backward pass
  // comes.
  bool recomputes_stages() const { return options_.recompute == Recompute::stage; }
  bool is_late(std::size_t part) const { return recomputes_stages() && part + 1 == shape_.parts(); }

  // Seconds of a micro-batch.
  train::PassCosts plan_compute(std::size_t part) const {
    double forward = 0;
    double again = 0;
    for (std::size_t i = parts_[part].first; i < parts_[part].last; ++i) {
      const FloatLayer& layer = model_.layers[i];
      const double operations = layer.operations_of(tensor_);
      forward += operations;
      if (recomputes_stages() || (options_.recompute == Recompute::block && layer.is_block)) again += operations;
    }
    if (has_head(part)) forward += model_.head_operations_of(tensor_);
    const double unit = static_cast<double>(options_.micro_batch) / cluster_.flops;
    if (is_late(part)) return {0, 3 * forward * unit};
    return {forward * unit, (2 * forward + again) * unit};
  }

  Sums sums_of(std::size_t calls, std::uint64_t elements) const {
    const std::uint64_t bytes = options_.micro_batch * elements * value_bytes_;
    return {calls, calls * bytes, static_cast<double>(calls) * sum_seconds(bytes)};
  }
  double sum_seconds(std::uint64_t bytes) const {
    return 2 * exchange_seconds(cluster_, ranks_, tensor_group_, static_cast<double>(bytes));
  }

  // Adds what the tensor group and, where parameters or gradients are shards, the data group do in the passes of a part.
  train::PassCosts plan_passes(std::size_t part, const train::PassCosts& compute) {
    StagePlan& stage = stage_of(part);
    train::PassCosts whole = compute;
    stage.compute += compute.forward + compute.backward;
    const std::uint64_t micro_batches = plan_.micro_batches;
    if (tensor_ > 1) {
      Sums forward, backward;
      for (std::size_t i = parts_[part].first; i < parts_[part].last; ++i) {
        const FloatLayer& layer = model_.layers[i];
        const bool again =
            !is_late(part) && (recomputes_stages() || (options_.recompute == Recompute::block && layer.is_block));
        (is_late(part) ? backward : forward) += sums_of(layer.forward_sums, layer.summed);
        backward += sums_of(layer.backward_sums + (again ? layer.forward_sums : 0), layer.summed);
      }
      stage.layer_sums += micro_batches * (forward.calls + backward.calls);
      stage.tensor.sums += micro_batches * (forward.bytes + backward.bytes);
      whole.forward += forward.seconds;
      whole.backward += backward.seconds;
      if (has_head(part)) whole.backward += plan_head(stage);
    }
    if (data_ > 1 && options_.shard >= ShardLevel::gradients) {
      std::uint64_t before_forward = 0;
      std::uint64_t before_backward = 0;
      std::uint64_t gradients = 0;
      for (const Block& block : blocks_of(part)) {
        const std::uint64_t values = value_bytes_of(block);
        if (!block.is_head) before_forward += values;
        before_backward += (block.gathers - (block.is_head ? 0 : 1)) * values;
        if (block.has_gradients) gradients += gradient_bytes_of(block);
      }
      const auto exchange = [&](std::uint64_t bytes) {
        return exchange_seconds(cluster_, ranks_, data_group_, static_cast<double>(bytes));
      };
      const double scatter = exchange(gradients);
      const bool gathers = options_.shard == ShardLevel::parameters;
      const double forward = gathers ? exchange(before_forward) : 0;
      const double backward = scatter + (gathers ? exchange(before_backward) : 0);
      // While a layer computes, the parameters of the next and the gradients of the last are on their way.
      whole.forward = std::max(whole.forward, forward);
      whole.backward = std::max(whole.backward, backward);
      stage.data_seconds += static_cast<double>(micro_batches) * (forward + backward);
    }
    stage.forward += whole.forward;
    stage.backward += whole.backward;
    return whole;
  }

  // Maxima, then targets' logits and sums of exponentials of all rows; the gradient of hidden states. Returns seconds.
  double plan_head(StagePlan& stage) const {
    const std::uint64_t maxima = rows() * parameter_bytes_;
    const std::uint64_t sums = 2 * rows() * parameter_bytes_;
    const std::uint64_t hidden = rows() * model_.head->width * value_bytes_;
    stage.tensor.maxima += plan_.micro_batches * maxima;
    stage.tensor.sums += plan_.micro_batches * (sums + hidden);
    return sum_seconds(maxima) + sum_seconds(sums) + sum_seconds(hidden);
  }

  // Whether the head's table is that of layer 0 on the same rank.
  bool reads_first_again() const { return model_.head && model_.head->is_tied && stages_ == 1; }

  // Parameters of a layer, or those that the head reads.
  struct Block {
    std::vector<FloatParameter> parameters;
    std::size_t gathers = 0;    // times that they are made whole for a micro-batch, where ranks have shards
    bool has_gradients = true;  // of its own: not where they are another block's, too
    bool is_apart = false;      // the first parameter is on another stage, too
    bool is_head = false;
  };
  // Those of a part that have any.
  std::vector<Block> blocks_of(std::size_t part) const {
    const bool has_shared_table = model_.head && model_.head->is_tied && stages_ > 1;
    const std::size_t gathers = 2 + (recomputes_stages() && !is_late(part) ? 1 : 0);
    std::vector<Block> all;
    for (std::size_t i = parts_[part].first; i < parts_[part].last; ++i) {
      const FloatLayer& layer = model_.layers[i];
      if (!layer.parameters.empty()) all.push_back({layer.parameters, gathers, true, i == 0 && has_shared_table});
    }
    if (has_head(part)) {
      all.push_back({model_.head->parameters(), 1, !reads_first_again(), has_shared_table, true});
    }
    return all;
  }
  std::uint64_t value_bytes_of(const Block& block) const {
    std::uint64_t bytes = 0;
    for (const FloatParameter& each : block.parameters) {
      bytes += each.elements.of(tensor_) * (each.is_matrix ? value_bytes_ : parameter_bytes_);
    }
    return bytes;
  }
  std::uint64_t gradient_bytes_of(const Block& block) const {
    std::uint64_t elements = 0;
    for (const FloatParameter& each : block.parameters) elements += each.elements.of(tensor_);
    return elements * parameter_bytes_;
  }

  // Elements of matrices and of other parameters.
  struct Counts {
    std::uint64_t matrices = 0, vectors = 0;
    std::uint64_t all() const { return matrices + vectors; }
    void add(const FloatParameter& parameter, std::uint64_t elements) {
      (parameter.is_matrix ? matrices : vectors) += elements;
    }
  };
  // All of a block, and the shard of each data rank; of its first parameter, too.
  struct Shares {
    Counts whole;
    std::vector<Counts> shards, first;
  };
  Shares shares_of(const Block& block) const {
    Shares shares{{}, std::vector<Counts>(data_), std::vector<Counts>(data_)};
    std::vector<std::size_t> sizes;
    for (const FloatParameter& each : block.parameters) sizes.push_back(each.elements.of(tensor_));
    const auto add = [&](std::size_t first, std::span<const std::size_t> of) {
      const std::vector<std::vector<std::size_t>> divided = train::divide_block(of, data_);
      for (std::size_t i = 0; i < of.size(); ++i) {
        const FloatParameter& parameter = block.parameters[first + i];
        shares.whole.add(parameter, of[i]);
        for (std::size_t rank = 0; rank < data_; ++rank) {
          shares.shards[rank].add(parameter, divided[i][rank]);
          if (first + i == 0) shares.first[rank].add(parameter, divided[i][rank]);
        }
      }
    };
    const std::span<const std::size_t> all(sizes);
    if (!block.is_apart) {
      add(0, all);
    } else {
      add(0, all.first(1));
      add(1, all.subspan(1));
    }
    return shares;
  }

  // --- Memory and bytes of a stage ---

  std::uint64_t kept_bytes(const FloatLayer& layer) const {
    const std::uint64_t b = options_.micro_batch;
    const std::uint64_t inputs = b * layer.activations.of(tensor_);
    const unsigned bits = options_.activation_bits;
    return b * (layer.values.of(tensor_) * value_bytes_ + layer.statistics.of(tensor_) * parameter_bytes_ +
                layer.integers * sizeof(std::int32_t)) +
           (bits == 0 ? inputs * value_bytes_ : (inputs * bits + 7) / 8);
  }

  // Bytes that a micro-batch leaves in the stash of a part, and the most that there are of it until it has been passed
  // backward.
  std::pair<std::uint64_t, std::uint64_t> stash_of(std::size_t part) const {
    const LayerRange& range = parts_[part];
    std::uint64_t kept = 0;
    std::uint64_t peak = 0;
    for (std::size_t i = range.first; i < range.last; ++i) {
      const FloatLayer& layer = model_.layers[i];
      const bool again = options_.recompute == Recompute::block && layer.is_block;
      const std::uint64_t all = kept_bytes(layer);
      peak = std::max(peak, kept + all + (again && !layer.keeps_input ? input_bytes(i) : 0));
      kept += again ? input_bytes(i) : all;
    }
    if (part + 1 == shape_.parts() && output_waits_ && !recomputes_stages()) kept += output_bytes(part);
    peak = std::max(peak, kept);
    if (!recomputes_stages()) return {kept, peak};
    const std::uint64_t input = input_bytes(range.first);
    return {input, peak + (model_.layers[range.first].keeps_input ? 0 : input)};
  }

  void plan_stage(std::size_t s, std::size_t in_flight) {
    StagePlan& stage = plan_.stages[s];
    const bool has_masters = options_.train.master_weights == nn::MasterWeights::f32;
    const bool copies = value_bytes_ != parameter_bytes_;
    const train::OptimizerOptions& optimizer = options_.train.optimizer;
    const std::uint64_t moments =
        train::find_update_rule(optimizer.rule).moments + (optimizer.average > 0 ? 1 : 0) + (optimizer.lookahead > 0 ? 1 : 0);
    FloatMemory& memory = stage.memory;
    StageShares shares(data_);
    std::uint64_t kept = 0;
    std::uint64_t peak = 0;
    std::uint64_t earlier_value = 0;
    std::uint64_t earlier_gradient = 0;
    for (std::size_t chunk = 0; chunk < shape_.chunks; ++chunk) {
      const std::size_t part = shape_.part(s, chunk);
      const std::vector<Block> blocks = blocks_of(part);
      for (const Block& block : blocks) {
        const bool is_first = part == 0 && &block == &blocks.front();
        if (block.has_gradients) shares.add(block, shares_of(block), is_first && reads_first_again() ? 1 : 0, *this);
        const std::uint64_t value = value_bytes_of(block);
        const std::uint64_t gradient = gradient_bytes_of(block);
        const std::uint64_t values = options_.shard == ShardLevel::parameters ? value + earlier_value : 0;
        const std::uint64_t gradients = options_.shard >= ShardLevel::gradients ? gradient + earlier_gradient : 0;
        if (data_ > 1) memory.gathered = std::max(memory.gathered, values + gradients);
        earlier_value = value;
        earlier_gradient = gradient;
      }
      const auto [part_kept, part_peak] = stash_of(part);
      kept = std::max(kept, part_kept);
      peak = std::max(peak, part_peak);
      memory.activations = std::max(memory.activations, way_bytes(part));
      plan_messages(stage, part);
    }
    memory.stash = (in_flight - 1) * kept + peak;
    const auto counts = [&](ShardLevel from) { return options_.shard >= from ? shares.largest() : shares.whole; };
    const std::uint64_t bytes_of_matrix = copies ? (has_masters ? parameter_bytes_ : 0) + value_bytes_ : parameter_bytes_;
    const Counts own = counts(ShardLevel::parameters);
    memory.parameters = own.matrices * bytes_of_matrix + own.vectors * parameter_bytes_;
    memory.gradients = counts(ShardLevel::gradients).all() * parameter_bytes_;
    memory.optimizer = moments * counts(ShardLevel::optimizer).all() * parameter_bytes_;
    plan_data(stage, shares);
    plan_control(stage, s);
    if (stage.memory.total() > plan_.memory().total()) plan_.largest = s;
    plan_.fits &= stage.memory.total() <= cluster_.memory;
  }

  // Activations on their way in a part: those in the largest layer, or hidden states, their gradients and logits; what is sent
  // and received.
  std::uint64_t way_bytes(std::size_t part) const {
    const std::uint64_t b = options_.micro_batch;
    std::uint64_t largest = 0;
    for (std::size_t i = parts_[part].first; i < parts_[part].last; ++i) {
      largest = std::max(largest, b * model_.layers[i].working.of(tensor_) * value_bytes_);
    }
    if (has_head(part)) {
      const std::size_t columns = model_.head->table().of(tensor_) / model_.head->width;
      largest = std::max(largest, 2 * rows() * model_.head->width * value_bytes_ +
                                      models::LanguageTask::workspace_bytes(columns, rows(), options_.train.values));
    }
    if (stages_ == 1) return largest;
    return largest + (part > 0 ? input_bytes(parts_[part].first) : 0) + (part + 1 < shape_.parts() ? output_bytes(part) : 0);
  }

  std::uint64_t shared_bytes() const {
    const std::size_t table = model_.head->table().of(tensor_);
    const std::size_t ranks = options_.shard == ShardLevel::none ? 1 : data_;
    return std::ranges::max(train::divide_block({&table, 1}, ranks).front()) * parameter_bytes_;
  }

  void plan_messages(StagePlan& stage, std::size_t part) const {
    if (stages_ == 1) return;
    const std::uint64_t micro_batches = plan_.micro_batches;
    if (part + 1 < shape_.parts()) stage.pipeline.messages += micro_batches * output_bytes(part);
    if (part > 0) stage.pipeline.messages += micro_batches * output_bytes(part - 1);
    // Both stages that have the table give its gradient to each other; every rank does that of its shard.
    const bool is_end = part == 0 || part + 1 == shape_.parts();
    if (is_end && model_.head && model_.head->is_tied) {
      stage.pipeline.messages += shared_bytes();
    }
  }

  // What the ranks of a stage learn, and the shards of each data rank.
  struct StageShares {
    explicit StageShares(std::size_t ranks) : shards(ranks), gathered(ranks) {}
    // head_gathers: of the first parameter, for the head.
    void add(const Block& block, const Shares& shares, std::size_t head_gathers, const Planner& planner) {
      const auto bytes_of = [&](const Counts& counts) {
        return counts.matrices * planner.value_bytes_ + counts.vectors * planner.parameter_bytes_;
      };
      for (std::size_t rank = 0; rank < shards.size(); ++rank) {
        gathered[rank] += block.gathers * bytes_of(shares.shards[rank]) + head_gathers * bytes_of(shares.first[rank]);
        shards[rank].matrices += shares.shards[rank].matrices;
        shards[rank].vectors += shares.shards[rank].vectors;
      }
      whole.matrices += shares.whole.matrices;
      whole.vectors += shares.whole.vectors;
    }
    const Counts& largest() const { return *std::ranges::max_element(shards, {}, &Counts::all); }

    Counts whole;
    std::vector<Counts> shards;
    std::vector<std::uint64_t> gathered;  // bytes of its shards that a rank gives in a micro-batch
  };

  void plan_data(StagePlan& stage, const StageShares& shares) {
    if (data_ == 1) return;
    const std::uint64_t gradients = shares.whole.all() * parameter_bytes_;
    const std::uint64_t micro_batches = plan_.micro_batches;
    // Gradients that only a shard keeps are summed after every micro-batch.
    switch (options_.shard) {
      case ShardLevel::none: stage.data.sums = gradients; break;
      case ShardLevel::optimizer: stage.data.reduce_scatters = gradients; break;
      case ShardLevel::gradients:
      case ShardLevel::parameters: stage.data.reduce_scatters = micro_batches * gradients; break;
    }
    const bool publishes = options_.shard == ShardLevel::optimizer || options_.shard == ShardLevel::gradients;
    if (options_.shard == ShardLevel::parameters) {
      stage.data.all_gathers = micro_batches * *std::ranges::max_element(shares.gathered);
    }
    // New values of matrices that ops read in 16 bits go in 16 bits.
    if (publishes) {
      for (const Counts& shard : shares.shards) {
        const std::uint64_t bytes = shard.matrices * value_bytes_ + shard.vectors * parameter_bytes_;
        stage.data.all_gathers = std::max(stage.data.all_gathers, bytes);
      }
    }
    const double exchange = exchange_seconds(cluster_, ranks_, data_group_, static_cast<double>(gradients));
    exchanges_.push_back(exchange);
    // Bytes of gradients; of the new values, which have as many elements.
    if (options_.shard < ShardLevel::gradients) stage.data_seconds += (options_.shard == ShardLevel::none ? 2 : 1) * exchange;
    if (publishes) stage.data_seconds += exchange;
  }

  // Losses and their number, and the norm of all gradients: a sum of squares for every chunk of a parameter
  // (train::GradientNorm).
  void plan_control(StagePlan& stage, std::size_t s) const {
    constexpr std::uint64_t loss_bytes = 2 * sizeof(double);
    std::uint64_t slots = 0;
    std::uint64_t divided_slots = 0;
    const auto count = [&](const std::vector<FloatParameter>& parameters) {
      for (const FloatParameter& each : parameters) {
        const std::uint64_t chunks = (each.elements.of(tensor_) + nn::squares_chunk - 1) / nn::squares_chunk;
        slots += chunks;
        if (each.elements.split > 0) divided_slots += chunks;
      }
    };
    for (const FloatLayer& layer : model_.layers) count(layer.parameters);
    if (model_.head && !model_.head->is_tied) count(model_.head->parameters());
    if (data_ > 1) stage.data.sums += loss_bytes + (options_.shard == ShardLevel::none ? 0 : slots * sizeof(double));
    if (stages_ > 1) {
      stage.pipeline.sums += slots * sizeof(double);
      if (s + 1 == stages_) stage.pipeline.broadcasts += loss_bytes;
    }
    if (tensor_ > 1) stage.tensor.sums += divided_slots * sizeof(double);
  }

  // --- Time ---

  double way() const {
    std::uint64_t most = 0;
    for (std::size_t part = 0; part + 1 < shape_.parts(); ++part) most = std::max(most, output_bytes(part));
    return stages_ == 1 ? 0 : message_seconds(cluster_, plan_.grid, static_cast<double>(most));
  }

  // A step ends when every stage has passed its last micro-batch backward and its gradients are summed. The sums of a layer
  // begin when the last backward pass has left it; the first layer's, which it leaves last, have nothing to hide behind.
  void plan_time(const train::Simulation& simulation, const std::vector<train::PassCosts>& whole) {
    double computing = 0;
    for (std::size_t s = 0; s < stages_; ++s) {
      const StagePlan& stage = plan_.stages[s];
      double end = simulation.events[s].back().end;
      const std::size_t part = shape_.part(s, 0);
      const auto layers = static_cast<double>(std::max<std::ptrdiff_t>(
          1, std::ranges::count_if(blocks_of(part), [](const Block& block) { return block.has_gradients; })));
      if (data_ > 1) {
        const double exchange = exchanges_[s];
        const double sum = (options_.shard == ShardLevel::none ? 2 : 1) * exchange;
        // Where gradients are shards, all but the first layer's are reduced in the pass itself.
        const double first = end - whole[part].backward * (1 - 1 / layers);
        end = options_.shard >= ShardLevel::gradients ? end + exchange / layers : std::max(end + sum / layers, first + sum);
        if (options_.shard == ShardLevel::optimizer || options_.shard == ShardLevel::gradients)
          end += exchange;  // of new values
      }
      if (stages_ > 1 && model_.head && model_.head->is_tied && (s == 0 || s + 1 == stages_)) {
        end += message_seconds(cluster_, plan_.grid, static_cast<double>(shared_bytes()));
      }
      plan_.seconds = std::max(plan_.seconds, end);
      computing += static_cast<double>(plan_.micro_batches) * stage.compute;
    }
    plan_.computing = computing / (static_cast<double>(stages_) * plan_.seconds);
  }

  const FloatModel& model_;
  const FloatOptions& options_;
  const FloatCluster& cluster_;
  std::size_t data_, stages_, tensor_, ranks_;
  Group data_group_, tensor_group_;
  std::uint64_t value_bytes_, parameter_bytes_;  // of an element of V and of P
  train::PipelineShape shape_;
  train::Partition parts_;
  bool output_waits_ = false;
  std::vector<double> exchanges_;  // by stage: seconds of half a sum of its gradients over the data group
  FloatPlan plan_;
};

// --- Grids ---

std::string possible_near(const FloatModel& model, int ranks, const GridShape& wanted, const FloatOptions& options) {
  std::vector<std::string> listed;
  for (const GridShape& grid : mpi::shapes_of(ranks, wanted)) {
    if (listed.size() < most_listed && reason_against(model, grid, options).empty()) listed.push_back(mpi::described(grid));
  }
  if (listed.empty()) return fmt::format("no grid of {} ranks is possible", ranks);
  return fmt::format("possible near by (data x pipeline x tensor): {}", fmt::join(listed, ", "));
}

// Micro-batches to look at, larger ones first: of equally good ones these send fewer messages.
std::vector<std::size_t> candidates(const FloatOptions& options, std::size_t data) {
  if (options.micro_batch != 0) return {options.micro_batch};
  const std::size_t share = std::max<std::size_t>(1, options.batch / data);
  std::vector<std::size_t> divisors;
  for (std::size_t n = share; n >= 1; --n) {
    if (share % n == 0) divisors.push_back(n);
  }
  return divisors;
}

// A plan that fits is better than one that does not; then the faster one is, or the one that lacks less memory.
bool is_better(const FloatPlan& a, const FloatPlan& b) {
  if (a.fits != b.fits) return a.fits;
  if (!a.fits) return a.memory().total() < b.memory().total();
  return a.seconds < b.seconds;
}

}  // namespace

nlohmann::json to_json(const GroupBytes& bytes) {
  return {{"sums", bytes.sums},
          {"maxima", bytes.maxima},
          {"reduce_scatters", bytes.reduce_scatters},
          {"all_gathers", bytes.all_gathers},
          {"messages", bytes.messages},
          {"broadcasts", bytes.broadcasts}};
}

std::vector<std::string> recompute_names() { return names_of(recomputes); }
Recompute find_recompute(std::string_view name) { return find_in(recomputes, name, "recompute"); }

std::string reason_against(const FloatModel& model, const GridShape& grid, const FloatOptions& options) {
  const std::size_t tensor = size(grid.tensor);
  const std::size_t data = size(grid.data);
  if (tensor > 1 && model.heads == 0) {
    return fmt::format("{}: {}; expected 1: {} has no attention", marked_field("tensor"), tensor, model.name);
  }
  if (tensor > 1 && model.heads % tensor != 0) {
    return fmt::format("{}: {}; expected a divisor of the {} heads", marked_field("tensor"), tensor, model.heads);
  }
  const std::size_t parts = size(grid.pipeline) * (grid.pipeline > 1 ? options.chunks : 1);
  if (parts > model.layers.size()) {
    return fmt::format("{}: {}; expected at most the {} layers, the embedding and the last norm among them",
                       marked_field("pipeline"), parts, model.layers.size());
  }
  if (!options.partition.empty() &&
      (options.partition.size() != parts || options.partition.back().last != model.layers.size())) {
    return fmt::format("{}: {} parts of {} layers; expected {} of {}", marked_field("partition"), options.partition.size(),
                       options.partition.back().last, parts, model.layers.size());
  }
  if (options.batch == 0 || options.batch % data != 0) {
    return fmt::format("{}: {}; expected a multiple of the {} data-parallel ranks", marked_field("batch"), options.batch, data);
  }
  if (options.micro_batch == 0) return "";
  if (options.batch / data % options.micro_batch != 0) {
    return fmt::format("{}: {}; expected a divisor of {}, a rank's share of the batch", marked_field("micro_batch"),
                       options.micro_batch, options.batch / data);
  }
  if (grid.pipeline == 1) return "";
  try {
    train::make_schedule(options.schedule, {size(grid.pipeline), options.batch / data / options.micro_batch, options.chunks});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

FloatPlan plan_grid(const FloatModel& model, const GridShape& grid, const FloatOptions& options, const FloatCluster& cluster) {
  if (options.micro_batch == 0) fail_field(ErrorKind::usage, "micro_batch", "0; expected at least 1");
  if (const std::string reason = reason_against(model, grid, options); !reason.empty()) {
    fail(ErrorKind::usage, "{}; {}", reason, possible_near(model, grid.ranks(), grid, options));
  }
  return Planner(model, grid, options, cluster).run();
}

std::vector<FloatPlan> plan_grids(const FloatModel& model, int ranks, const GridWish& wish, const FloatOptions& options,
                                  const FloatCluster& cluster) {
  const GridShape wanted{1, wish.pipeline.value_or(1), wish.tensor.value_or(1)};
  std::vector<FloatPlan> plans;
  std::string reason;
  for (const GridShape& grid : mpi::shapes_of(ranks, wanted)) {
    if (wish.pipeline.value_or(grid.pipeline) != grid.pipeline || wish.tensor.value_or(grid.tensor) != grid.tensor) continue;
    std::optional<FloatPlan> best;
    for (const std::size_t micro_batch : candidates(options, size(grid.data))) {
      FloatOptions with = options;
      with.micro_batch = micro_batch;
      const std::string against = reason_against(model, grid, with);
      if (reason.empty()) reason = against;
      if (!against.empty()) continue;
      FloatPlan plan = Planner(model, grid, with, cluster).run();
      if (!best || is_better(plan, *best)) best = std::move(plan);
    }
    if (best) plans.push_back(std::move(*best));
  }
  if (plans.empty()) {
    if (reason.empty()) {
      reason = fmt::format("{}: {}; with {} {} expected to divide {} ranks", marked_field("tensor"), wanted.tensor,
                           marked_field("pipeline"), wanted.pipeline, ranks);
    }
    fail(ErrorKind::usage, "{}; {}", reason, possible_near(model, ranks, wanted, options));
  }
  std::ranges::stable_sort(plans, is_better);
  return plans;
}

std::string describe_misfit(const FloatModel& model, const FloatPlan& plan, const FloatOptions& options,
                            const FloatCluster& cluster) {
  FloatOptions any = options;
  any.micro_batch = 0;
  any.partition = {};  // of as many parts as this grid has
  const std::vector<FloatPlan> plans = plan_grids(model, plan.grid.ranks(), {}, any, cluster);
  const FloatPlan& best = plans.front();
  const std::string with = fmt::format("data x pipeline x tensor {} with {} {}", mpi::described(best.grid),
                                       marked_field("micro_batch"), best.micro_batch);
  return fmt::format("stage {} takes {} on each rank, more than the {} there are; {}", plan.largest,
                     format_bytes(plan.memory().total()), format_bytes(cluster.memory),
                     best.fits ? fmt::format("{} would fit, with {}", with, format_bytes(best.memory().total()))
                               : fmt::format("no grid of {} ranks would fit: {} takes least, {}", plan.grid.ranks(), with,
                                             format_bytes(best.memory().total())));
}

}  // namespace bitloom::plan
