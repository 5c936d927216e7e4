#include "plan/float_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
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

std::uint64_t share_of(std::uint64_t elements, std::size_t ranks) { return (elements + ranks - 1) / ranks; }

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
    for (const FloatLayer& layer : model_.layers) costs.push_back(micro_batch * operations_of(layer));
    if (model_.head) costs.back() += micro_batch * head_operations();
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
  // A rank's, forward, of an example.
  double operations_of(const FloatLayer& layer) const {
    return layer.whole_operations + layer.split_operations / static_cast<double>(tensor_) +
           (tensor_ > 1 ? layer.sum_operations : 0);
  }
  double head_operations() const { return 2 * static_cast<double>(model_.tokens * table().of(tensor_)); }

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
  Elements table() const { return {0, std::uint64_t{model_.head->vocabulary} * model_.head->width, model_.head->width}; }
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
      const double operations = operations_of(layer);
      forward += operations;
      if (recomputes_stages() || (options_.recompute == Recompute::block && layer.is_block)) again += operations;
    }
    if (has_head(part)) forward += head_operations();
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
      std::uint64_t values = 0;
      std::uint64_t gradients = 0;
      for (const auto& [matrices, vectors] : parameters_of(part)) {
        values += matrices * value_bytes_ + vectors * parameter_bytes_;
        gradients += (matrices + vectors) * parameter_bytes_;
      }
      const double scatter = exchange_seconds(cluster_, ranks_, data_group_, static_cast<double>(gradients));
      const double gather = exchange_seconds(cluster_, ranks_, data_group_, static_cast<double>(values));
      const bool gathers = options_.shard == ShardLevel::parameters;
      // While a layer computes, the parameters of the next and the gradients of the last are on their way.
      if (gathers) whole.forward = std::max(whole.forward, gather);
      whole.backward = std::max(whole.backward, scatter + (gathers ? gather : 0));
      stage.data_seconds += static_cast<double>(micro_batches) * (scatter + (gathers ? 2 * gather : 0));
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

  // Matrices and vectors, in elements, of every layer of a part that has any; the head's are a layer.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> parameters_of(std::size_t part) const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> all;
    for (std::size_t i = parts_[part].first; i < parts_[part].last; ++i) {
      const FloatLayer& layer = model_.layers[i];
      const std::pair each(layer.matrices.of(tensor_), layer.vectors.of(tensor_));
      if (each.first + each.second > 0) all.push_back(each);
    }
    if (has_head(part) && (!model_.head->is_tied || stages_ > 1)) {
      const Elements biases{0, model_.head->has_bias ? model_.head->vocabulary : 0};
      all.emplace_back(table().of(tensor_), biases.of(tensor_));
    }
    return all;
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
    std::uint64_t matrices = 0;
    std::uint64_t vectors = 0;
    FloatMemory& memory = stage.memory;
    std::uint64_t kept = 0;
    std::uint64_t peak = 0;
    std::uint64_t earlier_value = 0;
    std::uint64_t earlier_gradient = 0;
    for (std::size_t chunk = 0; chunk < shape_.chunks; ++chunk) {
      const std::size_t part = shape_.part(s, chunk);
      auto parameters = parameters_of(part);
      for (const auto& [m, v] : parameters) {
        matrices += m;
        vectors += v;
      }
      // The table of layer 0 is needed once more, for the logits.
      if (has_head(part) && model_.head->is_tied && stages_ == 1) parameters.emplace_back(table().of(tensor_), 0);
      for (const auto& [m, v] : parameters) {
        const std::uint64_t value = m * value_bytes_ + v * parameter_bytes_;
        const std::uint64_t gradient = (m + v) * parameter_bytes_;
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
    const auto shard = [&](ShardLevel from, std::uint64_t elements) {
      return options_.shard >= from ? share_of(elements, data_) : elements;
    };
    const std::uint64_t bytes_of_matrix = copies ? (has_masters ? parameter_bytes_ : 0) + value_bytes_ : parameter_bytes_;
    memory.parameters =
        shard(ShardLevel::parameters, matrices) * bytes_of_matrix + shard(ShardLevel::parameters, vectors) * parameter_bytes_;
    memory.gradients = shard(ShardLevel::gradients, matrices + vectors) * parameter_bytes_;
    memory.optimizer = moments * shard(ShardLevel::optimizer, matrices + vectors) * parameter_bytes_;
    memory.checkpoint = share_of(matrices, data_) * (has_masters ? parameter_bytes_ : value_bytes_) +
                        share_of(vectors, data_) * parameter_bytes_ +
                        moments * share_of(matrices + vectors, data_) * parameter_bytes_;
    plan_data(stage, matrices, vectors);
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
      const std::size_t columns = table().of(tensor_) / model_.head->width;
      largest = std::max(largest, 2 * rows() * model_.head->width * value_bytes_ +
                                      models::LanguageTask::workspace_bytes(columns, rows(), options_.train.values));
    }
    if (stages_ == 1) return largest;
    return largest + (part > 0 ? input_bytes(parts_[part].first) : 0) + (part + 1 < shape_.parts() ? output_bytes(part) : 0);
  }

  void plan_messages(StagePlan& stage, std::size_t part) const {
    if (stages_ == 1) return;
    const std::uint64_t micro_batches = plan_.micro_batches;
    if (part + 1 < shape_.parts()) stage.pipeline.messages += micro_batches * output_bytes(part);
    if (part > 0) stage.pipeline.messages += micro_batches * output_bytes(part - 1);
    // Both stages that have the table give its gradient to each other.
    const bool is_end = part == 0 || part + 1 == shape_.parts();
    if (is_end && model_.head && model_.head->is_tied) {
      stage.pipeline.messages += table().of(tensor_) * parameter_bytes_;
    }
  }

  void plan_data(StagePlan& stage, std::uint64_t matrices, std::uint64_t vectors) {
    if (data_ == 1) return;
    const std::uint64_t gradients = (matrices + vectors) * parameter_bytes_;
    const std::uint64_t micro_batches = plan_.micro_batches;
    // Gradients that only a shard keeps are summed after every micro-batch.
    switch (options_.shard) {
      case ShardLevel::none: stage.data.sums = gradients; break;
      case ShardLevel::optimizer: stage.data.reduce_scatters = gradients; break;
      case ShardLevel::gradients:
      case ShardLevel::parameters: stage.data.reduce_scatters = micro_batches * gradients; break;
    }
    const std::uint64_t own =
        share_of(matrices, data_) * (options_.shard == ShardLevel::parameters ? value_bytes_ : parameter_bytes_) +
        share_of(vectors, data_) * parameter_bytes_;
    if (options_.shard == ShardLevel::parameters) stage.data.all_gathers = 2 * micro_batches * own;
    if (options_.shard == ShardLevel::optimizer || options_.shard == ShardLevel::gradients) stage.data.all_gathers = own;
    const double exchange = exchange_seconds(cluster_, ranks_, data_group_, static_cast<double>(gradients));
    exchanges_.push_back(exchange);
    // Bytes of gradients; of the new values, which have as many elements.
    if (options_.shard < ShardLevel::gradients) stage.data_seconds += (options_.shard == ShardLevel::none ? 2 : 1) * exchange;
    if (options_.shard == ShardLevel::optimizer || options_.shard == ShardLevel::gradients) stage.data_seconds += exchange;
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
      const auto layers = static_cast<double>(std::max<std::size_t>(1, parameters_of(part).size()));
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
        end += message_seconds(cluster_, plan_.grid, static_cast<double>(table().of(tensor_) * parameter_bytes_));
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
