// The ops of CpuBackend on rows and columns: normalisation, softmax, cross-entropy, sums of rows. Sums over rows are formed for
// fixed groups of rows, which are then added in order: the same bits for any number of threads.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "core/error.h"
#include "nn/cpu/cpu_backend.h"
#include "nn/cpu/elements.h"
#include "nn/cpu/kernel_tables.h"
#include "nn/cpu/parallel.h"

namespace bitloom::nn {
namespace {

// R rows in groups whose sums over rows one thread forms.
struct RowGroups {
  std::size_t rows = 0, columns = 0;
  std::size_t per_group = 1, count = 0;

  // At most `most` groups; a group has at least `elements` unless there are fewer rows.
  RowGroups(std::size_t all_rows, std::size_t all_columns, std::size_t elements, std::size_t most)
      : rows(all_rows), columns(all_columns) {
    const std::size_t enough = (elements + columns) / std::max<std::size_t>(columns, 1);
    per_group = std::max({enough, (rows + most - 1) / most, std::size_t{4}});
    per_group = (per_group + 3) / 4 * 4;  // kernels take four rows at a time
    count = (rows + per_group - 1) / per_group;
  }
  std::size_t first(std::size_t group) const { return group * per_group; }
  std::size_t size(std::size_t group) const { return std::min(per_group, rows - first(group)); }
  bool are_worth_threads(std::size_t bytes_per_element) const { return rows * columns * bytes_per_element >= parallel_bytes; }
};

// A row of partial sums for every group.
class Partials {
 public:
  Partials(const RowGroups& groups, std::size_t columns)
      : columns_(columns), count_(groups.count), sums_(std::make_unique_for_overwrite<float[]>(groups.count * columns)) {}
  float* of(std::size_t group) { return sums_.get() + group * columns_; }

  // Calls take(column, sum over all groups in double precision).
  template <typename Take>
  void add_up(const Take& take) const {
    constexpr std::size_t at_once = 64;
    const std::size_t strips = (columns_ + at_once - 1) / at_once;
    for_pieces(strips, columns_ * count_ * sizeof(float) >= parallel_bytes, [&](std::size_t strip) {
      const std::size_t first = strip * at_once;
      const std::size_t n = std::min(at_once, columns_ - first);
      std::array<double, at_once> sums = {};
      for (std::size_t group = 0; group < count_; ++group) {
        const float* from = sums_.get() + group * columns_ + first;
        for (std::size_t c = 0; c < n; ++c) sums[c] += static_cast<double>(from[c]);
      }
      for (std::size_t c = 0; c < n; ++c) take(first + c, sums[c]);
    });
  }

 private:
  std::size_t columns_, count_;
  std::unique_ptr<float[]> sums_;
};

constexpr std::size_t small_group = 8192;    // elements: enough to start a kernel for
constexpr std::size_t cached_group = 65536;  // fits into a core's cache, to be read twice
constexpr std::size_t most_groups = 64;
constexpr std::size_t most_cached_groups = 4096;

// sums += the partial ones.
void add_partials(const Partials& partials, float* sums) {
  partials.add_up([=](std::size_t c, double sum) { sums[c] = static_cast<float>(static_cast<double>(sums[c]) + sum); });
}

}  // namespace

void CpuBackend::add_row_sums(const Tensor& x, Tensor& sums) {
  const RowGroups groups(x.shape().rows(), x.shape().back(), small_group, most_groups);
  Partials partials(groups, groups.columns);
  with_type(x.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().column_sums;
    for_pieces(groups.count, groups.are_worth_threads(sizeof(V)), [&](std::size_t g) {
      kernel(elements<V>(x) + groups.first(g) * groups.columns, groups.size(g), groups.columns, partials.of(g));
    });
  });
  add_partials(partials, elements<float>(sums));
}

void CpuBackend::layer_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon, Tensor& y, Tensor& mean,
                            Tensor& rstd) {
  const std::size_t columns = x.shape().back();
  const float* const gain_c = elements<float>(gain);
  const float* const bias_c = elements<float>(bias);
  float* const mean_r = elements<float>(mean);
  float* const rstd_r = elements<float>(rstd);
  with_type(x.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().layer_norm;
    const V* const from = elements<V>(x);
    V* const to = elements<V>(y);
    for_rows(x.shape().rows(), columns, 2 * sizeof(V), [&](std::size_t row, std::size_t rows) {
      kernel(from + row * columns, gain_c, bias_c, static_cast<float>(epsilon), to + row * columns, mean_r + row, rstd_r + row,
             rows, columns);
    });
  });
}

void CpuBackend::layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& mean,
                                     const Tensor& rstd, Tensor& dx, Tensor& dgain, Tensor& dbias, bool accumulate) {
  const RowGroups groups(x.shape().rows(), x.shape().back(), small_group, most_groups);
  Partials gains(groups, groups.columns);
  Partials biases(groups, groups.columns);
  const float* const gain_c = elements<float>(gain);
  const float* const mean_r = elements<float>(mean);
  const float* const rstd_r = elements<float>(rstd);
  with_type(x.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().layer_norm_backward;
    for_pieces(groups.count, groups.are_worth_threads(3 * sizeof(V)), [&](std::size_t g) {
      const std::size_t row = groups.first(g);
      const std::size_t at = row * groups.columns;
      kernel(elements<V>(dy) + at, elements<V>(x) + at, gain_c, mean_r + row, rstd_r + row, elements<V>(dx) + at, gains.of(g),
             biases.of(g), groups.size(g), groups.columns, accumulate);
    });
  });
  add_partials(gains, elements<float>(dgain));
  add_partials(biases, elements<float>(dbias));
}

namespace {

// (rstd gain) of every column.
std::unique_ptr<float[]> factors_of(const float* gain, const float* variance, double epsilon, std::size_t columns) {
  auto factors = std::make_unique_for_overwrite<float[]>(columns);
  for (std::size_t c = 0; c < columns; ++c) {
    factors[c] = static_cast<float>(static_cast<double>(gain[c]) / std::sqrt(static_cast<double>(variance[c]) + epsilon));
  }
  return factors;
}

}  // namespace

void CpuBackend::batch_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon, Tensor& y, Tensor& mean,
                            Tensor& variance) {
  const RowGroups groups(x.shape().rows(), x.shape().back(), cached_group, most_cached_groups);
  const std::size_t columns = groups.columns;
  Partials means(groups, columns);
  Partials squares(groups, columns);
  with_type(x.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().column_moments;
    for_pieces(groups.count, groups.are_worth_threads(sizeof(V)), [&](std::size_t g) {
      kernel(elements<V>(x) + groups.first(g) * columns, groups.size(g), columns, means.of(g), squares.of(g));
    });
  });
  // Groups' moments are combined as in Chan, Golub, LeVeque 1979, (2.1), in double precision.
  float* const mean_c = elements<float>(mean);
  float* const variance_c = elements<float>(variance);
  for_pieces(columns, columns * groups.count * 8 >= parallel_bytes, [&](std::size_t c) {
    double centre = 0;
    double sum = 0;
    double n = 0;
    for (std::size_t g = 0; g < groups.count; ++g) {
      const auto size = static_cast<double>(groups.size(g));
      const double apart = static_cast<double>(means.of(g)[c]) - centre;
      sum += static_cast<double>(squares.of(g)[c]) + apart * apart * (n * size / (n + size));
      centre += apart * (size / (n + size));
      n += size;
    }
    mean_c[c] = static_cast<float>(centre);
    variance_c[c] = static_cast<float>(sum / n);
  });
  batch_norm_inference(x, gain, bias, mean, variance, epsilon, y);
}

void CpuBackend::batch_norm_inference(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& mean,
                                      const Tensor& variance, double epsilon, Tensor& y) {
  const std::size_t columns = x.shape().back();
  const auto factors = factors_of(elements<float>(gain), elements<float>(variance), epsilon, columns);
  const float* const mean_c = elements<float>(mean);
  const float* const bias_c = elements<float>(bias);
  with_type(x.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().normalise_columns;
    const V* const from = elements<V>(x);
    V* const to = elements<V>(y);
    for_rows(x.shape().rows(), columns, 2 * sizeof(V), [&](std::size_t row, std::size_t rows) {
      kernel(from + row * columns, mean_c, factors.get(), bias_c, to + row * columns, rows, columns);
    });
  });
}

// With z = (x - mean) rstd: dx = gain rstd (dy - mean of dy - z mean of dy z), Ioffe, Szegedy 2015, section 3, put together.
void CpuBackend::batch_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& mean,
                                     const Tensor& variance, double epsilon, Tensor& dx, Tensor& dgain, Tensor& dbias) {
  const RowGroups groups(x.shape().rows(), x.shape().back(), cached_group, most_cached_groups);
  const std::size_t columns = groups.columns;
  Partials slopes(groups, columns);
  Partials products(groups, columns);
  const float* const mean_c = elements<float>(mean);
  const float* const variance_c = elements<float>(variance);
  const auto factors = factors_of(elements<float>(gain), variance_c, epsilon, columns);
  const auto tilts = std::make_unique_for_overwrite<float[]>(columns);
  const auto shifts = std::make_unique_for_overwrite<float[]>(columns);
  const auto share = 1 / static_cast<double>(groups.rows);
  with_type(x.dtype(), [&]<typename V>(V) {
    const ValueKernels<V>& kernels = vector_kernels().of<V>();
    const V* const slope = elements<V>(dy);
    const V* const from = elements<V>(x);
    V* const to = elements<V>(dx);
    for_pieces(groups.count, groups.are_worth_threads(2 * sizeof(V)), [&](std::size_t g) {
      const std::size_t at = groups.first(g) * columns;
      kernels.column_products(slope + at, from + at, mean_c, groups.size(g), columns, slopes.of(g), products.of(g));
    });
    float* const dgain_c = elements<float>(dgain);
    float* const dbias_c = elements<float>(dbias);
    slopes.add_up([&](std::size_t c, double sum) {
      dbias_c[c] = static_cast<float>(static_cast<double>(dbias_c[c]) + sum);
      shifts[c] = static_cast<float>(-static_cast<double>(factors[c]) * sum * share);
    });
    products.add_up([&](std::size_t c, double sum) {
      const double inverse = 1 / (static_cast<double>(variance_c[c]) + epsilon);  // rstd^2
      dgain_c[c] = static_cast<float>(static_cast<double>(dgain_c[c]) + sum * std::sqrt(inverse));
      tilts[c] = static_cast<float>(-static_cast<double>(factors[c]) * inverse * sum * share);
    });
    for_rows(groups.rows, columns, 3 * sizeof(V), [&](std::size_t row, std::size_t rows) {
      const std::size_t at = row * columns;
      kernels.combine_columns(slope + at, from + at, mean_c, factors.get(), tilts.get(), shifts.get(), to + at, rows, columns);
    });
  });
}

void CpuBackend::softmax(const Tensor& x, Tensor& y) {
  const std::size_t columns = x.shape().back();
  with_type(x.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().softmax;
    const V* const from = elements<V>(x);
    V* const to = elements<V>(y);
    for_rows(x.shape().rows(), columns, 2 * sizeof(V),
             [&](std::size_t row, std::size_t rows) { kernel(from + row * columns, to + row * columns, rows, columns); });
  });
}

void CpuBackend::softmax_backward(const Tensor& y, const Tensor& dy, Tensor& dx) {
  const std::size_t columns = y.shape().back();
  with_type(y.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().softmax_backward;
    const V* const result = elements<V>(y);
    const V* const slope = elements<V>(dy);
    V* const to = elements<V>(dx);
    for_rows(y.shape().rows(), columns, 3 * sizeof(V), [&](std::size_t row, std::size_t rows) {
      const std::size_t at = row * columns;
      kernel(result + at, slope + at, to + at, rows, columns);
    });
  });
}

void CpuBackend::gumbel_softmax(const Gumbel& gumbel, const Tensor& x, Tensor& y) {
  const std::size_t columns = x.shape().back();
  const GumbelKey key{gumbel.seed, gumbel.site, static_cast<float>(1 / gumbel.temperature)};
  with_type(x.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().gumbel_softmax;
    const V* const from = elements<V>(x);
    V* const to = elements<V>(y);
    for_rows(x.shape().rows(), columns, 8 * sizeof(V), [&](std::size_t row, std::size_t rows) {
      const std::size_t at = row * columns;
      const auto scratch = std::make_unique_for_overwrite<float[]>(gumbel_scratch(columns));
      kernel(key, gumbel.first + at, from + at, to + at, scratch.get(), rows, columns);
    });
  });
}

void CpuBackend::categorical_kl(const Tensor& logits, double scale, Tensor& kl, Tensor* dlogits) {
  const std::size_t columns = logits.shape().back();
  float* const kl_r = elements<float>(kl);
  with_type(logits.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().categorical_kl;
    const V* const from = elements<V>(logits);
    V* const to = dlogits == nullptr ? nullptr : elements<V>(*dlogits);
    for_rows(kl.size(), columns, 4 * sizeof(V), [&](std::size_t row, std::size_t rows) {
      const std::size_t at = row * columns;
      kernel(from + at, static_cast<float>(scale), kl_r + row, to == nullptr ? nullptr : to + at, rows, columns);
    });
  });
}

namespace {

// targets (R) of `classes`.
std::span<const std::int32_t> checked_targets(const Tensor& targets, std::size_t classes) {
  const std::span<const std::int32_t> targets_r = targets.as<std::int32_t>();
  for (std::size_t r = 0; r < targets_r.size(); ++r) {
    const std::int32_t target = targets_r[r];
    if (target < -1 || target >= static_cast<std::int64_t>(classes)) {
      fail(ErrorKind::usage, "cross_entropy: targets[{}] is {}; expected -1 to {}", r, target, classes - 1);
    }
  }
  return targets_r;
}

// Rows of a gradient of f32, which gradient(row, to) computes, rounded to bf16.
template <typename Gradient>
void round_rows(Tensor& to, const Gradient& gradient) {
  const auto round = vector_kernels().of<bf16>().scale_add_f32;
  const std::size_t columns = to.shape()[1];
  bf16* const to_rc = elements<bf16>(to);
  for_rows(to.shape()[0], columns, sizeof(float) + sizeof(bf16), [&](std::size_t row, std::size_t rows) {
    std::vector<float> precise(columns);
    for (std::size_t r = row; r < row + rows; ++r) {
      gradient(r, precise.data());
      round(1, precise.data(), 0, to_rc + r * columns, columns);
    }
  });
}

}  // namespace

void CpuBackend::cross_entropy(const Tensor& logits, const Tensor& targets, std::size_t classes, double scale, Tensor& loss,
                               Tensor* dlogits, double smoothing) {
  const std::size_t columns = logits.shape()[1];
  const std::span<const std::int32_t> targets_r = checked_targets(targets, classes);
  float* const loss_r = elements<float>(loss);
  const TargetFactors factors{static_cast<float>(scale), static_cast<float>(smoothing)};
  if (dlogits != nullptr && dlogits->dtype() != logits.dtype()) {
    const auto kernel = vector_kernels().of<float>().cross_entropy;
    const float* const from = elements<float>(logits);
    round_rows(*dlogits, [&](std::size_t r, float* to) {
      kernel(from + r * columns, targets_r.data() + r, classes, columns, factors, loss_r + r, to, 1);
    });
    return;
  }
  with_type(logits.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().cross_entropy;
    const V* const from = elements<V>(logits);
    V* const to = dlogits == nullptr ? nullptr : elements<V>(*dlogits);
    for_rows(targets_r.size(), columns, 2 * sizeof(V), [&](std::size_t row, std::size_t rows) {
      kernel(from + row * columns, targets_r.data() + row, classes, columns, factors, loss_r + row,
             to == nullptr ? nullptr : to + row * columns, rows);
    });
  });
}

namespace {

ClassColumns columns_of(const Tensor& logits, const VocabularySlice& slice) {
  const std::size_t columns = logits.shape()[1];
  return {slice.first, slice.count(columns), columns};
}

}  // namespace

void CpuBackend::cross_entropy_maxima(const Tensor& logits, const VocabularySlice& slice, Tensor& maxima) {
  const ClassColumns columns = columns_of(logits, slice);
  float* const maxima_r = elements<float>(maxima);
  with_type(logits.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().cross_entropy_maxima;
    const V* const from = elements<V>(logits);
    for_rows(maxima.size(), columns.pitch, sizeof(V),
             [&](std::size_t row, std::size_t rows) { kernel(from + row * columns.pitch, columns, maxima_r + row, rows); });
  });
}

void CpuBackend::cross_entropy_terms(const Tensor& logits, const Tensor& targets, const VocabularySlice& slice,
                                     const Tensor& maxima, Tensor& terms) {
  const ClassColumns columns = columns_of(logits, slice);
  const std::span<const std::int32_t> targets_r = checked_targets(targets, slice.all);
  const float* const maxima_r = elements<float>(maxima);
  float* const sums_r = elements<float>(terms);
  float* const of_target_r = sums_r + targets_r.size();
  with_type(logits.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().cross_entropy_terms;
    const V* const from = elements<V>(logits);
    for_rows(targets_r.size(), columns.pitch, sizeof(V), [&](std::size_t row, std::size_t rows) {
      kernel(from + row * columns.pitch, targets_r.data() + row, columns, maxima_r + row, sums_r + row, of_target_r + row,
             rows);
    });
  });
}

void CpuBackend::cross_entropy_of_terms(const Tensor& logits, const Tensor& targets, const VocabularySlice& slice,
                                        const Tensor& maxima, const Tensor& terms, double scale, Tensor& loss,
                                        Tensor* dlogits) {
  const ClassColumns columns = columns_of(logits, slice);
  const std::span<const std::int32_t> targets_r = checked_targets(targets, slice.all);
  const float* const maxima_r = elements<float>(maxima);
  const float* const sums_r = elements<float>(terms);
  float* const loss_r = elements<float>(loss);
  for (std::size_t r = 0; r < targets_r.size(); ++r) {
    const double entropy = std::log(static_cast<double>(sums_r[r])) - static_cast<double>(sums_r[targets_r.size() + r]);
    loss_r[r] = targets_r[r] < 0 ? 0 : static_cast<float>(entropy);
  }
  if (dlogits == nullptr) return;
  const auto gradient = [&]<typename V>(const V* from, std::size_t row, std::size_t rows, V* to) {
    vector_kernels().of<V>().cross_entropy_gradient(from + row * columns.pitch, targets_r.data() + row, columns, maxima_r + row,
                                                    sums_r + row, loss_r + row, static_cast<float>(scale), to, rows);
  };
  if (dlogits->dtype() != logits.dtype()) {
    const float* const from = elements<float>(logits);
    round_rows(*dlogits, [&](std::size_t r, float* to) { gradient(from, r, 1, to); });
    return;
  }
  with_type(logits.dtype(), [&]<typename V>(V) {
    const V* const from = elements<V>(logits);
    V* const to = elements<V>(*dlogits);
    for_rows(targets_r.size(), columns.pitch, 2 * sizeof(V),
             [&](std::size_t row, std::size_t rows) { gradient(from, row, rows, to + row * columns.pitch); });
  });
}

}  // namespace bitloom::nn
