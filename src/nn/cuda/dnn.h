// Convolutions. Two implementations: native/cudnn.cpp, and plain loops in tests/cuda.
#pragma once

#include <cstddef>
#include <memory>

#include "nn/cuda/runtime.h"

namespace bitloom::nn::cuda {

// y (N,Y',X',O) = x (N,Y,X,I) * w (O,KY,KX,I), the layout of weights that the hardware's products take; none of the lengths is
// 0.
struct Convolution {
  std::size_t images = 0, rows = 0, columns = 0, inputs = 0;
  std::size_t outputs = 0, kernel_rows = 0, kernel_columns = 0;
  std::size_t out_rows = 0, out_columns = 0;
  std::size_t stride = 1, padding = 0;
  Number number = Number::f32;
};

class Dnn {
 public:
  explicit Dnn(Runtime& runtime);
  ~Dnn();
  Dnn(const Dnn&) = delete;
  Dnn& operator=(const Dnn&) = delete;

  void forward(const Convolution& convolution, const void* x, const void* w, void* y);
  void backward_data(const Convolution& convolution, const void* dy, const void* w, void* dx);
  // dw of type V.
  void backward_weights(const Convolution& convolution, const void* x, const void* dy, void* dw);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bitloom::nn::cuda
