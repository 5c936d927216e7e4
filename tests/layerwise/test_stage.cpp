// A step's result must not depend on how it is computed.
#include "layerwise/stage.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>

#include "tests/layerwise/cases.h"
#include "tests/layerwise/small_stage.h"
#include "tests/support/catch.h"
#include "tests/support/threads.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

// Whether everything that is kept of a layer is the same in both files.
void check_same_layer(const TensorFile& expected, const TensorFile& other, std::string_view layer) {
  std::size_t compared = 0;
  for (const auto& [name, tensor] : expected.tensors) {
    if (!name.starts_with(std::string(layer) + ".")) continue;
    INFO(name);
    REQUIRE(other.contains(name));
    CHECK(std::ranges::equal(tensor.bytes, other.tensors.at(name).bytes));
    ++compared;
  }
  CHECK(compared > 1);
}

// Two blocks of two layers, the upper of which reads both layers of the lower: each block has a head.
StageCase two_blocks() {
  StageCase c = stage_cases()[1];
  c.name = "two blocks of two layers";
  c.net = std::string("{") + thermometer + R"(, "layers": [{"name": "a", "width": 40},
      {"name": "b", "inputs": ["a"], "pool": "or", "width": 24},
      {"name": "c", "inputs": ["b", "a"], "width": 16, "passes_gradient": false}, {"name": "d", "width": 24}],
      "stages": [{"train": ["a", "b", "c", "d"], "heads": ["b", "d"]}]})";
  c.stage.train = {"a", "b", "c", "d"};
  c.stage.heads = {"b", "d"};
  return c;
}

std::string text_without(std::string text, std::string_view part) {
  const std::size_t at = text.find(part);
  REQUIRE(at != std::string::npos);
  return text.erase(at, part.size());
}

// Rows of weights that gradients of inputs were counted from, by the words of one: those of layer c of the two blocks have six,
// for it reads two layers, those of b and d three. Weights' gradients are counted from patches, which have three runs.
std::array<std::atomic<std::size_t>, 16> backward_rows;

void count_backward_rows(const simd::RowLists& rows, std::int32_t* sums) {
  if (rows.runs == 1) ++backward_rows.at(rows.run_words);
  simd::kernels().accumulate_rows(rows, sums);
}

}  // namespace

TEST_CASE("threads do not change a stage", "[stage]") {
  for (const StageCase& c : all_stage_cases()) {
    INFO(c.name);
    std::vector<TensorFile> results;
    for (const int threads : {1, 2, 3}) {
      const Threads limit(threads);
      mpi::Comm comm;
      SmallStage small(c, simd::kernels(), comm);
      results.push_back(small.run(6));
    }
    CHECK(difference(results[0], results[1]) == "");
    CHECK(difference(results[0], results[2]) == "");
  }
}

TEST_CASE("instruction sets do not change a stage", "[stage]") {
  for (const StageCase& c : all_stage_cases()) {
    mpi::Comm comm;
    SmallStage reference(c, simd::kernels("ref"), comm);
    const TensorFile expected = reference.run(6);
    for (const std::string& name : simd::supported_kernels()) {
      INFO(c.name << " with " << name);
      SmallStage small(c, simd::kernels(name), comm);
      CHECK(difference(expected, small.run(6)) == "");
    }
  }
}

TEST_CASE("a stage saved and loaded continues as if nothing had happened", "[stage]") {
  for (const StageCase& c : all_stage_cases()) {
    INFO(c.name);
    mpi::Comm comm;
    SmallStage straight(c, simd::kernels(), comm);
    const TensorFile expected = straight.run(6);
    SmallStage first(c, simd::kernels(), comm);
    const TensorFile saved = first.run(3);
    SmallStage second(c, simd::kernels(), comm);
    second.stage().load(saved);
    CHECK(second.stage().step_number() == 3);
    CHECK(difference(expected, second.run(3)) == "");
    SmallStage other(c, simd::kernels(), comm, 7, true);  // what it had before must not show
    other.stage().load(saved);
    CHECK(difference(expected, other.run(3)) == "");
  }
}

TEST_CASE("weights flip, heads learn, and everything is reported", "[stage]") {
  for (const StageCase& c : stage_cases()) {
    INFO(c.name);
    mpi::Comm comm;
    SmallStage small(c, simd::kernels(), comm);
    Stage& stage = small.stage();
    CHECK(stage.steps_per_epoch() == 3);
    CHECK(stage.total_steps() == 30);
    CHECK(stage.rate() == 1.0);
    std::vector<double> losses;
    std::size_t flips = 0;
    while (!stage.finished()) {
      const StepResult result = stage.step();
      REQUIRE(result.images == 48);
      REQUIRE(result.loss.size() == stage.heads());
      REQUIRE(result.correct.size() == stage.heads());
      REQUIRE(result.flips.size() == stage.trainers().size());
      REQUIRE(result.active_share.size() == stage.trainers().size());
      REQUIRE(result.correct.back() <= 48);
      for (const double share : result.active_share) {
        REQUIRE(share > 0);
        REQUIRE(share < 1);
      }
      if (stage.step_number() <= 2) REQUIRE(result.flips[0] == 0);  // the warm-up
      losses.push_back(result.loss.back() / 48);
      for (const std::size_t f : result.flips) flips += f;
    }
    CHECK(flips > 50);
    CHECK(stage.rate() == 0.01);
    double last = 0;
    for (std::size_t i = losses.size() - 10; i < losses.size(); ++i) last += losses[i] / 10;
    CHECK(last < losses[0] - 0.02);
  }
}

TEST_CASE("decoupled layers get no gradient from above", "[stage]") {
  // With two heads and no gradient passed, the lower layer's result is the one it has alone.
  StageCase alone = stage_cases()[0];
  StageCase joint = stage_cases()[1];
  joint.stage.heads = {"a", "b"};
  joint.stage.passes_gradient = false;
  alone.net = joint.net;
  mpi::Comm comm;
  SmallStage one(alone, simd::kernels(), comm);
  SmallStage two(joint, simd::kernels(), comm);
  TensorFile expected = one.run(12);
  const TensorFile both = two.run(12);
  check_same_layer(expected, both, "a");
  joint.stage.passes_gradient = true;
  SmallStage coupled(joint, simd::kernels(), comm);
  const TensorFile passed = coupled.run(12);
  CHECK(std::memcmp(passed.get("a.train.state").bytes.data(), both.get("a.train.state").bytes.data(),
                    both.get("a.train.state").bytes.size()) != 0);
}

TEST_CASE("a block of layers gets no gradient from the block above, and none is computed for it", "[stage]") {
  const StageCase blocks = two_blocks();
  StageCase lower = blocks;
  lower.stage.train = {"a", "b"};
  lower.stage.heads = {"b"};
  mpi::Comm comm;
  simd::Kernels counting = simd::kernels();
  counting.accumulate_rows = count_backward_rows;
  const auto run = [&](const StageCase& c) {
    for (auto& count : backward_rows) count = 0;
    SmallStage small(c, counting, comm);
    return small.run(12);
  };
  const TensorFile alone = run(lower);
  CHECK(backward_rows[3] > 0);
  const TensorFile both = run(blocks);
  CHECK(backward_rows[3] > 0);
  CHECK(backward_rows[6] == 0);
  check_same_layer(alone, both, "a");
  check_same_layer(alone, both, "b");

  // Without the cut the upper block's gradient comes to both layers.
  StageCase coupled = blocks;
  coupled.net = text_without(coupled.net, R"(, "passes_gradient": false)");
  const TensorFile passed = run(coupled);
  CHECK(backward_rows[6] > 0);
  for (const char* layer : {"a", "b"}) {
    const std::string state = std::string(layer) + ".train.state";
    CHECK_FALSE(std::ranges::equal(passed.get(state).bytes, both.get(state).bytes));
  }
}

TEST_CASE("a layer may pass its gradient in a stage whose others do not", "[stage]") {
  StageCase decoupled = stage_cases()[1];
  decoupled.stage.passes_gradient = false;
  StageCase passing = decoupled;
  const std::string b = R"("name": "b")";
  passing.net.insert(passing.net.find(b) + b.size(), R"(, "passes_gradient": true)");
  mpi::Comm comm;
  SmallStage joint(stage_cases()[1], simd::kernels(), comm);
  SmallStage with_layer(passing, simd::kernels(), comm);
  SmallStage without_gradient(decoupled, simd::kernels(), comm);
  const TensorFile expected = joint.run(12);
  CHECK(difference(expected, with_layer.run(12)) == "");
  CHECK(difference(expected, without_gradient.run(12)) != "");
}

TEST_CASE("a step depends on the seed and the stage's id", "[stage]") {
  const StageCase c = stage_cases()[0];
  mpi::Comm comm;
  SmallStage one(c, simd::kernels(), comm);
  const TensorFile expected = one.run(3);
  StageCase seeded = c;
  seeded.options.seed = 2;
  SmallStage two(seeded, simd::kernels(), comm);
  CHECK(difference(expected, two.run(3)) != "");
  SmallStage three(c, simd::kernels(), comm, 8);
  CHECK(difference(expected, three.run(3)) != "");
}
