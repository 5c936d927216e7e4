// A training in local steps (cli/local_options.h) as a part of a run.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/local_options.h"
#include "core/differences.h"
#include "core/progress.h"
#include "train/run.h"

namespace bitloom::cli {

class LocalTraining {
 public:
  // Collective. model: what makes workers' parameters mean the same. targets: of a step. out: the job's run folder. field_name:
  // what users call fields of `model`. comm and trainer outlive this. Throws Error(usage) where workers do not fit together,
  // and Error(io).
  LocalTraining(mpi::Comm& comm, const LocalSettings& settings, train::Trainer& trainer, nlohmann::json model,
                std::size_t targets, std::uint64_t steps, const std::string& out, const FieldName& field_name,
                ProgressSink& progress);

  // This outlives the run.
  void attach(train::RunOptions& options, train::RunHooks& hooks);

 private:
  std::size_t workers_;
  std::unique_ptr<train::LocalExchange> exchange_;
  std::optional<train::LocalSteps> steps_;
};

}  // namespace bitloom::cli
