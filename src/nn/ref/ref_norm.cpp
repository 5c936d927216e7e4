#include <algorithm>
#include <cmath>

#include "nn/ref/numbers.h"
#include "nn/ref/ref_backend.h"

namespace bitloom::nn::ref {
namespace {

struct Moments {
  double mean = 0, variance = 0;
};

// Moments of count numbers, `step` apart.
Moments moments_of(const double* x, std::size_t count, std::size_t step) {
  Moments moments;
  const auto n = static_cast<double>(std::max<std::size_t>(count, 1));
  for (std::size_t i = 0; i < count; ++i) moments.mean += x[i * step] / n;
  for (std::size_t i = 0; i < count; ++i) {
    const double distance = x[i * step] - moments.mean;
    moments.variance += distance * distance / n;
  }
  return moments;
}

}  // namespace

void RefBackend::layer_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon, Tensor& y, Tensor& mean,
                            Tensor& rstd) {
  const std::size_t columns = x.shape().back();
  const std::vector<double> gain_c = load(gain);
  const std::vector<double> bias_c = load(bias);
  std::vector<double> values = load(x);
  std::vector<double> mean_r(mean.size());
  std::vector<double> rstd_r(rstd.size());
  for (std::size_t r = 0; r < mean_r.size(); ++r) {
    double* row = values.data() + r * columns;
    const Moments moments = moments_of(row, columns, 1);
    mean_r[r] = moments.mean;
    rstd_r[r] = 1 / std::sqrt(moments.variance + epsilon);
    for (std::size_t c = 0; c < columns; ++c) row[c] = (row[c] - mean_r[r]) * rstd_r[r] * gain_c[c] + bias_c[c];
  }
  store(y, values);
  store(mean, mean_r);
  store(rstd, rstd_r);
}

namespace {

// With xhat = (x - mean) rstd and g = dy gain of count elements, `step` apart: dx = rstd (g - mean(g) - xhat mean(g xhat)).
void normalisation_gradient(const double* xhat, const double* g, std::size_t count, std::size_t step, double rstd, double* dx) {
  double sum = 0;
  double product = 0;
  for (std::size_t i = 0; i < count; ++i) {
    sum += g[i * step];
    product += g[i * step] * xhat[i * step];
  }
  const auto n = static_cast<double>(count);
  for (std::size_t i = 0; i < count; ++i) dx[i * step] += rstd * (g[i * step] - sum / n - xhat[i * step] * product / n);
}

}  // namespace

void RefBackend::layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& mean,
                                     const Tensor& rstd, Tensor& dx, Tensor& dgain, Tensor& dbias, bool accumulate) {
  const std::size_t columns = x.shape().back();
  const std::vector<double> gain_c = load(gain);
  const std::vector<double> mean_r = load(mean);
  const std::vector<double> rstd_r = load(rstd);
  std::vector<double> xhat = load(x);
  std::vector<double> g = load(dy);
  std::vector<double> dgain_c = load(dgain);
  std::vector<double> dbias_c = load(dbias);
  std::vector<double> dx_rc = accumulate ? load(dx) : std::vector<double>(dx.size());
  for (std::size_t r = 0; r < mean_r.size(); ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      const std::size_t i = r * columns + c;
      xhat[i] = (xhat[i] - mean_r[r]) * rstd_r[r];
      dgain_c[c] += g[i] * xhat[i];
      dbias_c[c] += g[i];
      g[i] *= gain_c[c];
    }
    const std::size_t row = r * columns;
    normalisation_gradient(xhat.data() + row, g.data() + row, columns, 1, rstd_r[r], dx_rc.data() + row);
  }
  store(dx, dx_rc);
  store(dgain, dgain_c);
  store(dbias, dbias_c);
}

void RefBackend::batch_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon, Tensor& y, Tensor& mean,
                            Tensor& variance) {
  const std::size_t columns = x.shape().back();
  const std::size_t rows = x.shape().rows();
  const std::vector<double> gain_c = load(gain);
  const std::vector<double> bias_c = load(bias);
  std::vector<double> values = load(x);
  std::vector<double> mean_c(columns);
  std::vector<double> variance_c(columns);
  for (std::size_t c = 0; c < columns; ++c) {
    const Moments moments = moments_of(values.data() + c, rows, columns);
    mean_c[c] = moments.mean;
    variance_c[c] = moments.variance;
    const double rstd = 1 / std::sqrt(moments.variance + epsilon);
    for (std::size_t r = 0; r < rows; ++r) {
      double& value = values[r * columns + c];
      value = (value - moments.mean) * rstd * gain_c[c] + bias_c[c];
    }
  }
  store(y, values);
  store(mean, mean_c);
  store(variance, variance_c);
}

void RefBackend::batch_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& mean,
                                     const Tensor& variance, double epsilon, Tensor& dx, Tensor& dgain, Tensor& dbias) {
  const std::size_t columns = x.shape().back();
  const std::size_t rows = x.shape().rows();
  const std::vector<double> gain_c = load(gain);
  const std::vector<double> mean_c = load(mean);
  const std::vector<double> variance_c = load(variance);
  std::vector<double> xhat = load(x);
  std::vector<double> g = load(dy);
  std::vector<double> dgain_c = load(dgain);
  std::vector<double> dbias_c = load(dbias);
  std::vector<double> dx_rc(dx.size());
  for (std::size_t c = 0; c < columns; ++c) {
    const double rstd = 1 / std::sqrt(variance_c[c] + epsilon);
    for (std::size_t r = 0; r < rows; ++r) {
      const std::size_t i = r * columns + c;
      xhat[i] = (xhat[i] - mean_c[c]) * rstd;
      dgain_c[c] += g[i] * xhat[i];
      dbias_c[c] += g[i];
      g[i] *= gain_c[c];
    }
    normalisation_gradient(xhat.data() + c, g.data() + c, rows, columns, rstd, dx_rc.data() + c);
  }
  store(dx, dx_rc);
  store(dgain, dgain_c);
  store(dbias, dbias_c);
}

void RefBackend::batch_norm_inference(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& mean,
                                      const Tensor& variance, double epsilon, Tensor& y) {
  const std::size_t columns = x.shape().back();
  const std::vector<double> gain_c = load(gain);
  const std::vector<double> bias_c = load(bias);
  const std::vector<double> mean_c = load(mean);
  const std::vector<double> variance_c = load(variance);
  std::vector<double> values = load(x);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t c = i % columns;
    values[i] = (values[i] - mean_c[c]) / std::sqrt(variance_c[c] + epsilon) * gain_c[c] + bias_c[c];
  }
  store(y, values);
}

}  // namespace bitloom::nn::ref
