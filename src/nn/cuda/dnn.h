// Convolutions (kernels.h) by a library. Two implementations: native/cudnn.cpp, and plain loops in tests/cuda.
#pragma once

#include <cstddef>
#include <memory>

#include "nn/cuda/notes.h"
#include "nn/cuda/runtime.h"

namespace bitloom::nn::cuda {

class Dnn {
 public:
  // Both outlive this. Notes: of algorithms that were passed over for want of memory.
  Dnn(Runtime& runtime, Notes& notes);
  ~Dnn();
  Dnn(const Dnn&) = delete;
  Dnn& operator=(const Dnn&) = delete;

  // The most images of such convolutions that the library takes at once; 0 if it takes none.
  static std::size_t most_images(const Convolution& convolution);

  // False, with nothing done, if the library has no algorithm for the convolution that gives the same bits every time, or if it
  // has more than most_images(). Throws Error if the library fails, and OutOfMemory.
  bool forward(const Convolution& convolution, const void* x, const void* w, void* y);
  bool backward_data(const Convolution& convolution, const void* dy, const void* w, void* dx);
  // dw of type V.
  bool backward_weights(const Convolution& convolution, const void* x, const void* dy, void* dw);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bitloom::nn::cuda
