// Training on any number of ranks gives what one rank gives, bit for bit.
#include "tests/layerwise/small_stage.h"

#include "tests/support/catch.h"
#include "tests/support/mpi.h"

namespace bitloom::test {

TEST_CASE("ranks do not change a stage", "[stage]") {
  for (const StageCase& c : stage_cases()) {
    INFO(c.name);
    SmallStage shared(c, simd::kernels(), world());
    const TensorFile result = shared.run(5);
    mpi::Comm alone;
    SmallStage single(c, simd::kernels(), alone);
    CHECK(difference(single.run(5), result) == "");
  }
}

TEST_CASE("losses and flips are those of the whole batch", "[stage]") {
  const StageCase c = stage_cases()[1];
  SmallStage shared(c, simd::kernels(), world());
  mpi::Comm alone;
  SmallStage single(c, simd::kernels(), alone);
  for (int step = 0; step < 4; ++step) {
    const layerwise::StepResult one = single.stage().step();
    const layerwise::StepResult all = shared.stage().step();
    CHECK(all.images == one.images);
    CHECK(all.loss == one.loss);
    CHECK(all.correct == one.correct);
    CHECK(all.flips == one.flips);
    CHECK(all.active_share == one.active_share);
  }
}

TEST_CASE("a batch smaller than the ranks is refused", "[stage]") {
  if (world().size() == 1) {
    CHECK(world().is_root());
    return;
  }
  StageCase c = stage_cases()[0];
  c.options.batch = static_cast<std::size_t>(world().size()) - 1;
  CHECK(has(message_of(ErrorKind::usage, [&] { SmallStage(c, simd::kernels(), world()); }), "--batch: "));
}

}  // namespace bitloom::test
