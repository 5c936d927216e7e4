// Parts that layers have in common. Private to src/nn/layers.
#pragma once

#include <string>

#include "core/error.h"
#include "nn/layer.h"

namespace bitloom::nn {

inline void require_columns(const std::string& name, const Shape& x, std::size_t columns) {
  if (x.axes() < 2 || x.back() != columns) {
    fail(ErrorKind::usage, "{}: x {}; expected rows of {}", name, to_text(x), columns);
  }
}

}  // namespace bitloom::nn
