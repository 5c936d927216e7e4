#include "cli/local_training.h"

#include <filesystem>
#include <utility>

#include "cli/signals.h"

namespace bitloom::cli {

LocalTraining::LocalTraining(const LocalSettings& settings, train::Trainer& trainer, nlohmann::json model, std::size_t targets,
                             std::uint64_t steps, const std::string& out, const FieldName& field_name, ProgressSink& progress)
    : workers_(settings.workers) {
  // Before anything is written to the shared folder.
  train::require_local_steps(trainer);
  const train::LocalOptions options = settings.make_options();
  model.update(settings.identity());
  const double tokens = static_cast<double>(settings.inner_steps * targets);
  exchange_.emplace(settings.make_folder_options(), model, nlohmann::json{{"tokens", tokens}}, field_name);
  steps_.emplace(
      trainer, *exchange_, options, steps, exchange_->founded().at("tokens").get<double>(),
      std::filesystem::path(out) / train::kept_name, [] { return stop_requested(); }, progress);
}

void LocalTraining::attach(train::RunHooks& hooks) {
  hooks.join = [this](const train::SignOfLife& alive) { steps_->begin(workers_, alive); };
  hooks.after_step = [this](const train::StepReport& report, const train::SignOfLife& alive) {
    return steps_->after_step(report.targets, alive);
  };
  hooks.leave = [this] { steps_->leave(); };
}

}  // namespace bitloom::cli
