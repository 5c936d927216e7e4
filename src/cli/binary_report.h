// Parts of `bitloom report` about a binary net, besides its metrics.
#pragma once

#include <filesystem>

#include "report/report.h"

namespace bitloom::cli {

// The test images that a finished run's net is most sure and wrong about, as its metrics name them, or why they cannot be
// shown. Nothing of a run under way.
void add_mistakes(report::ReportInput& input, const std::filesystem::path& run);

}  // namespace bitloom::cli
