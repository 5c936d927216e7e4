#include "models/gpt/language_task.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/field.h"

namespace bitloom::models {

using nn::Tensor;
using nn::Use;

std::size_t LanguageTask::rows_at_once(std::size_t columns, std::size_t rows, std::uint64_t logits_bytes) {
  constexpr std::size_t unit = 64;  // that matrix products like
  const std::uint64_t fitting = logits_bytes / (columns * sizeof(float));
  return std::min<std::size_t>(rows, std::max<std::size_t>(unit, fitting / unit * unit));
}

std::uint64_t LanguageTask::workspace_bytes(std::size_t columns, std::size_t rows, DType values, bool is_clipped,
                                            std::uint64_t logits_bytes) {
  const std::uint64_t elements = rows_at_once(columns, rows, logits_bytes) * columns;
  const DType type = nn::parameter_type(values);
  return elements * (dtype_size(type) * (is_clipped ? 2 : 1) + (values == type ? 0 : dtype_size(values)));
}

Tensor language_losses(nn::Engine& engine, Gpt& net, const Tensor& hidden, const Tensor& targets, double scale, Tensor* dhidden,
                       std::uint64_t logits_bytes) {
  const std::size_t rows = targets.size();
  const std::size_t width = net.config().width;
  const train::VocabularyHead& head = net.head();
  // The same number on all processes, whose parts of the vocabulary differ by one.
  const std::size_t at_once = LanguageTask::rows_at_once(head.most_columns(), rows, logits_bytes);
  const Tensor flat = hidden.reshaped({rows, width});
  const Tensor all_targets = targets.reshaped({rows});
  Tensor losses = engine.empty({rows}, nn::parameter_type(hidden.dtype()), Use::activations);
  for (std::size_t begin = 0; begin < rows; begin += at_once) {
    const std::size_t end = std::min(rows, begin + at_once);
    const Tensor part = flat.slice(begin, end);
    Tensor logits = head.logits(engine, part);
    Tensor loss = losses.slice(begin, end);
    // In place, or rounded to the type that the products of the backward pass take.
    Tensor dlogits = logits;
    if (dhidden != nullptr && logits.dtype() != hidden.dtype()) {
      dlogits = engine.empty(logits.shape(), hidden.dtype(), Use::activations);
    }
    head.cross_entropy(engine, logits, all_targets.slice(begin, end), scale, loss, dhidden == nullptr ? nullptr : &dlogits);
    if (dhidden == nullptr) continue;
    logits = {};
    Tensor dpart = dhidden->reshaped({rows, width}).slice(begin, end);
    head.backward(engine, part, dlogits, dpart);
  }
  if (dhidden != nullptr) head.complete(engine, *dhidden);
  return losses;
}

LanguageTask::LanguageTask(Gpt& net, std::size_t sequences, Source source, std::uint64_t logits_bytes)
    : net_(net), sequences_(sequences), source_(std::move(source)), logits_bytes_(logits_bytes) {
  if (sequences == 0) fail_field(ErrorKind::usage, "micro_batch", "0; expected at least 1");
}

std::uint64_t LanguageTask::targets(std::uint64_t /*step*/, std::size_t micro_batches) {
  return static_cast<std::uint64_t>(sequences_) * net_.tokens() * micro_batches;
}

// The largest part of the table: all ranks of a tensor group are to cut the net alike.
double LanguageTask::loss_cost() const {
  return 2 * static_cast<double>(sequences_ * net_.tokens() * net_.config().width * net_.head().most_columns());
}

LanguageTask::Tokens LanguageTask::fetch(const nn::Pass& pass) const {
  const std::size_t size = sequences_ * net_.tokens();
  Tokens tokens{std::vector<std::int32_t>(size), std::vector<std::int32_t>(size)};
  source_(pass.step, pass.micro_batch, tokens.inputs, tokens.targets);
  return tokens;
}

Tensor LanguageTask::input(nn::Pass& pass) {
  Tokens tokens = fetch(pass);
  targets_.put(pass, std::move(tokens.targets));
  return pass.engine.from(std::span<const std::int32_t>(tokens.inputs), {sequences_, net_.tokens()}, Use::data);
}

train::PartLoss LanguageTask::loss(nn::Pass& pass, Tensor hidden, double scale, Tensor* dhidden) {
  std::optional<std::vector<std::int32_t>> targets = targets_.take(pass);
  if (!targets) targets = fetch(pass).targets;
  const Tensor wanted = pass.engine.from(std::span<const std::int32_t>(*targets), {sequences_, net_.tokens()}, Use::data);
  if (dhidden != nullptr) *dhidden = pass.engine.empty(hidden.shape(), hidden.dtype(), Use::activations);
  const Tensor losses = language_losses(pass.engine, net_, hidden, wanted, scale, dhidden, logits_bytes_);
  return {losses, static_cast<std::uint64_t>(std::ranges::count_if(*targets, [](std::int32_t target) { return target >= 0; }))};
}

}  // namespace bitloom::models
