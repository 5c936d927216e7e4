#include "cli/local_training.h"

#include <utility>

#include "cli/signals.h"
#include "core/error.h"

namespace bitloom::cli {

namespace fs = std::filesystem;

LocalTraining::LocalTraining(mpi::Comm& comm, const LocalSettings& settings, train::Trainer& trainer, LocalRun run,
                             ProgressSink& progress)
    : workers_(settings.workers), kept_(fs::path(settings.own_folder(run.out)) / train::kept_name), resume_(run.resume) {
  // Before anything is written to the shared folder.
  train::require_local_steps(trainer);
  const train::LocalOptions options = settings.make_options();
  run.model.update(settings.identity());
  const nlohmann::json founded = {{"tokens", static_cast<double>(settings.inner_steps * run.targets)}};
  const auto stop = [] { return stop_requested(); };
  train::FolderOptions folder = settings.make_folder_options(run.out);
  if (settings.is_job()) {
    train::TreeExchangeOptions tree{.memory = std::move(folder), .fan_in = static_cast<int>(settings.fan_in)};
    exchange_ = std::make_unique<train::TreeExchange>(comm.split(0, comm.rank(), "workers"), std::move(tree), run.model,
                                                      founded, run.field_name, stop);
    const bool is_new = !comm.flag_any(comm.is_root() && run.resume);
    if (is_new && exchange_->newest_rounds()) {
      fail(ErrorKind::usage, "--out: {}/exchange has messages of an earlier run; expected another folder", run.out);
    }
  } else {
    exchange_ = std::make_unique<train::FolderExchange>(std::move(folder), run.model, founded, run.field_name);
  }
  steps_.emplace(trainer, *exchange_, options, run.steps, exchange_->founded().at("tokens").get<double>(), kept_, stop,
                 progress);
}

void LocalTraining::attach(train::RunOptions& options, train::RunHooks& hooks) {
  options.stop = [this, stop = options.stop] { return stop() || exchange_->is_stopping(); };
  hooks.join = [this](const train::SignOfLife& alive) {
    if (!resume_) fs::remove(kept_);  // of a run that was deleted
    steps_->begin(workers_, alive);
  };
  hooks.after_step = [this](const train::StepReport& report, const train::SignOfLife& alive) {
    return steps_->after_step(report.targets, alive);
  };
  hooks.leave = [this] { steps_->leave(); };
}

}  // namespace bitloom::cli
