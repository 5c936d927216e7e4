// The optimiser, and norms of gradients.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/narrow.h"
#include "nn/cuda/cuda_backend.h"
#include "nn/stochastic_rounding.h"

namespace bitloom::nn::cuda {
namespace {

// Kernels, which are of C++17, know these formats by their bits.
template <typename T, unsigned kFractionBits, unsigned kBias>
constexpr bool is_format_of(NarrowRounding<kFractionBits, kBias> /*rounding*/) {
  return T::fraction_bits == kFractionBits && T::bias == kBias;
}
static_assert(is_format_of<f1_6_9>(MeanRounding()) && is_format_of<f0_6_10>(VarianceRounding()));

std::size_t chunks_of(std::size_t size) { return (size + optimizer_chunk - 1) / optimizer_chunk; }

// Bytes of a table, so that what follows it is aligned.
template <typename Part>
std::size_t table_bytes(const std::vector<Part>& parts) {
  constexpr std::size_t line = 256;
  return (parts.size() * sizeof(Part) + line - 1) / line * line;
}

bool are_aligned(const AdamWTensors& each) {
  const auto is_aligned = [](const Tensor& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.data()) % 16 == 0; };
  return is_aligned(each.value) && is_aligned(each.gradient) && is_aligned(each.mean) && is_aligned(each.variance) &&
         is_aligned(each.copy);
}

AdamWFactors factors_of(const AdamWStep& step) {
  const auto number = static_cast<double>(step.step);
  return {.rate = static_cast<float>(step.rate),
          .beta1 = static_cast<float>(step.beta1),
          .rest1 = static_cast<float>(1 - step.beta1),
          .beta2 = static_cast<float>(step.beta2),
          .rest2 = static_cast<float>(1 - step.beta2),
          .correction1 = static_cast<float>(1 / (1 - std::pow(step.beta1, number))),
          .correction2 = static_cast<float>(1 / (1 - std::pow(step.beta2, number))),
          .variance_limit =
              step.variance_limit > 0 ? static_cast<float>(step.variance_limit) : std::numeric_limits<float>::infinity(),
          .epsilon = static_cast<float>(step.epsilon),
          .decay = static_cast<float>(step.decay),
          .gradient_scale = static_cast<float>(step.gradient_scale),
          .step = step.step};
}

}  // namespace

void CudaBackend::adamw(std::span<const AdamWTensors> tensors, const AdamWStep& step) {
  std::vector<AdamWPart> parts;
  std::size_t chunks = 0;
  for (const AdamWTensors& each : tensors) {
    const std::size_t size = each.value.size();
    if (size == 0) continue;
    parts.push_back({.value = each.value.data(),
                     .mean = each.mean.data(),
                     .variance = each.variance.data(),
                     .gradient = static_cast<const float*>(each.gradient.data()),
                     .copy = each.copy.data(),
                     .size = size,
                     .first_chunk = chunks,
                     .rounding_key = each.rounding_key,
                     .first_number = each.numbers.first,
                     .run = each.numbers.run,
                     .stride = each.numbers.stride,
                     .begin = each.numbers.begin,
                     .value_number = number_of(each.value),
                     .copy_number = each.copy ? number_of(each.copy) : Number::f32,
                     .decays = each.decays,
                     .has_narrow_moments = each.mean.dtype() == DType::f1_6_9,
                     .is_wide = are_aligned(each)});
    chunks += chunks_of(size);
  }
  if (parts.empty()) return;
  void* const table = workspace(table_bytes(parts));
  runtime_.upload(table, std::as_bytes(std::span(parts)));
  cuda::adamw(stream(), factors_of(step), static_cast<const AdamWPart*>(table), parts.size(), chunks);
}

std::vector<double> CudaBackend::sums_of_squares(std::span<const Tensor> tensors) {
  std::vector<SquaresPart> parts;
  std::size_t chunks = 0;
  for (const Tensor& x : tensors) {
    if (x.size() == 0) continue;
    parts.push_back({x.data(), x.size(), chunks, number_of(x)});
    chunks += chunks_of(x.size());
  }
  if (parts.empty()) return {};
  static_assert(optimizer_chunk == squares_chunk);
  auto* const table = static_cast<std::byte*>(workspace(table_bytes(parts) + chunks * sizeof(double)));
  runtime_.upload(table, std::as_bytes(std::span(parts)));
  auto* const on_device = reinterpret_cast<double*>(table + table_bytes(parts));
  cuda::sums_of_squares(stream(), reinterpret_cast<const SquaresPart*>(table), parts.size(), chunks, on_device);
  std::vector<double> sums(chunks);
  read(on_device, std::as_writable_bytes(std::span(sums)));
  return sums;
}

}  // namespace bitloom::nn::cuda
