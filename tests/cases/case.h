// One op of nn/ops.h on given shapes: what it reads and writes, and how to run it forward and backward. The same description is
// the op's test on every backend (run.h), its gradient check (gradient.h) and its benchmark.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "nn/ops.h"
#include "tests/cases/draw.h"

namespace bitloom::test {

// Which type the numbers of a slot have: V and P of nn/ops.h, or always the same.
enum class Kind { values, parameters, f32, f64, i32, u8 };

// A tensor of a case, by its name.
struct Slot {
  std::string name;
  Kind kind = Kind::values;
  nn::Shape shape;
  std::vector<double> numbers;  // before the call; none: poison, because the op overwrites all of it
  bool adds = false;            // the op adds to what is there
};

class Tensors {
 public:
  void set(const std::string& name, nn::Tensor tensor) { tensors_[name] = std::move(tensor); }
  // Throws std::out_of_range for a name that no slot has.
  nn::Tensor& operator[](const std::string& name) { return tensors_.at(name); }
  nn::Heads heads(const std::string& name, std::size_t first = 0) { return {tensors_.at(name), first}; }

 private:
  std::map<std::string, nn::Tensor> tensors_;
};

using Run = std::function<void(nn::Engine&, Tensors&)>;

// The op may write `output` into the memory of `input`.
struct InPlace {
  std::string output, input;
};

struct OpCase {
  std::vector<std::string> ops;  // functions of nn/ops.h that it calls
  std::string name;              // shapes and options
  std::vector<Slot> inputs;
  std::vector<Slot> outputs;  // outputs of forward
  Run forward;
  // Where there is a backward pass: the gradient of output "y" is given as upstream "dy", that of input "x" is wanted as
  // gradient "dx". Backward sees all other tensors too.
  std::vector<Slot> upstream = {};
  std::vector<Slot> gradients = {};
  Run backward = nullptr;
  std::vector<InPlace> forward_in_place = {}, backward_in_place = {};
  // Types that V may be.
  std::vector<DType> types = {DType::f64, DType::f32, DType::bf16, DType::f16};
  // Gradients are derivatives that differences of outputs show: not so where outputs are rounded or derivatives approximate.
  bool is_differentiable = true;
  double limit = 1;       // times that of the type, for ops that lose more
  bool is_large = false;  // more work than gradient checks should have, enough for several threads
};

// Numbers for slots, a function of the seed alone.
inline std::vector<double> normal_numbers(std::size_t n, std::uint64_t seed, double scale = 1, double mean = 0) {
  Random random(seed, Stream::test);
  std::vector<double> numbers(n);
  for (double& x : numbers) x = mean + scale * random.normal();
  return numbers;
}

// Integers from low to high, both included.
inline std::vector<double> whole_numbers(std::size_t n, std::uint64_t seed, std::int32_t low, std::int32_t high) {
  Random random(seed, Stream::test);
  std::vector<double> numbers(n);
  for (double& x : numbers) x = low + static_cast<double>(random.below(static_cast<std::uint32_t>(high - low + 1)));
  return numbers;
}

// Slots of normal numbers.
inline Slot values(const std::string& name, const nn::Shape& shape, std::uint64_t seed, double scale = 1, double mean = 0) {
  return {name, Kind::values, shape, normal_numbers(shape.size(), seed, scale, mean)};
}
inline Slot parameters(const std::string& name, const nn::Shape& shape, std::uint64_t seed, double scale = 1, double mean = 0) {
  return {name, Kind::parameters, shape, normal_numbers(shape.size(), seed, scale, mean)};
}
// The gradient of a parameter: something is there already.
inline Slot added_to(const std::string& name, const nn::Shape& shape, std::uint64_t seed, Kind kind = Kind::parameters) {
  return {name, kind, shape, normal_numbers(shape.size(), seed), true};
}
inline Slot overwritten(const std::string& name, const nn::Shape& shape, Kind kind = Kind::values) {
  return {name, kind, shape, {}};
}

// Sizes that are multiples of nothing, around vectors of 4 to 64 elements.
inline const std::vector<std::size_t> odd_sizes = {1, 3, 7, 31, 33, 65, 127};

// The cases of a part of nn/ops.h.
std::vector<OpCase> matrix_cases();
std::vector<OpCase> element_cases();
std::vector<OpCase> activation_cases();
std::vector<OpCase> row_cases();
std::vector<OpCase> norm_cases();
std::vector<OpCase> softmax_cases();
std::vector<OpCase> attention_cases();
std::vector<OpCase> conv_cases();
std::vector<OpCase> pool_cases();
std::vector<OpCase> loss_cases();
std::vector<OpCase> categorical_cases();
std::vector<OpCase> optimizer_cases();

// One of random shapes and options, of any op of a part.
OpCase random_matrix_case(Draw& draw);
OpCase random_element_case(Draw& draw);
OpCase random_activation_case(Draw& draw);
OpCase random_row_case(Draw& draw);
OpCase random_norm_case(Draw& draw);
OpCase random_softmax_case(Draw& draw);
OpCase random_attention_case(Draw& draw);
OpCase random_conv_case(Draw& draw);
OpCase random_pool_case(Draw& draw);
OpCase random_loss_case(Draw& draw);
OpCase random_categorical_case(Draw& draw);
OpCase random_optimizer_case(Draw& draw);

struct Part {
  const char* name;
  std::vector<OpCase> (*cases)();
  OpCase (*random)(Draw&);
};
// All of them.
const std::vector<Part>& all_parts();

}  // namespace bitloom::test
