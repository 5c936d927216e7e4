// Running means that update rules keep of parameters.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "train/update_rule.h"

namespace bitloom::train {

// A moment of every parameter under "optimizer.NAME.PARAMETER" in files. narrow: type of those of matrices in residual blocks,
// if it is another than that of gradients.
class Moments {
 public:
  Moments(nn::Engine& engine, std::span<nn::Parameter* const> parameters, std::string name, std::optional<DType> narrow = {})
      : parameters_(parameters.begin(), parameters.end()), name_(std::move(name)) {
    for (const nn::Parameter* parameter : parameters_) {
      const DType type = parameter->gradient.dtype();
      const bool is_narrow = narrow && parameter->is_block_matrix();
      tensors_.push_back(engine.zeros(parameter->shape, is_narrow ? *narrow : type, nn::Use::optimizer));
    }
  }
  nn::Tensor& operator[](std::size_t i) { return tensors_[i]; }
  void add_state(std::vector<StateTensor>& all) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      all.push_back({"optimizer." + name_ + "." + parameters_[i]->name, &tensors_[i], parameters_[i]});
    }
  }

 private:
  std::vector<nn::Parameter*> parameters_;
  std::string name_;
  std::vector<nn::Tensor> tensors_;
};

}  // namespace bitloom::train
