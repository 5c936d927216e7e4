// Images that a net takes for those of another class, as reports show them.
#pragma once

#include <cstddef>

#include "data/dataset.h"
#include "report/report.h"

namespace bitloom::cli {

inline constexpr std::size_t shown_mistakes = 24;

// Image `image` of a set, which was taken for one of class `label`; large ones are made smaller.
report::WrongImage wrong_image(const data::Dataset& set, std::size_t image, std::size_t label, double probability);

}  // namespace bitloom::cli
