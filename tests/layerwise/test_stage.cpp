// A step's result must not depend on how it is computed.
#include "layerwise/stage.h"

#include "tests/layerwise/cases.h"
#include "tests/layerwise/small_stage.h"
#include "tests/support/catch.h"
#include "tests/support/threads.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

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
  for (const auto& [name, tensor] : expected.tensors) {
    if (!name.starts_with("a.")) continue;
    INFO(name);
    REQUIRE(both.contains(name));
    const Tensor& other = both.tensors.at(name);
    REQUIRE(tensor.bytes.size() == other.bytes.size());
    CHECK(std::memcmp(tensor.bytes.data(), other.bytes.data(), tensor.bytes.size()) == 0);
  }
  joint.stage.passes_gradient = true;
  SmallStage coupled(joint, simd::kernels(), comm);
  const TensorFile passed = coupled.run(12);
  CHECK(std::memcmp(passed.get("a.train.state").bytes.data(), both.get("a.train.state").bytes.data(),
                    both.get("a.train.state").bytes.size()) != 0);
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
