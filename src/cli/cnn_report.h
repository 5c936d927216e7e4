// Sections of `bitloom report` about a convolutional net besides its metrics.
#pragma once

#include <filesystem>

#include "cli/terminal.h"
#include "report/report.h"

namespace bitloom::cli {

// Adds layers, kernels of the first convolution and the classified test images of the run's data, or why there are none: the
// net is the run's model or, of a run under way, its newest checkpoint. Throws Error(data) for one that is damaged.
void add_cnn(report::ReportInput& input, const std::filesystem::path& run, Terminal& terminal);

}  // namespace bitloom::cli
