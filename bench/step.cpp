// bitloom_bench_step [STEPS]: whole training steps of one binary layer, as the trainer runs them, without what comes before the
// layer (reading and encoding images, frozen layers). bench/step_peers.py runs the same layers in PyTorch and larq. The last
// line is JSON.
#include <fmt/format.h>
#include <omp.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/timing.h"
#include "core/error.h"
#include "data/synthetic.h"
#include "layerwise/encoder.h"
#include "layerwise/stage.h"
#include "mpi/comm.h"
#include "simd/kernels.h"

namespace bitloom::bench {
namespace {

using Json = nlohmann::json;
using layerwise::PhaseTimes;

constexpr std::size_t batch = 128;
constexpr std::size_t warmup_steps = 10;  // windows and units settle

// 64 filters give 128 bits per pixel; both layers end in a linear head on 4x4 cells.
constexpr const char* net_text = R"({
  "name": "bench",
  "encoder": {"kind": "whitened", "filters": 64},
  "head": {"kind": "linear", "grid": 4},
  "layers": [
    {"name": "conv128", "inputs": ["input"], "width": 256},
    {"name": "conv256", "pool": "or", "width": 512}
  ]
})";

struct Measured {
  std::string layer;
  double images_per_second = 0;
  double milliseconds = 0;  // per step
  PhaseTimes times;         // seconds in the median step
  double active_share = 0;
  std::size_t flips = 0;  // weights flipped in the last step
};

double own_seconds(double wall, const PhaseTimes& times) { return wall - times.data - times.encode - times.prefix; }

Measured measure(layerwise::Stage& stage, std::size_t steps) {
  using Clock = std::chrono::steady_clock;
  for (std::size_t i = 0; i < warmup_steps; ++i) stage.step();
  std::vector<double> seconds;
  Measured result;
  for (std::size_t i = 0; i < steps; ++i) {
    const auto start = Clock::now();
    const layerwise::StepResult step = stage.step();
    seconds.push_back(own_seconds(std::chrono::duration<double>(Clock::now() - start).count(), step.times));
    result.times += step.times;
    result.active_share = step.active_share[0];
    result.flips = step.flips[0];
  }
  result.layer = stage.spec().name;
  result.milliseconds = 1e3 * median(seconds);
  result.images_per_second = static_cast<double>(batch) / median(seconds);
  return result;
}

Json run(std::size_t steps) {
  const simd::Kernels& kernels = simd::kernels();
  mpi::Environment environment;
  const data::Dataset train = data::make_synthetic(1, 4 * batch);
  const layerwise::NetSpec net = layerwise::parse_net(net_text, "bench/step.cpp");
  const layerwise::Encoder encoder = layerwise::Encoder::fit(net.encoder, train, 1);
  const layerwise::MapShape input = encoder.output();
  const auto geometry = layerwise::derive_geometry(net, input.height, input.width, input.channels);
  std::vector<layerwise::BinaryLayer> layers;
  for (std::size_t i = 0; i < geometry.size(); ++i) layers.emplace_back(net.layers[i], geometry[i]);
  layerwise::TrainOptions options;
  options.batch = batch;
  options.warmup_steps = 0;

  const int threads = omp_get_max_threads();
  fmt::print("{}\nkernels: {}; {} threads; batch {}; {} steps per layer after {} to settle\n", cpu_name(), kernels.name,
             threads, batch, steps, warmup_steps);
  fmt::print("\n{:<18}{:>10}{:>10}   milliseconds: {:>8}{:>8}{:>9}{:>8}{:>8}   active\n", "layer", "images/s", "ms/step",
             "forward", "head", "gradient", "reduce", "update");
  Json rows = Json::array();
  double total = 0;
  for (std::size_t i = 0; i < net.stages.size(); ++i) {
    layerwise::StageSpec spec = net.stages[i];
    spec.epochs = 1000;  // the schedule hardly moves
    layerwise::Stage stage(kernels, environment.world(), spec, encoder, layers, train, options, i);
    const Measured m = measure(stage, steps);
    const double ms = 1e3 / static_cast<double>(steps);
    fmt::print("{:<18}{:>10.0f}{:>10.1f}   {:>22.1f}{:>8.1f}{:>9.1f}{:>8.1f}{:>8.1f}   {:.1f}%\n", m.layer, m.images_per_second,
               m.milliseconds, ms * m.times.forward, ms * m.times.head, ms * m.times.gradient, ms * m.times.reduce,
               ms * m.times.update, 100 * m.active_share);
    total += m.milliseconds;
    rows.push_back({{"layer", m.layer},
                    {"images_per_second", m.images_per_second},
                    {"milliseconds", m.milliseconds},
                    {"active_share", m.active_share},
                    {"flips", m.flips}});
    if (m.flips == 0) fail(ErrorKind::internal, "layer '{}' flipped no weight: the step does not train", m.layer);
  }
  return {{"milliseconds", total}, {"layers", rows}, {"kernels", kernels.name}, {"threads", threads}, {"cpu", cpu_name()}};
}

}  // namespace
}  // namespace bitloom::bench

int main(int argc, char** argv) {
  using namespace bitloom;
  try {
    if (argc > 2) fail(ErrorKind::usage, "expected at most one argument, the number of steps");
    const nlohmann::json json = bench::run(argc == 2 ? bench::parse_count(argv[1], "STEPS") : 20);
    fmt::print("{}\n", json.dump());
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bitloom_bench_step: {}\n", error.what());
    return 1;
  }
}
