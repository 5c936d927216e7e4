#include "cli/local_training.h"

#include <chrono>
#include <thread>
#include <utility>

#include "cli/signals.h"
#include "core/error.h"
#include "run/folder.h"

namespace bitloom::cli {

namespace fs = std::filesystem;

namespace {

void take_own_folder(mpi::Comm& comm, const LocalSettings& local, FloatSettings& settings) {
  settings.out = comm.broadcast_text(settings.out);
  if (local.number() == 0 || !local.is_first()) return;
  const std::string folder = local.own_folder(settings.out);
  settings.resume = settings.resume && run::has_run(folder);
  train::check_run_folder(folder, settings.resume);
}

}  // namespace

void settle_local(Session& session, LocalSettings& local, const LayoutSettings& layout, double average,
                  FloatSettings& settings) {
  local.settle(session.comm);
  if (!local.is_local()) return;
  for (const auto& [option, ways] : {std::pair("tensor", layout.tensor), {"pipeline", layout.pipeline}}) {
    if (ways == 1) continue;
    fail(ErrorKind::usage, "--{}: {} with --exchange local, whose workers are data-parallel processes; expected 1", option,
         ways);
  }
  if (average > 0 && !settings.resume) {  // runs of older programs may have it
    fail(ErrorKind::usage, "--average: {} with --exchange local, whose shared parameters are a mean already; expected 0",
         average);
  }
  if (layout.shard != "none") fail(ErrorKind::usage, "--shard: {} with --exchange local; expected none", layout.shard);
  if (local.is_job()) session.comm.together([&] { take_own_folder(session.comm, local, settings); });
}

LocalTraining::LocalTraining(mpi::Comm& comm, const LocalSettings& settings, train::Trainer& trainer, LocalRun run,
                             ProgressSink& progress)
    : workers_(settings.workers), kept_(fs::path(settings.own_folder(run.out)) / train::kept_name), resume_(run.resume) {
  // Before anything is written to the shared folder.
  train::require_local_steps(trainer);
  const train::LocalOptions options = settings.make_options();
  run.model.update(settings.identity());
  const bool is_first = settings.is_first();
  const bool is_new = !comm.flag_any(comm.is_root() && run.resume);
  mpi::Comm firsts = settings.is_job() ? comm.split(is_first ? 0 : 1, comm.rank(), "workers") : mpi::Comm();
  comm.together([&] {
    if (is_first) make_exchange(std::move(firsts), settings, run, is_new);
  });
  if (exchange_) {
    steps_.emplace(
        trainer, *exchange_, options, run.steps, exchange_->founded().at("tokens").get<double>(), kept_,
        [] { return stop_requested(); }, progress);
  }
  group_.emplace(trainer, steps_ ? &*steps_ : nullptr);
}

void LocalTraining::make_exchange(mpi::Comm workers, const LocalSettings& settings, const LocalRun& run, bool is_new) {
  const nlohmann::json founded = {{"tokens", static_cast<double>(settings.inner_steps * run.targets)}};
  train::FolderOptions folder = settings.make_folder_options(run.out);
  if (!settings.is_job()) {
    exchange_ = std::make_unique<train::FolderExchange>(std::move(folder), run.model, founded, run.field_name);
    return;
  }
  train::TreeExchangeOptions tree{.memory = std::move(folder), .fan_in = static_cast<int>(settings.fan_in)};
  exchange_ = std::make_unique<train::TreeExchange>(std::move(workers), std::move(tree), run.model, founded, run.field_name,
                                                    [] { return stop_requested(); });
  if (is_new && exchange_->newest_rounds()) {
    fail(ErrorKind::usage, "--out: {}/exchange has messages of an earlier run; expected another folder", run.out);
  }
}

void LocalTraining::attach(train::RunOptions& options, train::RunHooks& hooks) {
  options.stop = [this, stop = options.stop] { return stop() || (exchange_ && exchange_->is_stopping()); };
  hooks.join = [this](const train::SignOfLife& alive) {
    if (exchange_ && !resume_) fs::remove(kept_);  // of a run that was deleted
    group_->begin(workers_, alive);
  };
  hooks.after_step = [this](const train::StepReport& report, const train::SignOfLife& alive) {
    return group_->after_step(report.targets, alive);
  };
  hooks.leave = [this](const train::SignOfLife& alive) { group_->leave(alive); };
}

void LocalTraining::add_to(train::RunOptions& options, train::RunHooks& hooks, mpi::Comm& comm, const LocalSettings& settings,
                           train::Trainer& trainer, LocalRun run, ProgressSink& progress) {
  const auto local = std::make_shared<LocalTraining>(comm, settings, trainer, std::move(run), progress);
  local->attach(options, hooks);
  hooks.owned = local;  // it goes before the trainer does
}

void LocalTraining::end_job(mpi::Comm& comm, const std::function<void()>& alone) {
  if (comm.is_root()) {
    alone();
    for (int other = 1; other < comm.size(); ++other) comm.send(other, {std::byte{1}});
    comm.wait_until([&] { return comm.sends_finished(); }, "end of a job");
    return;
  }
  while (!comm.try_receive(0)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

}  // namespace bitloom::cli
