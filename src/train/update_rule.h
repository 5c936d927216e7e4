// How an optimiser's step follows from gradients: AdamW, Muon, RMSProp, or stochastic gradient descent with momentum. Each
// keeps its moments.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/safetensors.h"
#include "nn/parameter.h"

namespace bitloom::train {

struct OptimizerOptions;

// A tensor of what a training goes on from, by its name in files.
struct StateTensor {
  std::string name;
  nn::Tensor* tensor;
  const nn::Parameter* parameter;  // whose elements it goes with, one by one; none: a buffer of the net
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // Moves parameters number `which`, all of which take their step number `count`, counted from 1, by their gradients times
  // `scale`; share: of the peak learning rate that `rate` is.
  struct Step {
    std::uint64_t count = 1;
    double rate = 0, share = 1, scale = 1;
  };
  virtual void move(std::span<const std::size_t> which, const Step& step) = 0;
  virtual void add_state(std::vector<StateTensor>& all) = 0;
};

// Throws Error(usage) for a parameter with a learning rate of its own, for which there is SGD alone.
void require_usual_rate(const nn::Parameter& parameter, std::string_view rule);

struct NamedUpdateRule {
  const char* name;           // "adamw", "muon", "rmsprop", "sgd"
  std::size_t moments;        // tensors that it keeps of every parameter
  std::size_t block_moments;  // of one that is a matrix in a residual block
  std::unique_ptr<UpdateRule> (*make)(nn::Engine& engine, std::span<nn::Parameter* const> parameters,
                                      const OptimizerOptions& options, std::uint64_t seed);
};
std::vector<std::string> update_rule_names();
// Throws Error(usage) that names the field `optimizer`.
const NamedUpdateRule& find_update_rule(std::string_view name);

// Bytes of the moments of an element of a parameter that has gradients of `gradient_bytes`.
std::size_t moment_bytes(const OptimizerOptions& options, bool is_block_matrix, std::size_t gradient_bytes);

// A parameter's values, or a buffer's, from and to a file, under its name. load_tensor() throws Error(data) that names what is
// missing or of another shape.
void save_tensor(nn::Engine& engine, TensorFile& file, const std::string& name, const nn::Tensor& tensor);
void load_tensor(nn::Engine& engine, const TensorFile& file, const std::string& name, nn::Tensor& tensor);

}  // namespace bitloom::train
