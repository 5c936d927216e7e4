#include "cli/local_training.h"

#include <filesystem>
#include <utility>

#include "cli/signals.h"

namespace bitloom::cli {

LocalTraining::LocalTraining(mpi::Comm& comm, const LocalSettings& settings, train::Trainer& trainer, nlohmann::json model,
                             std::size_t targets, std::uint64_t steps, const std::string& out, const FieldName& field_name,
                             ProgressSink& progress)
    : workers_(settings.workers) {
  // Before anything is written to the shared folder.
  train::require_local_steps(trainer);
  const train::LocalOptions options = settings.make_options();
  model.update(settings.identity());
  const nlohmann::json founded = {{"tokens", static_cast<double>(settings.inner_steps * targets)}};
  const auto stop = [] { return stop_requested(); };
  train::FolderOptions folder = settings.make_folder_options(out);
  if (settings.is_job()) {
    train::TreeExchangeOptions tree{.memory = std::move(folder), .fan_in = static_cast<int>(settings.fan_in)};
    exchange_ = std::make_unique<train::TreeExchange>(comm.split(0, comm.rank(), "workers"), std::move(tree), model, founded,
                                                      field_name, stop);
  } else {
    exchange_ = std::make_unique<train::FolderExchange>(std::move(folder), model, founded, field_name);
  }
  steps_.emplace(trainer, *exchange_, options, steps, exchange_->founded().at("tokens").get<double>(),
                 std::filesystem::path(settings.own_folder(out)) / train::kept_name, stop, progress);
}

void LocalTraining::attach(train::RunOptions& options, train::RunHooks& hooks) {
  options.stop = [this, stop = options.stop] { return stop() || exchange_->is_stopping(); };
  hooks.join = [this](const train::SignOfLife& alive) { steps_->begin(workers_, alive); };
  hooks.after_step = [this](const train::StepReport& report, const train::SignOfLife& alive) {
    return steps_->after_step(report.targets, alive);
  };
  hooks.leave = [this] { steps_->leave(); };
}

}  // namespace bitloom::cli
