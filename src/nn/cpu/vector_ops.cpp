// The ops of CpuBackend that go element by element, and the optimiser's: which piece of which tensor the kernels get.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "nn/cpu/cpu_backend.h"
#include "nn/cpu/elements.h"
#include "nn/cpu/kernel_tables.h"
#include "nn/cpu/parallel.h"
#include "nn/cpu/vector_arguments.h"
#include "nn/dropout.h"
#include "nn/few_bit_stash.h"
#include "nn/group_quantiser.h"
#include "nn/stochastic_rounding.h"

namespace bitloom::nn {
namespace {

std::size_t number_of(const Activation& activation) {
  const auto* const found = std::ranges::find(point_function_names, std::string_view(activation.name));
  if (found == std::end(point_function_names)) fail(ErrorKind::internal, "activation {}: no kernel", activation.name);
  return static_cast<std::size_t>(found - std::begin(point_function_names));
}

// Elements number begin ... of a tensor.
void quantise_group(const GroupRounding& rounding, std::size_t begin, std::span<const float> values, float* ends,
                    std::uint8_t* packed) {
  float lowest = values[0], highest = values[0];
  bool is_finite = true;
  for (const float value : values) {
    lowest = std::min(lowest, value);
    highest = std::max(highest, value);
    is_finite = is_finite && std::isfinite(value);
  }
  if (!is_finite) lowest = highest = std::numeric_limits<float>::quiet_NaN();
  ends[0] = lowest;
  ends[1] = highest;
  const GroupScale scale(lowest, highest, rounding.bits);
  BitPacker packer(packed, rounding.bits);
  for (std::size_t i = 0; i < values.size(); i += quantiser_draws) {
    const Philox4x32 draws = quantiser_rounding(rounding.seed, rounding.site, (rounding.first + begin + i) / quantiser_draws);
    for (std::size_t k = 0; k < std::min<std::size_t>(quantiser_draws, values.size() - i); ++k) {
      packer.put(scale.number(values[i + k], philox_half(draws, static_cast<unsigned>(k))));
    }
  }
  packer.finish();
}

}  // namespace

DropoutKey key_of(const Dropout& dropout) {
  const std::uint32_t threshold = dropout_threshold(dropout.rate);
  const float factor = threshold < 65536 ? static_cast<float>(dropout_factor(threshold)) : 0;
  return {dropout.seed, dropout.site, threshold, factor};
}

void CpuBackend::convert(const Tensor& x, Tensor& y) { scale_add(1, x, 0, y); }

void CpuBackend::fill(Tensor& y, double value) {
  const auto fill_with = [&]<typename T>(T element) {
    T* const to = elements<T>(y);
    for_elements(y.size(), sizeof(T), [=](std::size_t first, std::size_t n) { std::fill_n(to + first, n, element); });
  };
  switch (y.dtype()) {
    case DType::u8: return fill_with(static_cast<std::uint8_t>(value));
    case DType::i8: return fill_with(static_cast<std::int8_t>(value));
    case DType::u16: return fill_with(static_cast<std::uint16_t>(value));
    case DType::i16: return fill_with(static_cast<std::int16_t>(value));
    case DType::u32: return fill_with(static_cast<std::uint32_t>(value));
    case DType::i32: return fill_with(static_cast<std::int32_t>(value));
    case DType::u64: return fill_with(static_cast<std::uint64_t>(value));
    case DType::i64: return fill_with(static_cast<std::int64_t>(value));
    case DType::f32: return fill_with(static_cast<float>(value));
    case DType::f64: return fill_with(value);
    case DType::bf16: return fill_with(to_bf16(static_cast<float>(value)));
    case DType::f16: return fill_with(to_f16(static_cast<float>(value)));
    case DType::f1_6_9: return fill_with(to_f1_6_9(static_cast<float>(value)));
    case DType::f0_6_10: return fill_with(to_f0_6_10(static_cast<float>(value)));
  }
}

void CpuBackend::add(const Tensor& a, const Tensor& b, Tensor& y) {
  with_type(y.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().add;
    const V* const from_a = elements<V>(a);
    const V* const from_b = elements<V>(b);
    V* const to = elements<V>(y);
    for_elements(y.size(), 3 * sizeof(V), [=](std::size_t i, std::size_t n) { kernel(from_a + i, from_b + i, to + i, n); });
  });
}

void CpuBackend::scale_add(double alpha, const Tensor& x, double beta, Tensor& y) {
  const auto a = static_cast<float>(alpha);
  const auto b = static_cast<float>(beta);
  with_type(y.dtype(), [&]<typename V>(V) {
    V* const to = elements<V>(y);
    const ValueKernels<V>& kernels = vector_kernels().of<V>();
    if (x.dtype() == DType::bf16) {
      const bf16* const from = elements<bf16>(x);
      for_elements(y.size(), 4 + sizeof(V),
                   [=, &kernels](std::size_t i, std::size_t n) { kernels.scale_add_bf16(a, from + i, b, to + i, n); });
    } else {
      const float* const from = elements<float>(x);
      for_elements(y.size(), 4 + sizeof(V),
                   [=, &kernels](std::size_t i, std::size_t n) { kernels.scale_add_f32(a, from + i, b, to + i, n); });
    }
  });
}

void CpuBackend::add_finite(double alpha, const Tensor& x, Tensor& y) {
  with_type(x.dtype(), [&]<typename X>(X) {
    with_type(y.dtype(), [&]<typename Y>(Y) {
      const X* const from = elements<X>(x);
      Y* const to = elements<Y>(y);
      for_elements(y.size(), sizeof(X) + 2 * sizeof(Y), [=, a = static_cast<float>(alpha)](std::size_t first, std::size_t n) {
        for (std::size_t i = first; i < first + n; ++i) {
          const float each = to_float(from[i]);
          if (std::isfinite(each)) to[i] = from_float<Y>(to_float(to[i]) + a * each);
        }
      });
    });
  });
}

void CpuBackend::clamp(double limit, const Tensor& x, Tensor& y) {
  with_type(x.dtype(), [&]<typename V>(V) {
    const V* const from = elements<V>(x);
    V* const to = elements<V>(y);
    for_elements(x.size(), 2 * sizeof(V), [=, most = static_cast<float>(limit)](std::size_t first, std::size_t n) {
      for (std::size_t i = first; i < first + n; ++i) {
        const float each = to_float(from[i]);
        to[i] = std::abs(each) > most ? from_float<V>(std::copysign(most, each)) : from[i];
      }
    });
  });
}

void CpuBackend::clamp_backward(double limit, const Tensor& x, const Tensor& dy, Tensor& dx) {
  with_type(x.dtype(), [&]<typename V>(V) {
    const V* const values = elements<V>(x);
    const V* const from = elements<V>(dy);
    V* const to = elements<V>(dx);
    for_elements(x.size(), 3 * sizeof(V), [=, most = static_cast<float>(limit)](std::size_t first, std::size_t n) {
      for (std::size_t i = first; i < first + n; ++i) {
        to[i] = std::abs(to_float(values[i])) >= most ? V{} : from[i];
      }
    });
  });
}

void CpuBackend::activate(const Activation& activation, const Tensor& x, Tensor& y) {
  const std::size_t function = number_of(activation);
  with_type(x.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().activate[function];
    const V* const from = elements<V>(x);
    V* const to = elements<V>(y);
    for_elements(x.size(), 2 * sizeof(V), [=](std::size_t i, std::size_t n) { kernel(from + i, to + i, n); });
  });
}

void CpuBackend::activate_backward(const Activation& activation, const Tensor& x, const Tensor& dy, Tensor& dx) {
  const std::size_t function = number_of(activation);
  with_type(x.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().activate_backward[function];
    const V* const from = elements<V>(x);
    const V* const slope = elements<V>(dy);
    V* const to = elements<V>(dx);
    for_elements(x.size(), 3 * sizeof(V), [=](std::size_t i, std::size_t n) { kernel(from + i, slope + i, to + i, n); });
  });
}

void CpuBackend::activate_few_bit(const Activation& activation, const FewBitTable& table, const Tensor& x, Tensor& y,
                                  Tensor& stash) {
  const std::size_t function = number_of(activation);
  const FewBitLookup lookup = few_bit_lookup(table);
  std::uint8_t* const packed = elements<std::uint8_t>(stash);
  with_type(x.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().activate_few_bit[function];
    const V* const from = elements<V>(x);
    V* const to = elements<V>(y);
    for_elements(x.size(), 2 * sizeof(V), [&](std::size_t i, std::size_t n) {
      kernel(from + i, to + i, n, lookup.boundaries.data(), lookup.bits, lookup.even, packed + i / 8 * lookup.bits);
    });
  });
}

void CpuBackend::activate_few_bit_backward(const FewBitTable& table, const Tensor& stash, const Tensor& dy, Tensor& dx) {
  const FewBitLookup lookup = few_bit_lookup(table);
  const unsigned bits = lookup.bits;
  std::array<float, 256> levels = {};  // kernels may read whole vectors of them
  std::copy(lookup.levels.begin(), lookup.levels.end(), levels.begin());
  const std::uint8_t* const packed = elements<std::uint8_t>(stash);
  with_type(dy.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().few_bit_backward;
    const V* const slope = elements<V>(dy);
    V* const to = elements<V>(dx);
    for_elements(dy.size(), 2 * sizeof(V), [&](std::size_t i, std::size_t n) {
      kernel(packed + i / 8 * bits, levels.data(), bits, slope + i, to + i, n);
    });
  });
}

// In plain loops, since this is what few-bit tables are compared with: their speed is not.
void CpuBackend::quantise_groups(const GroupRounding& rounding, const Tensor& x, Tensor& packed, Tensor& ranges) {
  std::uint8_t* const to = elements<std::uint8_t>(packed);
  float* const ends = elements<float>(ranges);
  with_type(x.dtype(), [&]<typename V>(V) {
    const V* const from = elements<V>(x);
    const std::size_t size = x.size();
    for_rows(quantiser_groups(size), quantiser_group, sizeof(V), [=](std::size_t first_group, std::size_t groups) {
      for (std::size_t group = first_group; group < first_group + groups; ++group) {
        const std::size_t begin = group * quantiser_group;
        const std::size_t n = std::min(quantiser_group, size - begin);
        std::array<float, quantiser_group> values;
        for (std::size_t i = 0; i < n; ++i) values[i] = to_float(from[begin + i]);
        quantise_group(rounding, begin, std::span(values).first(n), ends + 2 * group, to + begin / 8 * rounding.bits);
      }
    });
  });
}

void CpuBackend::restore_groups(unsigned bits, const Tensor& packed, const Tensor& ranges, Tensor& x) {
  const std::uint8_t* const from = elements<std::uint8_t>(packed);
  const float* const ends = elements<float>(ranges);
  with_type(x.dtype(), [&]<typename V>(V) {
    V* const to = elements<V>(x);
    const std::size_t size = x.size();
    for_rows(quantiser_groups(size), quantiser_group, sizeof(V), [=](std::size_t first_group, std::size_t groups) {
      for (std::size_t group = first_group; group < first_group + groups; ++group) {
        const std::size_t begin = group * quantiser_group;
        BitUnpacker numbers(from + begin / 8 * bits, bits);
        for (std::size_t i = begin; i < std::min(size, begin + quantiser_group); ++i) {
          to[i] = from_float<V>(group_value(ends[2 * group], ends[2 * group + 1], numbers.get(), bits));
        }
      }
    });
  });
}

void CpuBackend::dropout(const Dropout& dropout, const Tensor& x, Tensor& y) {
  const DropoutKey key = key_of(dropout);
  with_type(x.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().dropout;
    const V* const from = elements<V>(x);
    V* const to = elements<V>(y);
    for_elements(x.size(), 2 * sizeof(V),
                 [&](std::size_t i, std::size_t n) { kernel(key, (dropout.first + i) / dropout_group, from + i, to + i, n); });
  });
}

namespace {

// A piece of one of many tensors.
struct TensorPiece {
  std::size_t tensor = 0, first = 0, size = 0;
};

// All pieces of all tensors, so that many small ones keep as many threads busy as a large one.
template <typename SizeOf>
std::vector<TensorPiece> pieces_of(std::size_t tensors, SizeOf size_of) {
  std::vector<TensorPiece> pieces;
  for (std::size_t tensor = 0; tensor < tensors; ++tensor) {
    const std::size_t size = size_of(tensor);
    for (std::size_t first = 0; first < size; first += piece_elements) {
      pieces.push_back({tensor, first, std::min(piece_elements, size - first)});
    }
  }
  return pieces;
}

// Elements first .. first + n - 1 of a tensor, whose moments (n) are in floats.
void adamw_piece(const AdamWTensors& each, const AdamWFactors& f, std::uint64_t step, std::size_t first, std::size_t n,
                 float* mean, float* variance) {
  const VectorKernels& kernels = vector_kernels();
  const auto at = [first](const Tensor& one) { return elements<float>(one) + first; };
  if (each.value.dtype() == DType::bf16) {
    each.numbers.for_runs(first, first + n, [&](std::size_t i, std::size_t number, std::size_t count) {
      kernels.adamw_rounding(f, {each.rounding_key, step}, number, elements<bf16>(each.value) + i,
                             elements<float>(each.gradient) + i, mean + (i - first), variance + (i - first), count);
    });
  } else if (each.copy && each.copy.dtype() == DType::bf16) {
    kernels.on_bf16.adamw(f, at(each.value), at(each.gradient), mean, variance, elements<bf16>(each.copy) + first, n);
  } else {
    kernels.on_f32.adamw(f, at(each.value), at(each.gradient), mean, variance, each.copy ? at(each.copy) : nullptr, n);
  }
}

// The same where moments have 16 bits: they are floats only in the caches.
void adamw_with_narrow_moments(const AdamWTensors& each, const AdamWFactors& f, std::uint64_t step, std::size_t first,
                               std::size_t n) {
  constexpr std::size_t at_once = 1024;
  alignas(64) float mean[at_once];
  alignas(64) float variance[at_once];
  const VectorKernels& kernels = vector_kernels();
  auto* const means = elements<f1_6_9>(each.mean);
  auto* const variances = elements<f0_6_10>(each.variance);
  const RoundingKey of_mean = {each.rounding_key, rounding_step(step, Rounded::mean)};
  const RoundingKey of_variance = {each.rounding_key, rounding_step(step, Rounded::variance)};
  for (std::size_t begin = first; begin < first + n; begin += at_once) {
    const std::size_t here = std::min(at_once, first + n - begin);
    kernels.widen_moments(means + begin, variances + begin, mean, variance, here);
    adamw_piece(each, f, step, begin, here, mean, variance);
    each.numbers.for_runs(begin, begin + here, [&](std::size_t i, std::size_t number, std::size_t count) {
      kernels.round_moments(of_mean, of_variance, number, mean + (i - begin), variance + (i - begin), means + i, variances + i,
                            count);
    });
  }
}

}  // namespace

void CpuBackend::adamw(std::span<const AdamWTensors> tensors, const AdamWStep& step) {
  AdamWFactors factors;
  factors.gradient_scale = static_cast<float>(step.gradient_scale);
  factors.beta1 = static_cast<float>(step.beta1);
  factors.rest1 = static_cast<float>(1 - step.beta1);
  factors.beta2 = static_cast<float>(step.beta2);
  factors.rest2 = static_cast<float>(1 - step.beta2);
  factors.mean_factor = static_cast<float>(1 / (1 - std::pow(step.beta1, static_cast<double>(step.step))));
  factors.variance_factor = static_cast<float>(1 / (1 - std::pow(step.beta2, static_cast<double>(step.step))));
  if (step.variance_limit > 0) factors.variance_limit = static_cast<float>(step.variance_limit);
  factors.epsilon = static_cast<float>(step.epsilon);
  factors.rate = static_cast<float>(step.rate);
  AdamWFactors decaying = factors;
  decaying.decay = static_cast<float>(step.rate * step.decay);
  const std::vector<TensorPiece> pieces = pieces_of(tensors.size(), [&](std::size_t i) { return tensors[i].value.size(); });
  for_pieces(pieces.size(), pieces.size() > 2, [&](std::size_t p) {
    const auto [tensor, first, n] = pieces[p];
    const AdamWTensors& each = tensors[tensor];
    const AdamWFactors& f = each.decays ? decaying : factors;
    if (each.mean.dtype() == DType::f1_6_9) {
      adamw_with_narrow_moments(each, f, step.step, first, n);
    } else {
      adamw_piece(each, f, step.step, first, n, elements<float>(each.mean) + first, elements<float>(each.variance) + first);
    }
  });
}

std::vector<double> CpuBackend::sums_of_squares(std::span<const Tensor> tensors) {
  static_assert(piece_elements == squares_chunk);
  const VectorKernels& kernels = vector_kernels();
  const std::vector<TensorPiece> pieces = pieces_of(tensors.size(), [&](std::size_t i) { return tensors[i].size(); });
  std::vector<double> sums(pieces.size());
  for_pieces(pieces.size(), pieces.size() > 8, [&](std::size_t p) {
    const auto [tensor, first, n] = pieces[p];
    const Tensor& x = tensors[tensor];
    sums[p] = x.dtype() == DType::bf16 ? kernels.on_bf16.sum_of_squares(elements<bf16>(x) + first, n)
                                       : kernels.on_f32.sum_of_squares(elements<float>(x) + first, n);
  });
  return sums;
}

}  // namespace bitloom::nn
