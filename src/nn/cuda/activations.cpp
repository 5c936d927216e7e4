// Activation functions.
#include <algorithm>
#include <array>
#include <string_view>

#include "core/error.h"
#include "nn/cuda/cuda_backend.h"
#include "nn/few_bit_stash.h"

namespace bitloom::nn::cuda {
namespace {

struct NamedFunction {
  std::string_view name;
  Function function;
};
constexpr auto functions = std::to_array<NamedFunction>({
    {"gelu", Function::gelu},
    {"gelu_tanh", Function::gelu_tanh},
    {"silu", Function::silu},
    {"sigmoid", Function::sigmoid},
    {"tanh", Function::tanh},
    {"selu", Function::selu},
    {"softplus", Function::softplus},
    {"relu", Function::relu},
});

FewBitNumbers numbers_of(const FewBitLookup& lookup, const std::vector<float>& numbers) {
  FewBitNumbers table;
  table.bits = lookup.bits;
  table.is_even = lookup.even;
  std::ranges::copy(numbers, table.numbers);
  return table;
}

}  // namespace

Function function_of(const Activation& activation) {
  const auto* const found = std::ranges::find(functions, std::string_view(activation.name), &NamedFunction::name);
  if (found == functions.end()) fail(ErrorKind::internal, "activation {}: no kernel", activation.name);
  return found->function;
}

void CudaBackend::activate(const Activation& activation, const Tensor& x, Tensor& y) {
  cuda::activate(stream(), function_of(activation), number_of(x), x.data(), y.data(), x.size());
}

void CudaBackend::activate_backward(const Activation& activation, const Tensor& x, const Tensor& dy, Tensor& dx) {
  cuda::activate_backward(stream(), function_of(activation), number_of(x), x.data(), dy.data(), dx.data(), x.size());
}

void CudaBackend::activate_few_bit(const Activation& activation, const FewBitTable& table, const Tensor& x, Tensor& y,
                                   Tensor& stash) {
  const FewBitLookup lookup = few_bit_lookup(table);
  cuda::activate_few_bit(stream(), function_of(activation), numbers_of(lookup, lookup.boundaries), number_of(x), x.data(),
                         y.data(), static_cast<std::uint8_t*>(stash.data()), x.size());
}

void CudaBackend::activate_few_bit_backward(const FewBitTable& table, const Tensor& stash, const Tensor& dy, Tensor& dx) {
  const FewBitLookup lookup = few_bit_lookup(table);
  cuda::activate_few_bit_backward(stream(), numbers_of(lookup, lookup.levels), number_of(dy),
                                  static_cast<const std::uint8_t*>(stash.data()), dy.data(), dx.data(), dy.size());
}

void CudaBackend::quantise_groups(const GroupRounding& rounding, const Tensor& x, Tensor& packed, Tensor& ranges) {
  cuda::quantise_groups(stream(), {rounding.bits, rounding.seed, rounding.site, rounding.first}, number_of(x), x.data(),
                        static_cast<std::uint8_t*>(packed.data()), static_cast<float*>(ranges.data()), x.size());
}

void CudaBackend::restore_groups(unsigned bits, const Tensor& packed, const Tensor& ranges, Tensor& x) {
  cuda::restore_groups(stream(), bits, static_cast<const std::uint8_t*>(packed.data()),
                       static_cast<const float*>(ranges.data()), number_of(x), x.data(), x.size());
}

}  // namespace bitloom::nn::cuda
