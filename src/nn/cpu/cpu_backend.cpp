#include "nn/missing_backend.h"

namespace bitloom::nn {
std::unique_ptr<Backend> make_cpu_backend() { return nullptr; }
}  // namespace bitloom::nn
