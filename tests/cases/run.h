// Runs a case on a backend, and says whether two backends agree.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "tests/cases/case.h"

namespace bitloom::test {

// The type of a slot where V is `values`.
DType dtype_of(Kind kind, DType values);

// A new tensor of a floating type, i32 or u8 that holds these numbers, rounded; and back.
nn::Tensor to_tensor(nn::Engine& engine, const std::vector<double>& numbers, const nn::Shape& shape, DType dtype);
std::vector<double> to_numbers(nn::Engine& engine, const nn::Tensor& tensor);

struct RunOptions {
  bool is_misaligned = false;  // tensors begin one element behind what vectors would like
  bool in_place = false;       // wherever the case allows it
  bool backward = true;
  const struct Outcome* kept = nullptr;  // backward is given these outputs, of another backend, instead of its own
};

// Computed outputs and gradients of a case, by name.
struct Outcome {
  std::map<std::string, std::vector<double>> numbers;
  std::map<std::string, std::vector<std::byte>> bytes;
  std::string problem;  // "", or which tensor was written that should not have been
};

// The case with its inputs rounded to what they become where V is `values`, so that engines of other types start from the same.
OpCase rounded(OpCase the_case, DType values);

// Outputs are poisoned before the call. All tensors have guards around them, which are checked after the calls, as is that
// inputs did not change.
Outcome run(const OpCase& the_case, nn::Engine& engine, DType values, const RunOptions& options = {});

// "", or what is wrong with outcomes of a case where V is `values`. Integers must be equal, floats agree within the case's
// limit.
std::string compare(const OpCase& the_case, const Outcome& actual, const Outcome& expected, DType values);

// "", or the first thing that is wrong with a case on a backend where V is `values`, against ref in double precision, whose
// backward pass is given the outputs that the backend's has, rounded as they are: with tensors where vectors like them and
// elsewhere, in place, and with 2 and 3 threads, which must give the same bits as 1.
std::string check_backend(const OpCase& the_case, nn::Engine& engine, DType values);

}  // namespace bitloom::test
