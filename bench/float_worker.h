// What the benchmarks of float training have in common: processes that train when they are told to, so that a script can run
// them in turns with other programs. Every reply is one line of JSON.
//
//   save FILE  writes what the others begin with
//   steps N    trains N steps: their losses, seconds of each, by the clock and of processors, and the peaks of memory so far:
//              of tensors, of what the device gave for them, and of this process on this machine
//   peak       products of two large matrices: operations per second, by the clock and of processors
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "nn/engine.h"
#include "train/trainer.h"

namespace bitloom::bench {

// "f32", "bf16" or "f16". Throws Error(usage).
DType parse_values(const std::string& name);

nlohmann::json run_steps(nn::Engine& engine, train::Trainer& trainer, std::size_t n);
nlohmann::json measure_peak(nn::Engine& engine, DType values);

struct FloatWorker {
  nlohmann::json description;
  std::function<nlohmann::json(const std::string& path)> save;
  std::function<nlohmann::json(std::size_t n)> steps;
  std::function<nlohmann::json()> peak;
};
// Replies to the lines of standard input until it ends.
void serve(const FloatWorker& worker);

}  // namespace bitloom::bench
