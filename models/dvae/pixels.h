// Pixels as the discrete VAE has them (Ramesh et al. 2021, equation 3): phi maps bytes to [0.1, 0.9], away from the ends of
// (0,1), where logits have no bounds.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

namespace bitloom::models {

inline constexpr double pixel_margin = 0.1;  // epsilon

// (1 - 2 epsilon) x / 255 + epsilon, for x from 0 to 255.
constexpr double phi(double x) { return (1 - 2 * pixel_margin) * x / 255 + pixel_margin; }
constexpr double inverse_phi(double x) { return (x - pixel_margin) * 255 / (1 - 2 * pixel_margin); }

// Bytes to phi of them.
void to_unit_interval(std::span<const std::uint8_t> pixels, std::span<float> out);
// Reconstruction: inverse_phi(sigmoid(mu)), from 0 to 255, not rounded; NaN where mu is. maps: rows of 6, mu first; out: rows
// of 3.
void reconstruct(std::span<const float> maps, std::span<float> out);

}  // namespace bitloom::models
