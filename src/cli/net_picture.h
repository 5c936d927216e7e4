// The picture of `report --picture`: one image on its way through the net of a run.
#pragma once

#include <filesystem>
#include <string>

#include "report/net_picture.h"

namespace bitloom::cli {

// `image`: a file; "": the first test image of the run's data that the net takes for what it is, or the first of all. Throws a
// usage error for a run without a model of kind binary, data errors for what cannot be read.
report::NetPicture picture_of_run(const std::filesystem::path& run, const std::string& image);

}  // namespace bitloom::cli
