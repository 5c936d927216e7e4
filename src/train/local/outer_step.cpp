#include "train/local/outer_step.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace bitloom::train {
namespace {

std::string momentum_name(const std::string& parameter) { return "outer.momentum." + parameter; }

}  // namespace

OuterParameters::OuterParameters(std::vector<Named> parameters, const OuterOptions& options)
    : parameters_(std::move(parameters)), options_(options) {
  if (options.momentum == 0) return;
  for (const Named& parameter : parameters_) momentum_.emplace_back(parameter.values.size());
}

void OuterParameters::step(std::size_t p, const mpi::SparseVector& sum, double weight) {
  std::vector<float>& values = parameters_[p].values;
  if (sum.size != values.size()) {
    fail(ErrorKind::data, "a difference of {} elements for '{}'; expected {}", sum.size, parameters_[p].name, values.size());
  }
  const double scale = difference_unit / weight;
  const auto rate = static_cast<float>(options_.rate);
  if (momentum_.empty()) {
    for (std::size_t e = 0; e < sum.index.size(); ++e) {
      values[sum.index[e]] -= rate * static_cast<float>(scale * static_cast<double>(sum.value[e]));
    }
    return;
  }
  const auto keep = static_cast<float>(options_.momentum);
  std::vector<float>& momentum = momentum_[p];
  std::size_t e = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    float difference = 0;
    if (e < sum.index.size() && sum.index[e] == i) {
      difference = static_cast<float>(scale * static_cast<double>(sum.value[e++]));
    }
    const float kept = keep * momentum[i];
    momentum[i] = kept + difference;
    const float ahead = keep * momentum[i];
    values[i] -= rate * (difference + ahead);
  }
}

void OuterParameters::save(TensorFile& file) const {
  for (std::size_t p = 0; p < size(); ++p) {
    file.put(name(p), {values(p).size()}, values(p));
    if (!momentum_.empty()) file.put(momentum_name(name(p)), {momentum_[p].size()}, momentum_[p]);
  }
}

void OuterParameters::load(const TensorFile& file) {
  for (std::size_t p = 0; p < size(); ++p) {
    const std::vector<std::size_t> shape = {values(p).size()};
    std::ranges::copy(file.get(name(p), DType::f32, shape).as<float>(), parameters_[p].values.begin());
    if (momentum_.empty()) continue;
    std::ranges::copy(file.get(momentum_name(name(p)), DType::f32, shape).as<float>(), momentum_[p].begin());
  }
}

}  // namespace bitloom::train
