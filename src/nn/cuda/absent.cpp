// In place of the backend, in a program that was built without CUDA.
#include "core/error.h"
#include "nn/backend.h"

namespace bitloom::nn {

std::vector<Gpu> gpus() { return {}; }

int gpu_count() { return 0; }

Gpu describe_gpu(int index) { fail(ErrorKind::io, "cuda:{}: {}", index, gpu_problem(index)); }

std::string gpu_problem(int /*index*/) { return "this program was built without CUDA"; }

std::unique_ptr<Backend> make_cuda_backend(int gpu) { fail(ErrorKind::usage, "cuda:{}: {}", gpu, gpu_problem(gpu)); }

}  // namespace bitloom::nn
