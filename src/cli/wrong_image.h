// What reports show of a net that classifies images: its test images, and those that it takes for images of another class.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "report/report.h"

namespace bitloom::cli {

inline constexpr std::size_t shown_mistakes = 24;

// Image `image` of a set, which was taken for one of class `label`; large ones are made smaller.
report::WrongImage wrong_image(const data::Dataset& set, std::size_t image, std::size_t label, double probability);

// The test images of the run's data, as `classify` finds them, or why there are none: the classes and shapes are those of the
// run's model.
void add_test_images(report::ReportInput& input, const std::filesystem::path& run, const data::ImageShape& shape,
                     const std::vector<std::string>& class_names,
                     const std::function<report::Classification(const data::Dataset&)>& classify);

}  // namespace bitloom::cli
