#include "train/task.h"

#include <utility>

#include "core/error.h"

namespace bitloom::train {

namespace {

constexpr std::size_t most_parts = 16;

double sum_of(nn::Engine& engine, const nn::Tensor& losses) {
  const auto add_up = [](const auto& values) {
    double sum = 0;
    for (const auto value : values) sum += static_cast<double>(value);
    return sum;
  };
  return losses.dtype() == DType::f64 ? add_up(engine.to_host<double>(losses)) : add_up(engine.to_host<float>(losses));
}

}  // namespace

void LossSum::add(PartLoss part) {
  parts_.push_back(std::move(part));
  if (parts_.size() == most_parts) accumulate();
}

Loss LossSum::total() {
  accumulate();
  return loss_;
}

void LossSum::accumulate() {
  for (const PartLoss& part : parts_) {
    loss_.sum += sum_of(engine_, part.losses);
    loss_.count += part.count;
  }
  parts_.clear();
}

PartLoss run_micro_batch(Task& task, nn::Pass& pass, double scale) {
  pass.loss_scale = scale;
  nn::Tensor y = task.net().forward(pass, task.input(pass));
  nn::Tensor dy;
  PartLoss loss = task.loss(pass, std::move(y), scale, pass.stash == nullptr ? nullptr : &dy);
  if (pass.stash != nullptr) task.net().backward(pass, dy);
  return loss;
}

Classification::Classification(std::shared_ptr<nn::Sequence> net, const nn::Shape& input, Source source, double smoothing)
    : net_(std::move(net)),
      input_(input),
      examples_(net_->output(input)[0]),
      source_(std::move(source)),
      smoothing_(smoothing) {}

std::uint64_t Classification::targets(std::uint64_t /*step*/, std::size_t micro_batches) {
  return static_cast<std::uint64_t>(examples_) * micro_batches;
}

Classification::Batch Classification::fetch(const nn::Pass& pass) const {
  Batch batch = source_(pass.step, pass.micro_batch);
  if (batch.labels.size() != examples_) {
    fail(ErrorKind::internal, "classification: a micro-batch of {} labels; expected {}", batch.labels.size(), examples_);
  }
  return batch;
}

nn::Tensor Classification::input(nn::Pass& pass) {
  Batch batch = fetch(pass);
  awaited_.put(pass, {std::move(batch.labels), std::move(batch.target_changes)});
  return std::move(batch.x);
}

PartLoss Classification::loss(nn::Pass& pass, nn::Tensor logits, double scale, nn::Tensor* dy) {
  std::optional<Targets> targets = awaited_.take(pass);
  if (!targets) {
    Batch batch = fetch(pass);
    targets = Targets{std::move(batch.labels), std::move(batch.target_changes)};
  }
  const std::size_t classes = logits.shape().back();
  const DType type = nn::parameter_type(logits.dtype());
  nn::Tensor losses = pass.engine.empty({examples_}, type, nn::Use::activations);
  // Cross-entropy is linear in the targets: with changes t it is less by t times the logits, its gradient by t.
  nn::Tensor more;
  if (targets->changes) {
    more = pass.engine.empty({examples_, 1, 1}, type, nn::Use::activations);
    nn::matmul(pass.engine, targets->changes.reshaped({examples_, 1, classes}), logits.reshaped({examples_, classes, 1}), more,
               {.scale = -1});
  }
  // The gradient takes the place of the logits, which nobody needs any more.
  nn::cross_entropy(pass.engine, logits, targets->labels, classes, scale, losses, dy == nullptr ? nullptr : &logits,
                    smoothing_);
  if (targets->changes) {
    nn::scale_add(pass.engine, 1, more.reshaped({examples_}), 1, losses);
    if (dy != nullptr) nn::scale_add(pass.engine, -scale, targets->changes, 1, logits);
  }
  if (dy != nullptr) *dy = std::move(logits);
  return {losses, examples_};
}

}  // namespace bitloom::train
