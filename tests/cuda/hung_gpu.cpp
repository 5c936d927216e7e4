// A program of its own, of 2 ranks with an emulated GPU each: their streams hang behind a sum over GPUs, as when a peer is
// gone. Reading a loss then ends as the sum would. Prints "hung GPU: passed".
#include <cstdio>
#include <string>
#include <vector>

#include "nn/engine.h"
#include "tests/cuda/emulated_runtime.h"
#include "train/gradient_sum.h"
#include "train/parallel/tensor.h"

namespace bitloom {
namespace {

std::string message_of_loss(nn::Engine& engine, const nn::Tensor& loss) {
  const emulated::HungStream hung;
  try {
    (void)engine.to_host<float>(loss);
  } catch (const mpi::PeerLost& error) {
    return error.what();
  }
  return {};
}

int run() {
  mpi::Environment environment;
  mpi::Comm& comm = environment.world();
  if (comm.size() != 2) return 1;
  comm.configure({.watchdog_seconds = 0.5});
  const std::string expected = fmt::format("a collective of rank {} of 2: no answer for 0.5 s", comm.rank());
  nn::Engine engine({nn::Device::Kind::cuda, 0}, "cuda");
  nn::Tensor loss = engine.from<float>(std::vector<float>{1}, {1}, nn::Use::data);
  std::vector<std::string> messages;
  {
    train::GradientSum sum(engine, comm);
    sum.sum({&loss, 1});
    messages.push_back(message_of_loss(engine, loss));
  }
  {
    train::TensorGroup group(comm);
    group.sum(engine, loss);
    messages.push_back(message_of_loss(engine, loss));
  }
  for (const std::string& message : messages) {
    if (message == expected) continue;
    std::fprintf(stderr, "hung GPU: failed on rank %d: '%s'\n", comm.rank(), message.c_str());
    return 1;
  }
  if (engine.to_host<float>(loss) != std::vector<float>{4}) return 1;
  comm.barrier();
  if (comm.is_root()) std::printf("hung GPU: passed\n");
  return 0;
}

}  // namespace
}  // namespace bitloom

int main() { return bitloom::run(); }
