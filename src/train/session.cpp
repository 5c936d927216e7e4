#include "train/session.h"

#include <array>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "run/checkpoints.h"

namespace bitloom::train {

Session::Session(nn::Engine& engine, Options options)
    : engine_(engine), options_(std::move(options)), micro_batch_(divide_batch()) {
  options_.train.micro_batches = options_.batch / micro_batch_;
  task_ = options_.make_task(micro_batch_);
  with_memory_hint([&] { trainer_ = std::make_unique<Trainer>(engine_, *task_, options_.train, options_.layout); });
}

std::size_t Session::divide_batch() const {
  const auto ranks = static_cast<std::size_t>(options_.layout.grid->shape().data);
  if (options_.batch == 0 || options_.batch % ranks != 0) {
    fail_field(ErrorKind::usage, "batch", "{}; expected a multiple of the {} {}processes", options_.batch, ranks,
               options_.layout.grid->world().size() == static_cast<int>(ranks) ? "" : "data-parallel ");
  }
  const std::size_t fitting = comm().together([&] { return options_.choose_micro_batch(options_.batch / ranks); });
  std::array<std::int64_t, 1> size = {-static_cast<std::int64_t>(fitting)};
  comm().max(size);
  return static_cast<std::size_t>(-size[0]);
}

bool Session::goes_on(const std::filesystem::path& folder, bool resume) const {
  return comm().flag_any(comm().is_root() && resume && !run::list_checkpoints(folder).empty());
}

Loss Session::evaluate(std::uint64_t examples) {
  evaluates_ = true;
  const Loss loss = trainer_->evaluate(0, 0, (examples + micro_batch_ - 1) / micro_batch_);
  evaluates_ = false;
  return loss;
}

RunResult Session::run(const RunOptions& options, const RunHooks& hooks, ProgressSink& progress) {
  return with_memory_hint([&] { return train::run(*trainer_, options, hooks, progress); });
}

}  // namespace bitloom::train
