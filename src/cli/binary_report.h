// What `bitloom report` shows of a binary net besides its metrics.
#pragma once

#include <filesystem>

#include "cli/terminal.h"
#include "report/report.h"

namespace bitloom::cli {

// Classifies the test images of a finished run's data with its model, for the surest mistakes; or says why not. Nothing of a
// run under way. Throws Error(data) for a damaged model.
void add_mistakes(report::ReportInput& input, const std::filesystem::path& run, Terminal& terminal);

}  // namespace bitloom::cli
