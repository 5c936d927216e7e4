// Runs of nets with several thresholds for a row: stage by stage, from cached maps, and with layers that learn again. The AVX2
// convolution counts tied words together, ref each by itself, so that weights which came apart would show.
#include <string>

#include "tests/layerwise/small_run.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

NetSpec tied_net(const std::string& weights) {
  return parse_net(fmt::format(R"({{"name": "tied", "head_bits": 16, {}, "head": {{"grid": 2, "hidden": 16}}, "layers": [
      {{"name": "a", "width": 64, "thresholds": 2}},
      {{"name": "b", "inputs": ["a", "input"], "pool": "or", "width": 20, "thresholds": 3, "weights": "{}"}},
      {{"name": "c", "inputs": ["b", "a"], "pool": "or", "width": 16}}],
      "stages": [{{"train": ["a"], "epochs": 1}}, {{"train": ["b", "c"], "epochs": 2}},
                 {{"name": "again", "train": ["a", "b", "c"], "epochs": 2, "options": {{"active_share": 0.3}}}}]}})",
                               thermometer, weights),
                   "net.json");
}

TensorFile trained(const std::string& kernels, const RunOptions& options) {
  Lines lines;
  mpi::Comm comm;
  train(simd::kernels(kernels), comm, options, splits(), lines);
  return result_of(options.folder);
}

}  // namespace

TEST_CASE("runs with tied weights give the same net in every instruction set, from cached maps, and when interrupted",
          "[trainer][ties]") {
  for (const std::string weights : {"binary", "ternary"}) {
    const TempDir folder;
    const auto options = [&](const std::string& name, const std::string& frozen) {
      RunOptions result = options_for(folder / name, tied_net(weights));
      result.train.augment_copies = 2;
      result.frozen = frozen;
      result.cache = folder / ("cache of " + name);
      result.cache_limit = std::uint64_t{1} << 28U;
      return result;
    };
    const TensorFile expected = trained("ref", options("recomputed", "recompute"));
    for (const std::string& name : simd::supported_kernels()) {
      INFO(weights << ", " << name);
      CHECK(difference(trained(name, options(name, "cache")), expected) == "");
    }
    RunOptions stopped = options("stopped", "cache");
    stopped.stop_after_steps = 3;
    while (has(complaint(ErrorKind::interrupted, stopped), "interrupted at step")) stopped.resume = true;
    CHECK(difference(result_of(stopped.folder), expected) == "");
  }
}
