#include "cli/device.h"

#include <array>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "cli/system.h"
#include "core/error.h"
#include "core/memory.h"

namespace bitloom::cli {
namespace {

struct Named {
  std::string_view name;
  DType dtype;
};
constexpr std::array dtype_table = {Named{"f32", DType::f32}, Named{"bf16", DType::bf16}, Named{"f16", DType::f16}};

// The GPU of a process among those of its host. Launchers that give each process a GPU of its own (Slurm with
// --gpus-per-task, CUDA_VISIBLE_DEVICES in a wrapper) show it that one as number 0.
int gpu_of_process() {
  const int rank = local_rank();
  const bool is_given_one = std::getenv("CUDA_VISIBLE_DEVICES") != nullptr && nn::gpu_count() == 1;
  return is_given_one ? 0 : rank;
}

}  // namespace

void declare_device(Options& options, std::string& device) {
  options.text(
      "device", device, "NAME",
      "Device that computes: cpu, cuda or cuda:N, N counted from 0; cuda: the first GPU, or with several processes on a "
      "host the one of the process's number there, or the one that CUDA_VISIBLE_DEVICES shows it");
}

void declare_dtype(Options& options, std::string& dtype) {
  std::vector<std::string> names;
  for (const Named& each : dtype_table) names.emplace_back(each.name);
  options.choice("dtype", dtype, names, "Type of activations and of the matrices that products read; f16 on GPUs alone");
}

nn::Device choose_device(const std::string& device) {
  nn::Device chosen = nn::parse_device("--device", device);
  if (device == "cuda") chosen.index = gpu_of_process();
  nn::check_device(chosen);
  return chosen;
}

DType dtype_named(const std::string& dtype) {
  for (const Named& each : dtype_table) {
    if (each.name == dtype) return each.dtype;
  }
  fail(ErrorKind::internal, "--dtype: '{}' is none", dtype);
}

DType choose_dtype(const nn::Engine& engine, const std::string& dtype) {
  const DType values = dtype_named(dtype);
  if (engine.supports(values)) return values;
  fail(ErrorKind::usage, "--dtype: {}; backend {} has no values of that type", dtype, engine.backend_name());
}

std::uint64_t usable_memory(nn::Device device, int processes) {
  if (device.kind == nn::Device::Kind::cpu) return available_memory() / 5 * 4 / static_cast<std::uint64_t>(processes);
  // Blocks that are free may be of other sizes than what is asked for.
  return nn::describe_gpu(device.index).free_memory / 10 * 9;
}

}  // namespace bitloom::cli
