// Parts of tensors put back where they are in the whole.
#pragma once

#include <cstddef>
#include <vector>

#include "nn/part.h"

namespace bitloom::test {

// whole[number of element i] = part[i].
template <typename T>
void put_part(const nn::Part& part, const std::vector<T>& elements, std::vector<T>& whole) {
  const nn::ElementNumbers numbers = part.numbers();
  for (std::size_t i = 0; i < elements.size(); ++i) whole.at(numbers(i)) = elements[i];
}

}  // namespace bitloom::test
