#include "tests/cases/case.h"

namespace bitloom::test {

const std::vector<Part>& all_parts() {
  static const std::vector<Part> parts = {
      {"matrices", matrix_cases, random_matrix_case},
      {"elements", element_cases, random_element_case},
      {"activations", activation_cases, random_activation_case},
      {"rows", row_cases, random_row_case},
      {"norms", norm_cases, random_norm_case},
      {"softmax", softmax_cases, random_softmax_case},
      {"attention", attention_cases, random_attention_case},
      {"convolution", conv_cases, random_conv_case},
      {"pooling", pool_cases, random_pool_case},
      {"loss", loss_cases, random_loss_case},
      {"categorical", categorical_cases, random_categorical_case},
      {"optimiser", optimizer_cases, random_optimizer_case},
  };
  return parts;
}

}  // namespace bitloom::test
