#include <algorithm>
#include <cmath>
#include <limits>

#include "nn/dropout.h"
#include "nn/ref/numbers.h"
#include "nn/ref/ref_backend.h"

namespace bitloom::nn::ref {

void RefBackend::softmax(const Tensor& x, Tensor& y) {
  const std::size_t columns = x.shape().back();
  std::vector<double> values = load(x);
  for (std::size_t r = 0; r < x.shape().rows(); ++r) {
    const std::span<double> row(values.data() + r * columns, columns);
    double largest = -std::numeric_limits<double>::infinity();
    for (const double value : row) largest = std::max(largest, value);
    double sum = 0;
    for (double& value : row) {
      value = std::exp(value - largest);
      sum += value;
    }
    for (double& value : row) value /= sum;
  }
  store(y, values);
}

void RefBackend::softmax_backward(const Tensor& y, const Tensor& dy, Tensor& dx) {
  const std::size_t columns = y.shape().back();
  const std::vector<double> y_rc = load(y);
  std::vector<double> gradient = load(dy);
  for (std::size_t r = 0; r < y.shape().rows(); ++r) {
    double sum = 0;
    for (std::size_t i = r * columns; i < (r + 1) * columns; ++i) sum += y_rc[i] * gradient[i];
    for (std::size_t i = r * columns; i < (r + 1) * columns; ++i) gradient[i] = y_rc[i] * (gradient[i] - sum);
  }
  store(dx, gradient);
}

namespace {

// The heads of a tensor, as numbers (B,T,H,D).
class Numbers {
 public:
  Numbers(const Heads& heads, const AttentionShape& shape)
      : heads_(heads), shape_(shape), width_(heads.tensor.shape()[2]), tokens_(heads.tensor.shape()[1]) {}

  static Numbers of(const Heads& heads, const AttentionShape& shape) {
    Numbers numbers(heads, shape);
    numbers.values_ = load(heads.tensor);
    return numbers;
  }
  static Numbers zeros(const Heads& heads, const AttentionShape& shape) {
    Numbers numbers(heads, shape);
    numbers.values_.resize(heads.tensor.size());
    return numbers;
  }

  std::size_t sequences() const { return heads_.tensor.shape()[0]; }
  // The D numbers of head h of token t.
  double* at(std::size_t b, std::size_t t, std::size_t h) { return values_.data() + place(b, t, h); }
  const double* at(std::size_t b, std::size_t t, std::size_t h) const { return values_.data() + place(b, t, h); }

  // Into the tensor; its other columns stay as they are.
  void store_heads() const {
    for (std::size_t b = 0; b < sequences(); ++b) {
      for (std::size_t t = 0; t < tokens_; ++t) {
        const std::size_t begin = place(b, t, 0);
        for (std::size_t i = begin; i < begin + shape_.heads * shape_.head_size; ++i) store(heads_.tensor, i, values_[i]);
      }
    }
  }

 private:
  std::size_t place(std::size_t b, std::size_t t, std::size_t h) const {
    return (b * tokens_ + t) * width_ + heads_.first + h * shape_.head_size;
  }

  const Heads& heads_;
  const AttentionShape& shape_;
  std::size_t width_, tokens_;
  std::vector<double> values_;
};

double dot(const double* a, const double* b, std::size_t size) {
  double sum = 0;
  for (std::size_t d = 0; d < size; ++d) sum += a[d] * b[d];
  return sum;
}

void add_multiple(double factor, const double* x, std::size_t size, double* y) {
  for (std::size_t d = 0; d < size; ++d) y[d] += factor * x[d];
}

// By what the probability of a pair is multiplied: 0 if it is dropped. `row` is (number of the head) Q + q.
double kept(const Dropout& dropout, std::size_t row, std::size_t keys, std::size_t key) {
  const std::uint32_t threshold = dropout_threshold(dropout.rate);
  return is_dropped(dropout.seed, dropout.site, threshold, dropout.first + row * keys + key) ? 0 : dropout_factor(threshold);
}

}  // namespace

void RefBackend::attention(const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout, const Heads& q,
                           const Heads& k, const Heads& v, const Heads& out, Tensor& lse) {
  const std::size_t size = shape.head_size;
  const Numbers queries = Numbers::of(q, shape);
  const Numbers keys = Numbers::of(k, shape);
  const Numbers values = Numbers::of(v, shape);
  Numbers sums = Numbers::zeros(out, shape);
  std::vector<double> lse_bhq(lse.size());
  for (std::size_t b = 0; b < queries.sequences(); ++b) {
    for (std::size_t h = 0; h < shape.heads; ++h) {
      for (std::size_t i = 0; i < mask.queries(); ++i) {
        std::vector<double> score(mask.keys(), -std::numeric_limits<double>::infinity());  // score of pairs that are not seen
        for (std::size_t j = 0; j < mask.keys(); ++j) {
          if (mask.sees(i, j)) score[j] = shape.scale * dot(queries.at(b, i, h), keys.at(b, j, h), size);
        }
        const double largest = *std::ranges::max_element(score);
        double sum = 0;
        for (const double s : score) sum += std::exp(s - largest);
        const std::size_t row = (b * shape.heads + h) * mask.queries() + i;
        lse_bhq[row] = largest + std::log(sum);
        const std::size_t drawn_row = shape.number_of(b, h) * mask.queries() + i;
        for (std::size_t j = 0; j < mask.keys(); ++j) {
          if (!mask.sees(i, j)) continue;
          const double probability = std::exp(score[j] - largest) / sum;
          add_multiple(probability * kept(dropout, drawn_row, mask.keys(), j), values.at(b, j, h), size, sums.at(b, i, h));
        }
      }
    }
  }
  sums.store_heads();
  store(lse, lse_bhq);
}

void RefBackend::attention_backward(const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout,
                                    const Heads& q, const Heads& k, const Heads& v, const Heads& out, const Tensor& lse,
                                    const Heads& dout, const Heads& dq, const Heads& dk, const Heads& dv) {
  const std::size_t size = shape.head_size;
  const Numbers queries = Numbers::of(q, shape);
  const Numbers keys = Numbers::of(k, shape);
  const Numbers values = Numbers::of(v, shape);
  const Numbers outputs = Numbers::of(out, shape);
  const Numbers gradients = Numbers::of(dout, shape);
  Numbers dqueries = Numbers::zeros(dq, shape);
  Numbers dkeys = Numbers::zeros(dk, shape);
  Numbers dvalues = Numbers::zeros(dv, shape);
  const std::vector<double> lse_bhq = load(lse);
  for (std::size_t b = 0; b < queries.sequences(); ++b) {
    for (std::size_t h = 0; h < shape.heads; ++h) {
      for (std::size_t i = 0; i < mask.queries(); ++i) {
        const std::size_t row = (b * shape.heads + h) * mask.queries() + i;
        const std::size_t drawn_row = shape.number_of(b, h) * mask.queries() + i;
        const double* g = gradients.at(b, i, h);
        // The sum over keys of probability times its gradient, as in softmax_backward().
        const double mean_gradient = dot(g, outputs.at(b, i, h), size);
        for (std::size_t j = 0; j < mask.keys(); ++j) {
          if (!mask.sees(i, j)) continue;
          const double score = shape.scale * dot(queries.at(b, i, h), keys.at(b, j, h), size);
          const double probability = std::exp(score - lse_bhq[row]);
          const double factor = kept(dropout, drawn_row, mask.keys(), j);
          add_multiple(probability * factor, g, size, dvalues.at(b, j, h));
          const double dscore = probability * (factor * dot(g, values.at(b, j, h), size) - mean_gradient);
          add_multiple(shape.scale * dscore, keys.at(b, j, h), size, dqueries.at(b, i, h));
          add_multiple(shape.scale * dscore, queries.at(b, i, h), size, dkeys.at(b, j, h));
        }
      }
    }
  }
  dqueries.store_heads();
  dkeys.store_heads();
  dvalues.store_heads();
}

}  // namespace bitloom::nn::ref
