#include "tests/cases/case.h"

namespace bitloom::test {

const std::vector<Part>& all_parts() {
  static const std::vector<Part> parts = {
      {"matrices", matrix_cases}, {"elements", element_cases}, {"activations", activation_cases}, {"rows", row_cases},
      {"norms", norm_cases},      {"softmax", softmax_cases},  {"attention", attention_cases},    {"convolution", conv_cases},
      {"pooling", pool_cases},    {"loss", loss_cases},        {"optimiser", optimizer_cases},
  };
  return parts;
}

}  // namespace bitloom::test
