#include "nn/ref/numbers.h"

#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>

#include "core/error.h"
#include "core/half.h"
#include "core/narrow.h"

namespace bitloom::nn::ref {
namespace {

double number_of(double x) { return x; }
double number_of(float x) { return x; }
double number_of(bf16 x) { return to_float(x); }
double number_of(f16 x) { return to_float(x); }
double number_of(f1_6_9 x) { return to_float(x); }
double number_of(f0_6_10 x) { return to_float(x); }

// Towards zero, with the last bit set if that was inexact. Rounding the result to fewer bits (by at least two) gives what
// rounding x itself gives (Boldo, Melquiond: "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding
// to odd", 2008); rounding to the nearest float first might land on a tie.
float rounded_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  if (nearest == x || std::isnan(x)) return nearest;
  const float below = std::fabs(static_cast<double>(nearest)) > std::fabs(x) ? std::nextafter(nearest, 0.0F) : nearest;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(below) | 1U);
}

template <typename T>
T rounded(double x) {
  if constexpr (std::floating_point<T>) {
    return static_cast<T>(x);
  } else {
    const float odd = rounded_to_odd(x);
    if constexpr (std::same_as<T, bf16>) return to_bf16(odd);
    if constexpr (std::same_as<T, f16>) return to_f16(odd);
    if constexpr (std::same_as<T, f1_6_9>) return to_f1_6_9(odd);
    if constexpr (std::same_as<T, f0_6_10>) return to_f0_6_10(odd);
  }
}

// operation(elements) with the tensor's elements as a span of their type.
template <typename Operation>
void with_elements(const Tensor& tensor, Operation operation) {
  switch (tensor.dtype()) {
    case DType::f64: return operation(tensor.as<double>());
    case DType::f32: return operation(tensor.as<float>());
    case DType::bf16: return operation(tensor.as<bf16>());
    case DType::f16: return operation(tensor.as<f16>());
    case DType::f1_6_9: return operation(tensor.as<f1_6_9>());
    case DType::f0_6_10: return operation(tensor.as<f0_6_10>());
    default: fail(ErrorKind::internal, "tensor {} does not hold floating-point numbers", to_text(tensor));
  }
}

}  // namespace

std::vector<double> load(const Tensor& tensor) {
  std::vector<double> numbers(tensor.size());
  with_elements(tensor, [&](auto elements) {
    for (std::size_t i = 0; i < elements.size(); ++i) numbers[i] = number_of(elements[i]);
  });
  return numbers;
}

void store(const Tensor& tensor, std::span<const double> numbers) {
  with_elements(tensor, [&]<typename T>(std::span<T> elements) {
    for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = rounded<T>(numbers[i]);
  });
}

void store(const Tensor& tensor, std::size_t element, double number) {
  with_elements(tensor, [&]<typename T>(std::span<T> elements) { elements[element] = rounded<T>(number); });
}

}  // namespace bitloom::nn::ref
