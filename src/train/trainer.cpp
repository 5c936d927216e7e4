#include "train/trainer.h"

#include <algorithm>
#include <cmath>

#include "core/clock.h"
#include "core/error.h"
#include "core/field.h"
#include "train/gradient_sum.h"

namespace bitloom::train {
namespace {

// Tensors of checkpoints besides the state's.
constexpr const char* steps_name = "optimizer.steps";
constexpr const char* counters_name = "trainer.state";

}  // namespace

void check(const TrainOptions& options) {
  check(options.rate);
  check(options.optimizer);
  if (options.master_weights == nn::MasterWeights::none) {
    if (options.values != DType::bf16) {
      fail_field(ErrorKind::usage, "master_weights", "none with `dtype` {}; expected `dtype` bf16",
                 nn::to_text(options.values));
    }
    if (options.optimizer.average > 0) {
      fail_field(ErrorKind::usage, "master_weights", "none with `average` {}; expected `average` 0", options.optimizer.average);
    }
  }
  if (options.micro_batches == 0) fail(ErrorKind::usage, "micro_batches: 0; expected at least 1");
  if (options.loss_scale && !(options.loss_scale->first >= 1 && options.loss_scale->first <= options.loss_scale->largest)) {
    fail(ErrorKind::usage, "loss_scale: {}; expected 1 to {}", options.loss_scale->first, options.loss_scale->largest);
  }
}

Trainer::Trainer(nn::Engine& engine, Task& task, const TrainOptions& options, mpi::Comm* comm)
    : comm_(comm == nullptr ? alone_ : *comm),
      engine_(engine),
      task_(task),
      options_(options),
      parameters_(nn::parameters_of(task.net())) {
  check(options);
  const auto ranks = static_cast<std::size_t>(comm_.size());
  if (options.micro_batches % ranks != 0) {
    fail(ErrorKind::usage, "{} micro-batches per step for {} processes; expected a multiple", options.micro_batches, ranks);
  }
  nn::initialise(engine, parameters_, options.values, options.seed, options.master_weights);
  task.net().add_buffers(engine, options.values, buffers_);
  optimizer_.emplace(engine, parameters_, options.optimizer, options.seed, buffers_);
  if (options.loss_scale) loss_scale_ = options.loss_scale->first;
  if (ranks > 1) sum_ = std::make_unique<GradientSum>(engine, comm_);
}

Trainer::~Trainer() = default;

void Trainer::sum_gradients() {
  if (sum_ == nullptr) return;
  std::vector<nn::Tensor> tensors;
  for (const nn::Parameter* parameter : parameters_) tensors.push_back(parameter->gradient);
  sum_->sum(tensors);
}

void Trainer::average_buffers() {
  if (sum_ == nullptr || buffers_.empty()) return;
  std::vector<nn::Tensor> tensors;
  for (const auto& [name, tensor] : buffers_) {
    nn::scale_add(engine_, 1.0 / comm_.size(), *tensor, 0, *tensor);
    tensors.push_back(*tensor);
  }
  sum_->sum(tensors);
}

nn::Pass Trainer::make_pass(std::uint64_t step, nn::Stash* stash) const {
  nn::Pass pass{engine_};
  pass.stash = stash;
  pass.training = stash != nullptr;
  pass.seed = options_.seed;
  pass.step = step;
  return pass;
}

StepReport Trainer::step() {
  const Clock::time_point start = Clock::now();
  StepReport report;
  report.step = step_;
  report.rate = options_.rate.at(step_);
  report.loss_scale = loss_scale_;
  nn::clear_gradients(engine_, parameters_);
  const std::uint64_t targets = task_.targets(step_, options_.micro_batches);
  const double scale = loss_scale_ / static_cast<double>(std::max<std::uint64_t>(targets, 1));
  nn::Stash stash;
  nn::Pass pass = make_pass(step_, &stash);
  LossSum sum(engine_);
  const auto ranks = static_cast<std::size_t>(comm_.size());
  for (auto i = static_cast<std::size_t>(comm_.rank()); i < options_.micro_batches; i += ranks) {
    pass.micro_batch = i;
    pass.is_last = i + ranks >= options_.micro_batches;
    sum.add(run_micro_batch(task_, pass, scale));
    report.stash_bytes = std::max(report.stash_bytes, stash.peak_bytes());
    if (on_micro_batch_) on_micro_batch_();
    if (!stash.empty()) fail(ErrorKind::internal, "step {}: {} tensors are left in the stash", step_, stash.size());
  }
  nn::settle_gradients(engine_, parameters_);
  Loss loss = sum.total();
  sum_gradients();
  if (sum_ != nullptr) sum_->sum(loss);
  report.targets = loss.count;
  report.loss = loss.sum / static_cast<double>(std::max<std::uint64_t>(loss.count, 1));
  const double unscale = 1 / loss_scale_;
  report.gradient_norm = optimizer_->gradient_norm(unscale);
  report.skipped = !std::isfinite(report.gradient_norm);
  if (report.skipped) {
    if (!options_.loss_scale || loss_scale_ <= 1) {
      const nn::Parameter* bad = optimizer_->find_bad_gradient();
      fail(ErrorKind::data, "step {}: {}; the loss is {}. A smaller learning rate or clipping may help", step_,
           bad == nullptr ? "the gradients together are too large for a number"
                          : fmt::format("the gradient of '{}' is not finite", bad->name),
           report.loss);
    }
    task_.net().end_step(pass, false);
    loss_scale_ = std::max(1.0, loss_scale_ / 2);
    clean_steps_ = 0;
  } else {
    task_.net().end_step(pass, true);
    average_buffers();
    const double share = options_.rate.peak > 0 ? report.rate / options_.rate.peak : 0;
    optimizer_->step(report.rate, share, unscale, report.gradient_norm);
    if (options_.loss_scale && ++clean_steps_ == options_.loss_scale->double_every) {
      loss_scale_ = std::min(options_.loss_scale->largest, 2 * loss_scale_);
      clean_steps_ = 0;
    }
  }
  ++step_;
  report.seconds = seconds_since(start);
  return report;
}

void Trainer::begin_with(const std::function<void()>& f) {
  f();
  nn::refresh_copies(engine_, parameters_);
  optimizer_->restart_averages();
}

void Trainer::averaged(const std::function<void()>& f) {
  optimizer_->swap_averages();
  try {
    f();
  } catch (...) {
    optimizer_->swap_averages();
    throw;
  }
  optimizer_->swap_averages();
}

Loss Trainer::evaluate(std::uint64_t step, std::uint64_t first, std::uint64_t count) {
  LossSum sum(engine_);
  nn::Pass pass = make_pass(step, nullptr);
  averaged([&] {
    const auto ranks = static_cast<std::uint64_t>(comm_.size());
    for (pass.micro_batch = first + static_cast<std::uint64_t>(comm_.rank()); pass.micro_batch < first + count;
         pass.micro_batch += ranks) {
      sum.add(run_micro_batch(task_, pass, 0));
      if (on_micro_batch_) on_micro_batch_();
    }
  });
  Loss loss = sum.total();
  if (sum_ != nullptr) sum_->sum(loss);
  return loss;
}

std::vector<StateTensor> Trainer::state() {
  std::vector<StateTensor> all;
  for (nn::Parameter* parameter : parameters_) all.push_back({parameter->name, &parameter->value, parameter});
  for (const auto& [name, tensor] : buffers_) all.push_back({name, tensor, nullptr});
  optimizer_->add_state(all);
  return all;
}

std::vector<double> Trainer::counters() const {
  return {static_cast<double>(step_), loss_scale_, static_cast<double>(clean_steps_)};
}

void Trainer::set_counters(std::span<const double> counters) {
  step_ = static_cast<std::uint64_t>(counters[0]);
  loss_scale_ = counters[1];
  clean_steps_ = static_cast<std::uint64_t>(counters[2]);
}

namespace {

std::vector<std::size_t> shape_of(const nn::Tensor& tensor) {
  const auto lengths = tensor.shape().lengths();
  return {lengths.begin(), lengths.end()};
}

HeldTensor held_by_all(const std::string& name, nn::Tensor& tensor, DType stored) {
  return {name, shape_of(tensor), Holding::whole(tensor.size()), &tensor, stored};
}

}  // namespace

std::vector<HeldTensor> Trainer::held() {
  std::vector<HeldTensor> held;
  for (const StateTensor& each : state()) held.push_back(held_by_all(each.name, *each.tensor, each.tensor->dtype()));
  return held;
}

std::vector<HeldTensor> Trainer::held_model() {
  std::vector<HeldTensor> held;
  for (nn::Parameter* parameter : parameters_) {
    const DType type = parameter->value.dtype();
    held.push_back(held_by_all(parameter->name, parameter->value, type == DType::bf16 ? DType::f32 : type));
  }
  for (const auto& [name, tensor] : buffers_) held.push_back(held_by_all(name, *tensor, tensor->dtype()));
  return held;
}

void Trainer::write_held(std::vector<HeldTensor> held, const TensorFile& rest, const WriteTensors& write) {
  StateGather gather(engine_, comm_, std::move(held));
  if (!comm_.is_root()) return gather.serve();
  std::map<std::string, StreamedTensor> tensors = gather.tensors();
  for (const auto& [name, tensor] : rest.tensors) {
    tensors[name] = {tensor.dtype, tensor.shape, [&tensor = tensor](const TakeBytes& take) { take(tensor.bytes.span()); }};
  }
  try {
    write(std::move(tensors));
  } catch (...) {
    gather.release();
    throw;
  }
  gather.release();
}

void Trainer::save(const WriteTensors& write) {
  TensorFile rest;
  const std::vector<std::uint64_t> counts = optimizer_->step_counts();
  rest.put(steps_name, {counts.size()}, counts);
  const std::vector<double> numbers = counters();
  rest.put(counters_name, {numbers.size()}, numbers);
  write_held(held(), rest, write);
}

void Trainer::save_model(const WriteTensors& write) { write_held(held_model(), {}, write); }

void Trainer::load(const TensorFile* file) {
  scatter_state(engine_, comm_, held(), file);
  nn::refresh_copies(engine_, parameters_);
  std::vector<std::uint64_t> counts(optimizer_->step_counts().size());
  std::vector<double> numbers(counters().size());
  comm_.together([&] {
    if (!comm_.is_root()) return;
    std::ranges::copy(file->get(steps_name, DType::u64, {counts.size()}).as<std::uint64_t>(), counts.begin());
    std::ranges::copy(file->get(counters_name, DType::f64, {numbers.size()}).as<double>(), numbers.begin());
  });
  comm_.broadcast(std::span(counts));
  comm_.broadcast(std::span(numbers));
  optimizer_->set_step_counts(counts);
  set_counters(numbers);
}

void Trainer::load_model(const TensorFile* file) {
  scatter_state(engine_, comm_, held_model(), file);
  nn::refresh_copies(engine_, parameters_);
}

void Trainer::share() {
  if (comm_.size() == 1) return;
  for (const StateTensor& each : state()) {
    Buffer<std::byte> bytes(each.tensor->bytes());
    if (comm_.is_root()) engine_.read(*each.tensor, each.tensor->dtype(), bytes.span());
    comm_.broadcast(bytes.span());
    if (!comm_.is_root()) engine_.write(*each.tensor, bytes.span());
  }
  if (!comm_.is_root()) nn::refresh_copies(engine_, parameters_);
  std::vector<std::uint64_t> counts = optimizer_->step_counts();
  comm_.broadcast(std::span(counts));
  optimizer_->set_step_counts(counts);
  std::vector<double> numbers = counters();
  comm_.broadcast(std::span(numbers));
  set_counters(numbers);
}

}  // namespace bitloom::train
