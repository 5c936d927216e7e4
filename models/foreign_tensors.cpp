#include "models/foreign_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/half.h"
#include "models/saved_values.h"
#include "nn/floats.h"

namespace bitloom::models {
namespace {

// Linear layers here have (inputs, outputs), unless they say otherwise; tables of rows are not called "weight".
bool is_turned(const nn::Parameter& parameter) {
  return parameter.shape.axes() == 2 && !parameter.transposed && parameter.name.ends_with(".weight");
}

std::vector<std::size_t> lengths_of(const nn::Shape& shape) { return {shape.lengths().begin(), shape.lengths().end()}; }

}  // namespace

std::vector<float> transposed(const std::vector<float>& matrix, std::size_t rows, std::size_t columns) {
  std::vector<float> result(matrix.size());
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) result[c * rows + r] = matrix[r * columns + c];
  }
  return result;
}

std::vector<float> to_floats(const bitloom::Tensor& tensor, const std::string& label) {
  std::vector<float> values(tensor.size());
  const auto convert = [&](const auto& from) {
    std::transform(from.begin(), from.end(), values.begin(), [](auto value) { return to_float(value); });
  };
  switch (tensor.dtype) {
    case DType::f32: std::ranges::copy(tensor.as<float>(), values.begin()); break;
    case DType::f16: convert(tensor.as<f16>()); break;
    case DType::bf16: convert(tensor.as<bf16>()); break;
    default: fail(ErrorKind::data, "{} is of type {}; expected F32, F16 or BF16", label, dtype_name(tensor.dtype));
  }
  return values;
}

std::string pytorch_name(const std::string& ours) {
  // Endings, where they differ.
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 3> endings{
      {{".gain", ".weight"}, {".moving_mean", ".running_mean"}, {".moving_variance", ".running_var"}}};
  for (const auto& [own, theirs] : endings) {
    if (ours.ends_with(own)) return ours.substr(0, ours.size() - own.size()) + std::string(theirs);
  }
  return ours;
}

TensorFile to_pytorch(nn::Engine& engine, nn::Layer& net, DType values, const Renaming& renaming) {
  TensorFile file;
  for (const nn::Parameter* parameter : nn::parameters_of(net)) {
    std::vector<std::size_t> shape = lengths_of(parameter->shape);
    std::vector<float> numbers = nn::to_floats(engine, parameter->value);
    if (is_turned(*parameter)) {
      numbers = transposed(numbers, shape[0], shape[1]);
      std::swap(shape[0], shape[1]);
    }
    file.put(renaming(parameter->name), shape, numbers);
  }
  for (const auto& [name, tensor] : buffers_of(engine, net, values)) {
    file.put(renaming(name), lengths_of(tensor->shape()), nn::to_floats(engine, *tensor));
  }
  return file;
}

void load_pytorch(nn::Engine& engine, const TensorFile& file, nn::Layer& net, DType values, const Renaming& renaming,
                  const std::string& file_name, const std::string& net_name, const std::vector<std::string>& others) {
  TensorFile renamed;
  std::set<std::string> known(others.begin(), others.end());
  const auto take = [&](const std::string& ours, const nn::Shape& shape, bool turn) {
    const std::string& theirs = *known.insert(renaming(ours)).first;
    const std::string label = fmt::format("{}: the tensor '{}'", file_name, theirs);
    std::vector<std::size_t> wanted = lengths_of(shape);
    if (turn) std::swap(wanted[0], wanted[1]);
    if (!file.contains(theirs)) {
      fail(ErrorKind::data, "{} is missing; expected one of shape ({})", label, fmt::join(wanted, ", "));
    }
    const bitloom::Tensor& tensor = file.get(theirs);
    if (tensor.shape != wanted) {
      fail(ErrorKind::data, "{} has the shape ({}); expected ({})", label, fmt::join(tensor.shape, ", "),
           fmt::join(wanted, ", "));
    }
    const std::vector<float> numbers = to_floats(tensor, label);
    renamed.put(ours, lengths_of(shape), turn ? transposed(numbers, wanted[0], wanted[1]) : numbers);
  };
  for (const nn::Parameter* parameter : nn::parameters_of(net)) take(parameter->name, parameter->shape, is_turned(*parameter));
  for (const auto& [ours, tensor] : buffers_of(engine, net, values)) take(ours, tensor->shape(), false);
  for (const auto& [theirs, tensor] : file.tensors) {
    if (known.contains(theirs) || theirs.ends_with(".num_batches_tracked")) continue;
    fail(ErrorKind::data, "{}: the tensor '{}' has no place in {}", file_name, theirs, net_name);
  }
  load_saved(engine, renamed, net, values);
}

}  // namespace bitloom::models
