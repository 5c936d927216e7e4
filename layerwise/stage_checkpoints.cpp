#include "layerwise/stage_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "run/folder.h"

namespace bitloom::layerwise {

void StageCheckpoints::start() {
  last_ = Clock::now();
  asked_ = false;
  told_ = false;
}

// Layers and heads that learn again are there as they are now.
TensorFile StageCheckpoints::with_stage(const Stage* stage, TensorFile of_stage) const {
  TensorFile file = describe_(stage);
  for (auto& [name, tensor] : of_stage.tensors) file.tensors.insert_or_assign(name, std::move(tensor));
  return file;
}

void StageCheckpoints::write(Stage* stage) {
  TensorFile of_stage;
  if (stage != nullptr) stage->save(of_stage);
  unfinished_.reset();
  run::on_root(comm_, [&] {
    if (error_ != nullptr) std::rethrow_exception(error_);
    open_.checkpoints().write(with_stage(stage, std::move(of_stage)), identity_);
  });
}

bool StageCheckpoints::ask_if_due() {
  const bool is_due = comm_.is_root() && !asked_ && !open_.checkpoints().is_writing() && !unfinished_ && error_ == nullptr &&
                      seconds_since(last_) >= std::max(seconds_, spacing_);
  asked_ |= is_due;
  return is_due;
}

void StageCheckpoints::begin(Stage& stage) {
  const Clock::time_point start = Clock::now();
  TensorFile of_stage;
  stage.begin_save(of_stage);
  asked_ = false;
  if (!comm_.is_root()) return;
  try {
    open_.checkpoints().finish();
    unfinished_ = with_stage(&stage, std::move(of_stage));
  } catch (...) {
    error_ = std::current_exception();
  }
  unfinished_since_ = start;
  wait_ = seconds_since(start);
  last_ = Clock::now();
}

void StageCheckpoints::advance(Stage& stage) {
  if (unfinished_ && stage.is_saved()) end(stage);
}

void StageCheckpoints::end(Stage& stage) {
  const Clock::time_point start = Clock::now();
  stage.end_save(*unfinished_);
  wait_ += seconds_since(start);
  const double together = seconds_since(unfinished_since_);
  // Encoding and sending take their time from training: a quarter of it at most.
  if (seconds_ > 0) spacing_ = 4 * together;
  if (!std::exchange(told_, true)) {
    std::uint64_t bytes = 0;
    for (const auto& [name, tensor] : unfinished_->tensors) bytes += tensor.bytes.size();
    progress_.line(
        fmt::format("{}: a checkpoint every {:.3g} s, of {}; the first was gathered in {:.2g} s beside training, which "
                    "waited {:.0f} ms",
                    stage.spec().name, std::max(seconds_, spacing_), format_bytes(bytes), together, 1e3 * wait_));
  }
  open_.checkpoints().begin(*std::exchange(unfinished_, std::nullopt), identity_);
}

void StageCheckpoints::cancel(Stage& stage) {
  stage.cancel_save();
  unfinished_.reset();
}

}  // namespace bitloom::layerwise
