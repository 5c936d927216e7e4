// Where tensors live and ops run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bitloom::nn {

struct Device {
  enum class Kind { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;  // number of the GPU

  friend bool operator==(const Device&, const Device&) = default;
};

// "cpu", "cuda:0".
std::string name_of(Device device);

struct Gpu {
  std::string name;
  std::uint64_t memory = 0, free_memory = 0;  // bytes
  int major = 0, minor = 0;                   // compute capability
  int multiprocessors = 0;
};
// Those of this machine, in the order of their indices; none where there is no driver, or this program has no CUDA.
std::vector<Gpu> gpus();
// Their number, without looking at them, which takes memory on each.
int gpu_count();
// "", or why this program cannot use GPU `index`: it was built without CUDA, or for other GPUs, there is no driver, or fewer
// GPUs.
std::string gpu_problem(int index);
// GPU `index`, whether this program has code for it or not. Throws Error(io) where there is none, or no driver.
Gpu describe_gpu(int index);
// Throws Error(usage), which names the field `device`, if this program cannot use the device.
void check_device(Device device);

// The device of "cpu", "cuda" (the first) or "cuda:N". The Error(usage) about anything else names `argument`.
Device parse_device(std::string_view argument, std::string_view text);

}  // namespace bitloom::nn
