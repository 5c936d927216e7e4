// Relaxed categorical variables, their divergence from the uniform distribution, and the likelihood of pixels.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "nn/gumbel.h"
#include "nn/ref/numbers.h"
#include "nn/ref/ref_backend.h"

namespace bitloom::nn::ref {
namespace {

double gumbel_noise(const Gumbel& gumbel, std::size_t element) {
  const Philox4x32 draws = gumbel_draws(gumbel.seed, gumbel.site, element / gumbel_group);
  return -std::log(-std::log(static_cast<double>(gumbel_uniform(draws.word[element % gumbel_group]))));
}

// log softmax of a row.
std::vector<double> log_softmax(const double* row, std::size_t columns) {
  const double largest = *std::max_element(row, row + columns);
  double sum = 0;
  for (std::size_t c = 0; c < columns; ++c) sum += std::exp(row[c] - largest);
  std::vector<double> logs(row, row + columns);
  for (double& log : logs) log -= largest + std::log(sum);
  return logs;
}

}  // namespace

void RefBackend::gumbel_softmax(const Gumbel& gumbel, const Tensor& x, Tensor& y) {
  const std::size_t columns = x.shape().back();
  std::vector<double> values = load(x);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = (values[i] + gumbel_noise(gumbel, gumbel.first + i)) / gumbel.temperature;
  for (std::size_t first = 0; first < values.size(); first += columns) {
    const std::vector<double> logs = log_softmax(values.data() + first, columns);
    for (std::size_t c = 0; c < columns; ++c) values[first + c] = std::exp(logs[c]);
  }
  store(y, values);
}

void RefBackend::argmax_rows(const Tensor& x, Tensor& ids) {
  const std::size_t columns = x.shape().back();
  const std::vector<double> values = load(x);
  const std::span<std::int32_t> ids_r = ids.as<std::int32_t>();
  for (std::size_t r = 0; r < ids_r.size(); ++r) {
    const double* row = values.data() + r * columns;
    // NaN before every number, so that comparisons are an order.
    const auto is_less = [](double a, double b) { return std::isnan(a) ? !std::isnan(b) : a < b; };
    ids_r[r] = static_cast<std::int32_t>(std::max_element(row, row + columns, is_less) - row);
  }
}

void RefBackend::categorical_kl(const Tensor& logits, double scale, Tensor& kl, Tensor* dlogits) {
  const std::size_t columns = logits.shape().back();
  const std::vector<double> logits_rc = load(logits);
  std::vector<double> kl_r(kl.size());
  std::vector<double> gradient = dlogits == nullptr ? std::vector<double>() : load(*dlogits);
  for (std::size_t r = 0; r < kl_r.size(); ++r) {
    const std::vector<double> logs = log_softmax(logits_rc.data() + r * columns, columns);
    double mean = 0;  // sum of p log p, where p is 0 too
    for (const double log : logs) mean += std::exp(log) * std::max(log, -1000.0);
    kl_r[r] = std::log(static_cast<double>(columns)) + mean;
    for (std::size_t c = 0; c < columns && dlogits != nullptr; ++c) {
      gradient[r * columns + c] += scale * std::exp(logs[c]) * (std::max(logs[c], -1000.0) - mean);
    }
  }
  store(kl, kl_r);
  if (dlogits != nullptr) store(*dlogits, gradient);
}

void RefBackend::logit_laplace(const LogitLaplace& distribution, const Tensor& maps, const Tensor& pixels, double scale,
                               Tensor& loss, Tensor* dmaps) {
  const std::size_t channels = pixels.shape().back();
  const std::vector<double> maps_r2c = load(maps);
  const std::vector<double> pixels_rc = load(pixels);
  std::vector<double> loss_r(loss.size());
  std::vector<double> gradient(maps.size());
  for (std::size_t r = 0; r < loss_r.size(); ++r) {
    for (std::size_t c = 0; c < channels; ++c) {
      const std::size_t mu = r * 2 * channels + c;
      const std::size_t log_b = mu + channels;
      const double x = pixels_rc[r * channels + c];
      const double distance = std::log(x) - std::log1p(-x) - maps_r2c[mu];
      const double used = std::max(maps_r2c[log_b], distribution.least_log_b);
      const double ratio = std::abs(distance) * std::exp(-used);
      loss_r[r] += ratio + std::log(2.0) + used + std::log(x) + std::log1p(-x);
      const double sign = distance > 0 ? 1 : distance < 0 ? -1 : 0;
      gradient[mu] = -scale * sign * std::exp(-used);
      const double slope = maps_r2c[log_b] < distribution.least_log_b ? std::min(1 - ratio, 0.0) : 1 - ratio;
      gradient[log_b] = scale * slope;
    }
  }
  store(loss, loss_r);
  if (dmaps != nullptr) store(*dmaps, gradient);
}

}  // namespace bitloom::nn::ref
