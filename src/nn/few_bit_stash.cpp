#include "nn/few_bit_stash.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/error.h"

namespace bitloom::nn {
namespace {

void check_size(const char* what, std::size_t size, std::size_t expected) {
  if (size != expected) fail(ErrorKind::usage, "{}: {} elements, expected {}", what, size, expected);
}

}  // namespace

std::uint32_t FewBitLookup::index(double x) const {
  const double key = even ? std::abs(x) : x;
  return static_cast<std::uint32_t>(std::lower_bound(boundaries.begin(), boundaries.end(), key) - boundaries.begin());
}

FewBitLookup few_bit_lookup(const StepFunction& steps) {
  const std::size_t levels = steps.levels.size();
  if (levels < 2 || levels > 256 || !std::has_single_bit(levels) || steps.boundaries.size() + 1 != levels) {
    fail(ErrorKind::usage, "table: {} levels and {} boundaries; expected a power of two from 2 to 256, and one fewer", levels,
         steps.boundaries.size());
  }
  FewBitLookup lookup;
  lookup.bits = steps.bits();
  lookup.even = steps.even;
  for (const double s : steps.boundaries) lookup.boundaries.push_back(static_cast<float>(s));
  for (const double y : steps.levels) lookup.levels.push_back(static_cast<float>(y));
  return lookup;
}

void few_bit_forward(const Activation& activation, const FewBitLookup& lookup, std::span<const float> x_n, std::span<float> y_n,
                     std::span<std::uint8_t> stash) {
  check_size("y", y_n.size(), x_n.size());
  check_size("stash", stash.size(), packed_bytes(x_n.size(), lookup.bits));
  BitPacker packer(stash.data(), lookup.bits);
  for (const float x : x_n) packer.put(lookup.index(x));
  packer.finish();
  apply(activation, x_n, y_n);
}

void few_bit_backward(const FewBitLookup& lookup, std::span<const std::uint8_t> stash, std::span<const float> grad_y_n,
                      std::span<float> grad_x_n) {
  check_size("grad_x", grad_x_n.size(), grad_y_n.size());
  check_size("stash", stash.size(), packed_bytes(grad_y_n.size(), lookup.bits));
  BitUnpacker indices(stash.data(), lookup.bits);
  for (std::size_t i = 0; i < grad_y_n.size(); ++i) grad_x_n[i] = lookup.levels[indices.get()] * grad_y_n[i];
}

}  // namespace bitloom::nn
