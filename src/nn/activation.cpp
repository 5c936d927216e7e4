#include "nn/activation.h"

#include <array>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "core/field.h"
#include "core/suggest.h"
#include "nn/bit_pack.h"
#include "nn/group_quantiser.h"

namespace bitloom::nn {
namespace {

constexpr double sqrt_half = std::numbers::sqrt2 / 2;
constexpr double inverse_sqrt_2pi = std::numbers::inv_sqrtpi * sqrt_half;

// x * factor where a factor of 0 wins over an infinite x: exponential tails beat every power.
double damped(double x, double factor) { return factor == 0 ? 0 : x * factor; }

// Without overflow, and without the loss of digits of 1 - (something near 1) on either side.
double sigmoid(double x) {
  if (x >= 0) return 1 / (1 + std::exp(-x));
  const double e = std::exp(x);
  return e / (1 + e);
}

double sigmoid_derivative(double x) { return sigmoid(x) * sigmoid(-x); }

// The normal distribution function.
double normal_cdf(double x) { return 0.5 * std::erfc(-sqrt_half * x); }
double normal_pdf(double x) { return inverse_sqrt_2pi * std::exp(-0.5 * x * x); }

double gelu(double x) { return damped(x, normal_cdf(x)); }
double gelu_derivative(double x) { return normal_cdf(x) + damped(x, normal_pdf(x)); }

// 0.5 x (1 + tanh u) = x sigmoid(2 u), which keeps its digits where tanh u is near -1.
constexpr double gelu_cubic = 0.044715;
double gelu_tanh_argument(double x) { return 4 * inverse_sqrt_2pi * (x + gelu_cubic * x * x * x); }
double gelu_tanh(double x) { return damped(x, sigmoid(gelu_tanh_argument(x))); }
double gelu_tanh_derivative(double x) {
  const double u = gelu_tanh_argument(x);
  const double slope = 4 * inverse_sqrt_2pi * (1 + 3 * gelu_cubic * x * x);
  return sigmoid(u) + damped(x * slope, sigmoid_derivative(u));
}

double silu(double x) { return damped(x, sigmoid(x)); }
double silu_derivative(double x) { return sigmoid(x) + damped(x, sigmoid_derivative(x)); }

double tanh_value(double x) { return std::tanh(x); }
double tanh_derivative(double x) { return 4 * sigmoid_derivative(2 * x); }  // sech^2 x

constexpr double selu_alpha = 1.6732632423543772848170429916717;
constexpr double selu_lambda = 1.0507009873554804934193349852946;
double selu(double x) { return selu_lambda * (x > 0 ? x : selu_alpha * std::expm1(x)); }
double selu_derivative(double x) { return selu_lambda * (x > 0 ? 1 : selu_alpha * std::exp(x)); }

double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

double relu(double x) { return x <= 0 ? 0 : x; }  // NaN stays NaN
double relu_derivative(double x) { return x > 0 ? 1 : 0; }

constexpr std::array<double, 1> zero{0};

constexpr auto table = std::to_array<Activation>({
    {"gelu", "", &gelu, &gelu_derivative, Symmetry::half_turn, {}},
    {"gelu_tanh", "", &gelu_tanh, &gelu_tanh_derivative, Symmetry::half_turn, {}},
    {"silu", "swish", &silu, &silu_derivative, Symmetry::half_turn, {}},
    {"sigmoid", "", &sigmoid, &sigmoid_derivative, Symmetry::even, {}},
    {"tanh", "", &tanh_value, &tanh_derivative, Symmetry::even, {}},
    {"selu", "", &selu, &selu_derivative, Symmetry::none, zero},
    {"softplus", "", &softplus, &sigmoid, Symmetry::half_turn, {}},
    {"relu", "", &relu, &relu_derivative, Symmetry::half_turn, zero},
});

struct NamedQuantiser {
  const char* name;
  Quantiser quantiser;
};
constexpr auto quantisers = std::to_array<NamedQuantiser>({{"few-bit", Quantiser::few_bit}, {"act-nn", Quantiser::act_nn}});

}  // namespace

std::span<const Activation> activations() { return table; }

std::vector<std::string> activation_names() { return names_of(table); }

const Activation& find_activation(std::string_view name, std::string_view argument) {
  for (const Activation& activation : table) {
    if (!name.empty() && (name == activation.name || name == activation.alias)) return activation;
  }
  fail_unknown(argument, name, activation_names());
}

std::vector<std::string> quantiser_names() { return names_of(quantisers); }

Quantiser find_quantiser(std::string_view name) {
  return find_named(quantisers, name, marked_field("activation_quantiser")).quantiser;
}

std::uint64_t activation_stash_bytes(std::uint64_t elements, unsigned bits, Quantiser quantiser, std::size_t value_bytes) {
  if (bits == 0) return elements * value_bytes;
  const std::uint64_t ranges = quantiser == Quantiser::act_nn ? quantiser_groups(elements) * 2 * sizeof(float) : 0;
  return packed_bytes(elements, bits) + ranges;
}

void apply(const Activation& activation, std::span<const float> x_n, std::span<float> y_n) {
  if (x_n.size() != y_n.size()) {
    fail(ErrorKind::usage, "y: {} elements, expected {}, as many as x has", y_n.size(), x_n.size());
  }
  for (std::size_t i = 0; i < x_n.size(); ++i) y_n[i] = static_cast<float>(activation.value(x_n[i]));
}

}  // namespace bitloom::nn
