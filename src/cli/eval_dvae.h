// The part of `bitloom eval` that measures discrete VAEs.
#pragma once

#include <filesystem>
#include <string>

#include "cli/command.h"

namespace bitloom::cli {

struct DvaeEvaluationOptions {
  std::string model_or_run;
  std::string spec;        // images; "": the run's
  std::string split;       // train, validation or test, which such data have not
  std::string validation;  // share of the images; "": the run's
  std::string values, device, backend;
  double temperature = 0.0625;  // of the relaxed lower bound
  bool json = false;
};

// Collective: the processes share the images.
void eval_dvae(Session& session, const std::filesystem::path& file, const DvaeEvaluationOptions& options);

}  // namespace bitloom::cli
