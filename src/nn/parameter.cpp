#include "nn/parameter.h"

#include <cmath>
#include <numbers>
#include <type_traits>
#include <utility>

#include "core/half.h"
#include "core/hash.h"
#include "core/random.h"
#include "nn/ops.h"

namespace bitloom::nn {

namespace {

// Box and Muller's method: tails as a normal distribution has them, unlike those of sums of uniform numbers.
double normal(Random& random) {
  const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
  return radius * std::cos(2 * std::numbers::pi * random.uniform());
}

template <typename T>
T converted(double x) {
  if constexpr (std::is_same_v<T, bf16>) {
    return to_bf16(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

template <typename T>
void write_initial(Engine& engine, Parameter& parameter, std::uint64_t seed) {
  std::vector<T> values(parameter.value.size(), converted<T>(parameter.constant));
  if (parameter.deviation > 0) {
    const std::uint64_t name = hash_bytes(std::as_bytes(std::span(parameter.name))).low;
    const ElementNumbers numbers = parameter.numbers();
#pragma omp parallel for schedule(static)
    for (std::size_t i = 0; i < values.size(); ++i) {
      Random random(seed, Stream::weight_init, name, numbers(i));
      values[i] = converted<T>(parameter.constant + parameter.deviation * normal(random));
    }
  }
  engine.write(parameter.value, std::as_bytes(std::span(values)));
}

}  // namespace

bool Parameter::has_master(MasterWeights masters) const { return masters == MasterWeights::f32 || !is_block_matrix(); }

Parameter vector_parameter(const std::string& name, std::size_t size, double constant) {
  Parameter parameter;
  parameter.name = name;
  parameter.shape = {size};
  parameter.decays = false;
  parameter.reads_values = false;
  parameter.constant = constant;
  return parameter;
}

void make_parameters(Engine& engine, std::span<Parameter* const> parameters, DType values, MasterWeights masters) {
  const DType type = parameter_type(values);
  for (Parameter* parameter : parameters) {
    const DType kept = parameter->has_master(masters) ? type : values;
    parameter->value = engine.empty(parameter->shape, kept, Use::parameters);
    const bool copies = parameter->reads_values && values != parameter->value.dtype();
    parameter->copy = copies ? engine.empty(parameter->shape, values, Use::parameters) : parameter->value;
  }
}

void initialise(Engine& engine, std::span<Parameter* const> parameters, DType values, std::uint64_t seed,
                MasterWeights masters) {
  const DType type = parameter_type(values);
  make_parameters(engine, parameters, values, masters);
  for (Parameter* parameter : parameters) {
    parameter->gradient = engine.zeros(parameter->shape, type, Use::gradients);
    if (parameter->value.dtype() == DType::bf16) {
      write_initial<bf16>(engine, *parameter, seed);
    } else if (type == DType::f64) {
      write_initial<double>(engine, *parameter, seed);
    } else {
      write_initial<float>(engine, *parameter, seed);
    }
  }
  refresh_copies(engine, parameters);
}

void refresh_copies(Engine& engine, std::span<Parameter* const> parameters) {
  for (Parameter* parameter : parameters) {
    if (parameter->copy.dtype() != parameter->value.dtype()) convert(engine, parameter->value, parameter->copy);
  }
}

void clear_gradients(Engine& engine, std::span<Parameter* const> parameters) {
  for (Parameter* parameter : parameters) {
    parameter->is_cleared = parameter->overwrites;
    if (!parameter->overwrites) fill(engine, parameter->gradient, 0);
  }
}

bool must_add(Parameter& parameter) { return !std::exchange(parameter.is_cleared, false); }

void settle_gradients(Engine& engine, std::span<Parameter* const> parameters) {
  for (Parameter* parameter : parameters) {
    if (!must_add(*parameter)) fill(engine, parameter->gradient, 0);
  }
}

}  // namespace bitloom::nn
