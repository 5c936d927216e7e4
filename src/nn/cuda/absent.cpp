// In place of the backend, in a program that was built without CUDA.
#include "core/error.h"
#include "nn/backend.h"

namespace bitloom::nn {

std::vector<Gpu> gpus() { return {}; }

std::string gpu_problem(int /*index*/) { return "this program was built without CUDA; expected cpu"; }

std::unique_ptr<Backend> make_cuda_backend(int gpu) { fail(ErrorKind::usage, "--device: cuda:{}: {}", gpu, gpu_problem(gpu)); }

}  // namespace bitloom::nn
