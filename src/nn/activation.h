// Pointwise activation functions and their derivatives: what few-bit tables are made from, and the plain reference of the float
// engine. Double precision, accurate in both tails; limits instead of NaN at infinities.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bitloom::nn {

// Effect of a change of the sign of x on the derivative.
enum class Symmetry {
  none,
  even,       // f'(-x) = f'(x): the sign of x need not be stored (Novikov et al., caption of figure 3)
  half_turn,  // f'(-x) = 1 - f'(x)
};

struct Activation {
  const char* name;
  const char* alias;  // another name that is in use, or ""
  double (*value)(double);
  double (*derivative)(double);
  Symmetry symmetry;
  std::span<const double> kinks;  // where the derivative jumps; there it has the value of the left side, as in PyTorch
};

// gelu (with erf: Hendrycks, Gimpel 2016), gelu_tanh (their approximation), silu (alias swish), sigmoid, tanh, selu (Klambauer
// et al. 2017), softplus, relu.
std::span<const Activation> activations();
// Their names without aliases.
std::vector<std::string> activation_names();

// By name or alias. Throws a usage error that names `argument`, the name and the closest known one.
const Activation& find_activation(std::string_view name, std::string_view argument = "activation");

// How the backward pass keeps few bits of an activation's input.
enum class Quantiser : std::uint8_t {
  few_bit,  // the interval of it in which the derivative is nearly constant (Novikov et al. 2022): few_bit.h
  act_nn,   // the input itself, rounded at random between the ends of its group (Chen et al. 2021): group_quantiser.h
};
// "few-bit", "act-nn".
std::vector<std::string> quantiser_names();
// Throws Error(usage) that names the field `activation_quantiser`.
Quantiser find_quantiser(std::string_view name);
// Bytes that are kept of a number of elements. bits 0: all of them, value_bytes each.
std::uint64_t activation_stash_bytes(std::uint64_t elements, unsigned bits, Quantiser quantiser, std::size_t value_bytes);

// y_n[i] = f(x_n[i]), computed in double and rounded once. The spans may be the same. Throws a usage error if sizes differ.
void apply(const Activation& activation, std::span<const float> x_n, std::span<float> y_n);

}  // namespace bitloom::nn
