#include "train/parallel/pipeline.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "train/parallel/stage_forward.h"

namespace bitloom::train {
namespace {

// Messages of an evaluation that a stage has on their way, besides the one that is received.
constexpr std::size_t most_ahead = 2;

// Elements become the sum over stages, in their order.
void sum_over(nn::Engine& engine, mpi::Comm& comm, nn::Tensor& elements, std::span<const std::size_t> stages) {
  const auto own = static_cast<std::size_t>(comm.rank());
  std::vector<std::byte> bytes(elements.bytes());
  engine.read(elements, elements.dtype(), bytes);
  for (const std::size_t stage : stages) {
    if (stage != own) comm.send(static_cast<int>(stage), bytes);
  }
  nn::Tensor sum;
  for (const std::size_t stage : stages) {
    nn::Tensor theirs = elements;
    if (stage != own) {
      bytes = comm.receive(static_cast<int>(stage), elements.bytes());
      theirs = engine.empty(elements.shape(), elements.dtype(), nn::Use::workspace);
      engine.write(theirs, bytes);
    }
    if (!sum) {
      sum = theirs;
      continue;
    }
    nn::Tensor more = engine.empty(elements.shape(), elements.dtype(), nn::Use::workspace);
    nn::add(engine, sum, theirs, more);
    sum = more;
  }
  nn::scale_add(engine, 1, sum, 0, elements);
}

BlockPass backward_pass(const nn::Pass& pass) { return pass.is_last ? BlockPass::last_backward : BlockPass::backward; }

}  // namespace

Pipeline::Pipeline(nn::Engine& engine, Task& task, mpi::Comm& comm, const PipelineOptions& options, EventLog* log)
    : engine_(engine),
      task_(task),
      comm_(comm),
      options_(options),
      log_(log),
      stage_(static_cast<std::size_t>(comm.rank())),
      shape_(pipeline_shape(task.net(), options, static_cast<std::size_t>(comm.size()))),
      messages_(engine, comm, shape_, part_inputs(task.net(), options), options.values, log) {
  const std::vector<nn::Parameter*> head = task.head_parameters();
  for (StageParameter& each : stage_parameters(task.net(), head, options_.partition, shape_.stages)) {
    if (each.stages.size() > 1) tied_.push_back(each);
    if (std::ranges::count(each.stages, stage_) > 0) parameters_.push_back(std::move(each));
  }
}

std::vector<nn::Parameter*> Pipeline::parameters() const {
  std::vector<nn::Parameter*> all;
  for (const StageParameter& each : parameters_) all.push_back(each.parameter);
  return all;
}

std::vector<std::vector<nn::Parameter*>> Pipeline::parameters_by_layer() const {
  nn::Sequence& net = task_.net();
  std::vector<std::vector<nn::Parameter*>> layers(net.size() + 1);
  for (const std::size_t i : own_layers()) layers[i] = nn::parameters_of(net[i]);
  if (is_last()) layers.back() = task_.head_parameters();
  return layers;
}

std::vector<nn::Parameter*> Pipeline::shared_parameters() const {
  std::vector<nn::Parameter*> shared;
  for (const StageParameter& each : parameters_) {
    if (each.stages.size() > 1) shared.push_back(each.parameter);
  }
  return shared;
}

std::vector<std::pair<std::string, const nn::Parameter*>> Pipeline::tied_parameters() const {
  std::vector<std::pair<std::string, const nn::Parameter*>> tied;
  for (const StageParameter& each : tied_) {
    const bool is_here = std::ranges::count(each.stages, stage_) > 0;
    tied.emplace_back(each.parameter->name, is_here ? &own(*each.parameter) : nullptr);
  }
  return tied;
}

nn::Parameter& Pipeline::own(nn::Parameter& parameter) const {
  return sharding_ == nullptr ? parameter : sharding_->own(parameter);
}

void Pipeline::share_values() {
  for (const StageParameter& each : parameters_) {
    nn::Tensor& value = own(*each.parameter).value;
    std::vector<std::byte> bytes(value.bytes());
    for (std::size_t i = 1; i < each.stages.size(); ++i) {
      const bool sends = stage_ == each.stages.front();
      if (!sends && stage_ != each.stages[i]) continue;
      if (sends) engine_.read(value, value.dtype(), bytes);
      // A table may be larger than a message can be.
      for (std::size_t begin = 0; begin < bytes.size(); begin += shared_piece_bytes) {
        const std::span<std::byte> piece = std::span(bytes).subspan(begin, std::min(shared_piece_bytes, bytes.size() - begin));
        if (sends) {
          comm_.send(static_cast<int>(each.stages[i]), {piece.begin(), piece.end()});
        } else {
          std::ranges::copy(comm_.receive(static_cast<int>(each.stages.front()), piece.size()), piece.begin());
        }
      }
      if (!sends) engine_.write(value, bytes);
    }
  }
  comm_.wait_until([this] { return comm_.sends_finished(); }, "parameters of several stages");
}

std::vector<std::size_t> Pipeline::own_layers() const {
  std::vector<std::size_t> own;
  for (std::size_t chunk = 0; chunk < shape_.chunks; ++chunk) {
    const LayerRange range = options_.partition[shape_.part(stage_, chunk)];
    for (std::size_t i = range.first; i < range.last; ++i) own.push_back(i);
  }
  return own;
}

void Pipeline::add_buffers(std::vector<std::pair<std::string, nn::Tensor*>>& all) {
  for (const std::size_t i : own_layers()) task_.net()[i].add_buffers(engine_, options_.values, all);
}

std::vector<nn::Tensor*> Pipeline::step_sums() {
  std::vector<nn::Tensor*> all;
  for (const std::size_t i : own_layers()) task_.net()[i].add_step_sums(all);
  return all;
}

bool Pipeline::is_counted_here(const nn::Parameter& parameter) const {
  return std::ranges::any_of(
      parameters_, [&](const StageParameter& each) { return each.parameter == &parameter && each.stages.front() == stage_; });
}

void Pipeline::begin(const Schedule& schedule, std::span<const std::uint64_t> micro_batches, bool training) {
  held_.clear();
  losses_.emplace(engine_);
  peak_bytes_ = 0;
  messages_.begin(schedule, micro_batches);
  if (sharding_ == nullptr) return;
  std::vector<std::size_t> blocks;
  for (const LayerPass& pass :
       layer_passes(shape_, stage_, options_.partition, options_.recompute, schedule[stage_], training)) {
    blocks.push_back(pass.layer);
  }
  sharding_->begin_passes(blocks);
}

void Pipeline::count_stashes() {
  std::uint64_t bytes = 0;
  for (const auto& [key, held] : held_) bytes += held.stash.bytes();
  peak_bytes_ = std::max(peak_bytes_, bytes);
}

nn::Tensor Pipeline::forward_layers(nn::Pass& pass, nn::Tensor x, std::size_t part) {
  const LayerRange range = options_.partition[part];
  for (std::size_t i = range.first; i < range.last; ++i) {
    if (sharding_ != nullptr) sharding_->enter(i, BlockPass::forward);
    x = task_.net()[i].forward(pass, x);
    if (sharding_ != nullptr) sharding_->leave(i, BlockPass::forward);
    messages_.poll();
  }
  return x;
}

nn::Tensor Pipeline::backward_layers(nn::Pass& pass, nn::Tensor dy, std::size_t part) {
  const LayerRange range = options_.partition[part];
  const BlockPass kind = backward_pass(pass);
  for (std::size_t i = range.last; i > range.first; --i) {
    if (sharding_ != nullptr) sharding_->enter(i - 1, kind);
    dy = nn::backward_through(task_.net()[i - 1], pass, dy);
    if (sharding_ != nullptr) sharding_->leave(i - 1, kind);
    messages_.poll();
  }
  return dy;
}

nn::Tensor Pipeline::input(const Action& action, nn::Pass& pass) {
  return shape_.part(stage_, action.chunk) == 0 ? task_.input(pass) : messages_.take(action);
}

void Pipeline::forward(const Action& action, nn::Pass& pass, bool backward_is_next) {
  const std::size_t part = shape_.part(stage_, action.chunk);
  const bool is_last = part + 1 == shape_.parts();
  nn::Tensor x = input(action, pass);
  Held& held = held_[{action.micro_batch, action.chunk}];
  if (options_.recompute) held.stash.put(x);
  if (!(options_.recompute && is_last)) {
    pass.stash = options_.recompute ? nullptr : &held.stash;
    nn::Tensor y;
    {
      const EventSpan span(log_, EventKind::forward, pass.micro_batch, action.chunk, &engine_);
      y = forward_layers(pass, std::move(x), part);
    }
    messages_.hand_on(action, y);
    if (is_last && backward_is_next) held.output = y;
    if (is_last && !backward_is_next) held.stash.put(y);
  }
  count_stashes();
}

void Pipeline::backward(const Action& action, nn::Pass& pass, double scale) {
  const std::size_t part = shape_.part(stage_, action.chunk);
  const bool is_last = part + 1 == shape_.parts();
  const auto place = held_.find({action.micro_batch, action.chunk});
  Held& held = place->second;
  pass.stash = &held.stash;
  nn::Tensor y;
  if (options_.recompute) {
    nn::Tensor x = held.stash.take();
    held.stash.put(x);  // it stays below what the layers keep
    const EventSpan span(log_, is_last ? EventKind::forward : EventKind::recompute, pass.micro_batch, action.chunk, &engine_);
    pass.again = !is_last;
    y = forward_layers(pass, std::move(x), part);
    count_stashes();
  } else if (is_last) {
    y = held.output ? std::exchange(held.output, {}) : held.stash.take();
  }
  nn::Tensor dy;
  if (!is_last) {
    y = {};
    dy = messages_.take(action);
  }
  {
    const EventSpan span(log_, EventKind::backward, pass.micro_batch, action.chunk, &engine_);
    if (is_last) losses_->add(loss(pass, std::move(y), scale, &dy));
    dy = backward_layers(pass, std::move(dy), part);
  }
  pass.again = false;
  if (options_.recompute) held.stash.take();
  if (!held.stash.empty()) {
    fail(ErrorKind::internal, "step {}: {} tensors of micro-batch {} are left in the stash", pass.step, held.stash.size(),
         pass.micro_batch);
  }
  pass.stash = nullptr;
  held_.erase(place);
  messages_.hand_on(action, dy);
}

PartLoss Pipeline::loss(nn::Pass& pass, nn::Tensor y, double scale, nn::Tensor* dy) {
  const std::size_t head = task_.net().size();
  const BlockPass kind = dy == nullptr ? BlockPass::forward : backward_pass(pass);
  if (sharding_ != nullptr) sharding_->enter(head, kind);
  PartLoss loss = task_.loss(pass, std::move(y), scale, dy);
  if (sharding_ != nullptr) sharding_->leave(head, kind);
  return loss;
}

nn::Tensor Pipeline::predict(nn::Pass pass, nn::Tensor x, const std::function<void(const nn::Tensor& y)>& use) {
  pass.training = false;
  nn::Tensor y = StageForward(comm_, options_.partition).run(pass, task_.net(), std::move(x), sharding_);
  if (!use || !is_last()) return y;
  const std::size_t head = task_.net().size();
  if (sharding_ != nullptr) {
    sharding_->begin_passes(std::array{head});
    sharding_->enter(head, BlockPass::forward);
  }
  use(y);
  if (sharding_ != nullptr) sharding_->leave(head, BlockPass::forward);
  return y;
}

std::optional<Loss> Pipeline::run(nn::Pass pass, std::span<const std::uint64_t> micro_batches, double scale,
                                  const std::function<bool()>& is_given_up) {
  shape_.micro_batches = micro_batches.size();
  if (scheduled_ != micro_batches.size()) {
    schedule_ = make_schedule(options_.schedule, shape_);
    scheduled_ = micro_batches.size();
  }
  begin(schedule_, micro_batches, true);
  const std::vector<Action>& actions = schedule_[stage_];
  pass.training = true;
  pass.loss_scale = scale;
  pass.on_loss = [this](const nn::Tensor& losses) { losses_->add({losses, 0}); };
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    pass.micro_batch = micro_batches[action.micro_batch];
    pass.is_last = action.micro_batch + 1 == micro_batches.size();
    if (action.work == Work::forward) {
      const Action other{Work::backward, action.micro_batch, action.chunk};
      forward(action, pass, i + 1 < actions.size() && actions[i + 1] == other);
    } else {
      backward(action, pass, scale);
    }
    if (on_pass_) on_pass_();
    if (action.work == Work::backward && !pass.is_last && is_given_up && is_given_up()) {
      held_.clear();
      return std::nullopt;
    }
  }
  messages_.finish();
  return losses_->total();
}

Loss Pipeline::evaluate(nn::Pass pass, std::span<const std::uint64_t> micro_batches, std::size_t uncounted) {
  shape_.micro_batches = micro_batches.size();
  const Schedule schedule = forward_schedule(shape_);
  begin(schedule, micro_batches, false);
  pass.stash = nullptr;
  for (const Action& action : schedule[stage_]) {
    pass.micro_batch = micro_batches[action.micro_batch];
    const std::size_t part = shape_.part(stage_, action.chunk);
    const bool counts = action.micro_batch + uncounted < micro_batches.size();
    if (counts) {
      pass.on_loss = [this](const nn::Tensor& losses) { losses_->add({losses, 0}); };
    } else {
      pass.on_loss = nullptr;
    }
    nn::Tensor y = forward_layers(pass, input(action, pass), part);
    messages_.hand_on(action, y);
    // Nothing comes back that would hold the first stages back.
    if (shape_.chunks == 1) messages_.hold_back(most_ahead);
    if (part + 1 == shape_.parts()) {
      PartLoss found = loss(pass, std::move(y), 0, nullptr);
      if (counts) losses_->add(std::move(found));
    }
    if (on_pass_) on_pass_();
  }
  messages_.finish();
  return losses_->total();
}

void Pipeline::sum_shared_gradients() {
  for (const StageParameter& each : parameters_) {
    if (each.stages.size() == 1) continue;
    const EventSpan span(log_, EventKind::reduce, 0, 0, &engine_);
    const nn::Tensor& gradient = own(*each.parameter).gradient;
    const nn::Tensor flat = gradient.reshaped({gradient.size()});
    const std::size_t piece = shared_piece_bytes / dtype_size(flat.dtype());
    for (std::size_t begin = 0; begin < flat.size(); begin += piece) {
      nn::Tensor own = flat.slice(begin, std::min(flat.size(), begin + piece));
      sum_over(engine_, comm_, own, each.stages);
    }
  }
  comm_.wait_until([this] { return comm_.sends_finished(); }, "gradients of several stages");
}

}  // namespace bitloom::train
