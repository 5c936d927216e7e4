// The repository's one comparator of float results. Integer results are compared with ==.
#pragma once

#include <span>
#include <string>

namespace bitloom::test {

// Compares `actual` with a trusted `expected`, element by element, and returns "" or what is wrong, so that a test reads
//   CHECK(compare(actual, expected, 1e-5) == "");
// The error of element i is |actual - expected| / max(|expected_i|, root mean square of expected); where expected is zero
// throughout it is |actual|. All errors must be below `limit`.
// Whatever the limit, these are rejected: wrong size, nothing to compare, a value that is not finite on either side, and an
// actual that is zero throughout where expected is not (the mark of a kernel that did not run).
std::string compare(std::span<const float> actual, std::span<const float> expected, double limit);
std::string compare(std::span<const double> actual, std::span<const double> expected, double limit);

}  // namespace bitloom::test
