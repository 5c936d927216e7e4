// oneDNN's product of matrices where it is fastest: what the products of the float engine are measured by.
#pragma once

#include <cstddef>
#include <memory>

#include "core/safetensors.h"

namespace bitloom::bench {

// Square matrices in the layouts that oneDNN likes best, with the threads that OpenMP has when it is made.
class OnednnMatmul {
 public:
  // dtype: f32 or bf16. Throws dnnl::error where the library has no such product for this CPU.
  explicit OnednnMatmul(DType dtype);
  ~OnednnMatmul();

  void run();
  static double flops();  // multiplications and additions of a run

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bitloom::bench
