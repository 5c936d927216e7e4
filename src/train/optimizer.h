// AdamW over the parameters of a net, clipping by the global norm, and averages of the parameters.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "nn/parameter.h"

namespace bitloom::train {

struct OptimizerOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, decay = 0.01;
  double clip = 0;                  // largest norm of all gradients together; 0: any
  double average = 0;               // of an exponential moving average of the parameters, per update of it; 0: none
  std::uint64_t average_every = 1;  // steps between such updates
};

// Throws Error(usage), which names the option.
void check(const OptimizerOptions& options);

class Optimizer {
 public:
  // The parameters outlive this and have their memory. seed: of the rounding of values that have no f32 masters; a resumed run
  // has to have the same. Averages need masters: Error(usage).
  Optimizer(nn::Engine& engine, std::span<nn::Parameter* const> parameters, const OptimizerOptions& options,
            std::uint64_t seed = 1);

  // The norm of all gradients together, times `scale`. Not finite if a gradient is not.
  double gradient_norm(double scale) const;
  // The first parameter whose gradient is not finite.
  const nn::Parameter* find_bad_gradient() const;
  // One step with gradients times `scale`, clipped at `norm`'s expense; norm is gradient_norm(scale). skips: of residual blocks
  // whose parameters, moments and step counts stay as they are.
  void step(double rate, double scale, double norm, const std::function<bool(std::optional<std::size_t>)>& skips = {});
  // Steps that parameter `i` has taken.
  std::uint64_t steps(std::size_t i) const { return steps_[i]; }

  // The averages take the places of the parameters, and the other way round. Nothing without averages.
  void swap_averages();

  void save(TensorFile& file) const;
  // Throws Error(data) that names what is missing or of another shape.
  void load(const TensorFile& file);

 private:
  nn::Engine& engine_;
  std::vector<nn::Parameter*> parameters_;
  OptimizerOptions options_;
  std::vector<nn::Tensor> means_, variances_, averages_;
  std::vector<std::uint64_t> steps_, rounding_keys_;  // by parameter
  std::uint64_t all_steps_ = 0;
};

// How checkpoints call the moving average of a parameter.
std::string average_name(const std::string& parameter);

// A parameter's values, or a buffer's, from and to a file, under its name.
void save_tensor(nn::Engine& engine, TensorFile& file, const std::string& name, const nn::Tensor& tensor);
void load_tensor(nn::Engine& engine, const TensorFile& file, const std::string& name, nn::Tensor& tensor);

}  // namespace bitloom::train
