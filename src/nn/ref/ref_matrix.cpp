#include "nn/ref/numbers.h"
#include "nn/ref/ref_backend.h"

namespace bitloom::nn::ref {

void RefBackend::matmul(const Tensor& a, const Tensor& b, Tensor& out, const MatmulOptions& options) {
  const std::size_t axes = out.shape().axes();
  const std::size_t products = axes == 3 ? out.shape()[0] : 1;
  const std::size_t m = out.shape()[axes - 2];
  const std::size_t n = out.shape()[axes - 1];
  const std::size_t k = a.shape()[options.transpose_a ? axes - 2 : axes - 1];
  const std::vector<double> a_values = load(a);
  const std::vector<double> b_values = load(b);
  const std::vector<double> bias = options.bias ? load(options.bias) : std::vector<double>(n);
  std::vector<double> result = options.accumulate ? load(out) : std::vector<double>(out.size());
  for (std::size_t s = 0; s < products; ++s) {
    const double* a_s = a_values.data() + s * m * k;
    const double* b_s = b_values.data() + s * k * n;
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        double sum = 0;
        for (std::size_t l = 0; l < k; ++l) {
          sum += a_s[options.transpose_a ? l * m + i : i * k + l] * b_s[options.transpose_b ? j * k + l : l * n + j];
        }
        double& element = result[(s * m + i) * n + j];
        element += options.scale * sum + bias[j];
        if (options.activation != nullptr) element = options.activation->value(element);
      }
    }
  }
  store(out, result);
}

void RefBackend::add_row_sums(const Tensor& x, Tensor& sums) {
  const std::size_t columns = x.shape().back();
  const std::vector<double> x_rc = load(x);
  std::vector<double> sums_c = load(sums);
  for (std::size_t r = 0; r < x.shape().rows(); ++r) {
    for (std::size_t c = 0; c < columns; ++c) sums_c[c] += x_rc[r * columns + c];
  }
  store(sums, sums_c);
}

}  // namespace bitloom::nn::ref
