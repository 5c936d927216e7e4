// Likelihood of pixels, and the largest of each row. Few channels, or one number of a row: plain C++.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "nn/cpu/cpu_backend.h"
#include "nn/cpu/elements.h"
#include "nn/cpu/parallel.h"

namespace bitloom::nn {
namespace {

// maps (2C), pixels (C); dmaps (2C), may be maps, or none.
template <typename V>
float logit_laplace_row(const V* maps, const float* pixels, std::size_t channels, float least_log_b, float scale, V* dmaps) {
  float loss = 0;
  for (std::size_t c = 0; c < channels; ++c) {
    const float log_x = std::log(pixels[c]);
    const float log_rest = std::log1p(-pixels[c]);
    const float distance = log_x - log_rest - to_float(maps[c]);
    const float log_b = to_float(maps[channels + c]);
    const float used = std::max(log_b, least_log_b);
    const float inverse = std::exp(-used);
    const float ratio = std::fabs(distance) * inverse;
    loss += ratio + 0.693147181F + used + (log_x + log_rest);
    if (dmaps == nullptr) continue;
    const float sign = distance > 0 ? 1.F : distance < 0 ? -1.F : 0.F;
    const float slope = log_b < least_log_b ? std::min(1 - ratio, 0.F) : 1 - ratio;
    dmaps[c] = from_float<V>(-scale * sign * inverse);
    dmaps[channels + c] = from_float<V>(scale * slope);
  }
  return loss;
}

}  // namespace

void CpuBackend::logit_laplace(const LogitLaplace& distribution, const Tensor& maps, const Tensor& pixels, double scale,
                               Tensor& loss, Tensor* dmaps) {
  const std::size_t channels = pixels.shape().back();
  const float* const pixels_rc = elements<float>(pixels);
  float* const loss_r = elements<float>(loss);
  const auto least = static_cast<float>(distribution.least_log_b);
  const auto factor = static_cast<float>(scale);
  with_type(maps.dtype(), [&]<typename V>(V) {
    const V* const from = elements<V>(maps);
    V* const to = dmaps == nullptr ? nullptr : elements<V>(*dmaps);
    for_rows(loss.size(), 2 * channels, 16 * sizeof(V), [&](std::size_t row, std::size_t rows) {
      for (std::size_t r = row; r < row + rows; ++r) {
        const std::size_t at = r * 2 * channels;
        loss_r[r] =
            logit_laplace_row(from + at, pixels_rc + r * channels, channels, least, factor, to == nullptr ? nullptr : to + at);
      }
    });
  });
}

void CpuBackend::argmax_rows(const Tensor& x, Tensor& ids) {
  const std::size_t columns = x.shape().back();
  std::int32_t* const ids_r = elements<std::int32_t>(ids);
  with_type(x.dtype(), [&]<typename V>(V) {
    const V* const from = elements<V>(x);
    for_rows(ids.size(), columns, sizeof(V), [&](std::size_t row, std::size_t rows) {
      for (std::size_t r = row; r < row + rows; ++r) {
        const V* const x_c = from + r * columns;
        std::size_t best = 0;
        float most = to_float(x_c[0]);
        for (std::size_t c = 1; c < columns; ++c) {
          const float value = to_float(x_c[c]);
          if (value > most || (std::isnan(most) && !std::isnan(value))) {
            most = value;
            best = c;
          }
        }
        ids_r[r] = static_cast<std::int32_t>(best);
      }
    });
  });
}

}  // namespace bitloom::nn
