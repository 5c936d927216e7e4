#include "nn/part.h"

namespace bitloom::nn {

ElementNumbers Part::numbers() const {
  std::size_t inner = 1;  // elements per step along the axis
  for (std::size_t i = axis + 1; i < full.axes(); ++i) inner *= full[i];
  return {begin * inner, (end - begin) * inner, full[axis] / blocks * inner};
}

}  // namespace bitloom::nn
