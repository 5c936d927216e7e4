// Where float models compute, and in which numbers: --device and --dtype.
#pragma once

#include <cstdint>
#include <string>

#include "cli/options.h"
#include "nn/engine.h"

namespace bitloom::cli {

void declare_device(Options& options, std::string& device);
void declare_dtype(Options& options, std::string& dtype);

// The device that --device names; "cuda" is for each of a host's ranks another GPU. Throws Error(usage) if this program cannot
// use it.
nn::Device choose_device(const std::string& device);
DType dtype_named(const std::string& dtype);
// The same, if the engine has values of that type. Throws Error(usage).
DType choose_dtype(const nn::Engine& engine, const std::string& dtype);

// Bytes that a run may plan with: most of what is free; of this machine's, the share of one of its processes.
std::uint64_t usable_memory(nn::Device device, int processes);

}  // namespace bitloom::cli
