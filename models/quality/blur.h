// Blurred images, by which distances of sets are told apart that differ in detail alone (Ramesh et al. 2021, figure 9).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bitloom::models {

// Images (N,side,side,3) become their convolutions with a normal density of that standard deviation, in pixels, cut off at four
// of them and divided by its sum; beyond the border an image goes on as its mirror. Rounded to the nearest. radius 0 changes
// nothing.
void blur(std::span<std::uint8_t> images, std::size_t side, double radius);

}  // namespace bitloom::models
