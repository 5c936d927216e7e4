// The parameters that all workers of local steps share, and how sums of what they learned move them: descent with Nesterov's
// momentum by the mean difference between these parameters and workers' own (Douillard et al. 2023, DiLoCo, algorithm 1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "mpi/sparse.h"

namespace bitloom::train {

struct OuterOptions {
  double rate = 1;
  double momentum = 0.2;  // Nesterov's; 0: none. With the paper's 0.7 and 0.9 short trainings go too far (models/RESULTS.md)
};

// Differences of parameters are whole multiples of this.
inline constexpr double difference_unit = 0x1p-26;

class OuterParameters {
 public:
  struct Named {
    std::string name;
    std::vector<float> values;
  };

  OuterParameters(std::vector<Named> parameters, const OuterOptions& options);

  std::size_t size() const { return parameters_.size(); }
  const std::string& name(std::size_t p) const { return parameters_[p].name; }
  std::span<const float> values(std::size_t p) const { return parameters_[p].values; }

  // sum: of workers' differences, in units times their weights, whose sum is `weight`; above 0. Every element steps, since its
  // momentum does. Equal on all machines whose floats are IEEE 754's.
  void step(std::size_t p, const mpi::SparseVector& sum, double weight);

  // Values and, where there is any, momentum.
  void save(TensorFile& file) const;
  // Throws Error(data) that names what is missing or of another shape.
  void load(const TensorFile& file);

 private:
  std::vector<Named> parameters_;
  OuterOptions options_;
  std::vector<std::vector<float>> momentum_;  // by parameter; empty without
};

}  // namespace bitloom::train
