// Images in reports of a net that classifies images: its test images, and those that it takes for images of another class.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "report/report.h"

namespace bitloom::cli {

// Image `image` of a set, which was taken for one of class `label`; large ones are made smaller.
report::WrongImage wrong_image(const data::Dataset& set, std::size_t image, std::size_t label, double probability);

// Adds what `classify` finds of the test images of the run's data or, in `test_missing`, why there is nothing to show, such as
// an Error(data) that it throws.
void add_test_images(report::ReportInput& input, const std::filesystem::path& run,
                     const std::function<report::Classification(const data::Dataset&)>& classify);

}  // namespace bitloom::cli
