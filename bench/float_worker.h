// Common parts of the benchmarks of float training: processes that train when they are told to, so that a script can run them
// in turns with other programs. Every reply is one line of JSON.
//
//   save FILE  writes what the others begin with
//   steps N    trains N steps: their losses, seconds of each, by the clock and of processors, and the peaks of memory so far:
//              of tensors, of what the device gave for them, and of this process on this machine
//   peak       products of two large matrices: operations per second, by the clock and of processors
#pragma once

#include <fmt/format.h>

#include <exception>
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

// main() of a benchmark: serves a Session made of what `parse` returns; errors are printed under the program's name. Returns
// the exit code.
template <typename Session, typename Parse>
int serve(const char* program, Parse&& parse) {
  try {
    Session session(parse());
    serve({session.describe(), [&](const std::string& path) { return session.save(path); },
           [&](std::size_t n) { return session.steps(n); }, [&] { return session.peak(); }});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", program, error.what());
    return 1;
  }
}

}  // namespace bitloom::bench
