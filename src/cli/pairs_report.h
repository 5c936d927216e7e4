// Sections of `bitloom report` about models of images and captions besides their metrics.
#pragma once

#include <filesystem>

#include "cli/terminal.h"
#include "report/report.h"

namespace bitloom::cli {

// Adds, for runs of the kinds dvae, dalle and clip (ReportInput::kind), pictures that the run made as it went on, and what its
// model or, of a run under way, its newest checkpoint makes of held-out images: reconstructions and the codes in use, or
// cosines of captions and images. Says in ReportInput::missing what of that there is not, and why.
void add_pairs(report::ReportInput& input, const std::filesystem::path& run, Terminal& terminal);

}  // namespace bitloom::cli
