#include "bench/float_worker.h"

#include <ctime>
#include <fstream>
#include <iostream>
#include <sstream>
#include <vector>

#include "bench/timing.h"
#include "core/error.h"
#include "nn/measure.h"
#include "nn/ops.h"

namespace bitloom::bench {
namespace {

using Json = nlohmann::json;

// The largest resident memory of this process, in bytes; 0 where the system does not say.
std::uint64_t resident_peak() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmHWM:")) return 1024 * std::stoull(line.substr(6));
  }
  return 0;
}

Json reply(const FloatWorker& worker, const std::string& line) {
  std::istringstream words(line);
  std::string command;
  std::string argument;
  words >> command >> argument;
  if (command == "save") return worker.save(argument);
  if (command == "steps") return worker.steps(parse_count(argument, "steps"));
  if (command == "peak") return worker.peak();
  fail(ErrorKind::usage, "command '{}'; expected save, steps or peak", command);
}

}  // namespace

DType parse_values(const std::string& name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    if (nn::to_text(dtype) == name) return dtype;
  }
  fail(ErrorKind::usage, "type '{}'; expected f32, bf16 or f16", name);
}

Json run_steps(nn::Engine& engine, train::Trainer& trainer, std::size_t n) {
  std::vector<double> losses;
  std::vector<double> seconds;
  std::vector<double> processor_seconds;
  for (std::size_t i = 0; i < n; ++i) {
    const std::clock_t start = std::clock();
    const train::StepReport report = trainer.step();
    processor_seconds.push_back(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    losses.push_back(report.loss);
    seconds.push_back(report.seconds);
  }
  return {{"losses", losses},
          {"seconds", seconds},
          {"processor_seconds", processor_seconds},
          {"notes", engine.take_notes()},
          {"pool_peak", engine.pool().total().peak},
          {"pool_reserved", engine.pool().reserved()},
          {"resident_peak", resident_peak()}};
}

Json measure_peak(nn::Engine& engine, DType values) {
  constexpr std::size_t side = 2048;
  constexpr double slot = 0.5;  // seconds
  if (engine.device().kind == nn::Device::Kind::cuda) return {{"peak", nn::measure_matmul(engine, values, slot)}};
  const auto operations = 2.0 * side * side * side;
  nn::Tensor a = engine.zeros({side, side}, values, nn::Use::workspace);
  nn::Tensor b = engine.zeros({side, side}, values, nn::Use::workspace);
  nn::Tensor out = engine.empty({side, side}, values, nn::Use::workspace);
  nn::fill(engine, a, 0.5);
  nn::fill(engine, b, 0.25);
  const double seconds = fastest(slot, [&] { nn::matmul(engine, a, b, out); });
  const std::clock_t start = std::clock();
  nn::matmul(engine, a, b, out);
  const double processor_seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  return {{"peak", operations / seconds}, {"processor_peak", operations / processor_seconds}};
}

void serve(const FloatWorker& worker) {
  std::cout << worker.description.dump() << std::endl;
  for (std::string line; std::getline(std::cin, line);) std::cout << reply(worker, line).dump() << std::endl;
}

}  // namespace bitloom::bench
