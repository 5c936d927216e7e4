// AdamW's moments of 16 bits in training: which parameters have them, what they take, and that a run goes on bit by bit.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/parameters.h"
#include "tests/support/trainer_state.h"
#include "tests/train/spirals.h"
#include "train/memory.h"
#include "train/trainer.h"

using namespace bitloom;
using namespace bitloom::train;
using bitloom::test::device_of;
using bitloom::test::has;
using bitloom::test::message_of;
using bitloom::test::tested_backends;

namespace {

struct NarrowRun {
  NarrowRun(const TrainOptions& options, const std::string& backend)
      : engine(device_of(backend), backend),
        task(test::spiral_net(spirals), {spirals.examples, 2}, test::spirals<float>(engine, spirals, options.values)),
        trainer(engine, task, options) {}

  std::vector<double> values() { return test::all_of(engine, trainer.parameters(), &nn::Parameter::value); }
  double loss_after(int steps) {
    double sum = 0;
    for (int i = 0; i < steps; ++i) sum += trainer.step().loss;
    return sum / steps;
  }

  test::SpiralOptions spirals = {};
  nn::Engine engine;
  Classification task;
  Trainer trainer;
};

TrainOptions narrow_options() {
  TrainOptions options;
  options.rate.peak = 0.01;
  options.optimizer.narrow_moments = true;
  return options;
}

}  // namespace

TEST_CASE("moments of matrices in residual blocks have 16 bits, all others 32", "[train]") {
  NarrowRun run(narrow_options(), "ref");
  run.trainer.step();
  const TensorFile file = test::saved(run.trainer);
  std::map<std::string, std::uint64_t> bytes;
  for (const nn::Parameter* parameter : run.trainer.parameters()) {
    INFO(parameter->name);
    const bool is_narrow = parameter->name == "branch.weight";  // the only matrix of the only block
    CHECK(parameter->is_block_matrix() == is_narrow);
    const bitloom::Tensor& mean = file.get("optimizer.mean." + parameter->name);
    const bitloom::Tensor& variance = file.get("optimizer.variance." + parameter->name);
    CHECK(mean.dtype == (is_narrow ? DType::f1_6_9 : DType::f32));
    CHECK(variance.dtype == (is_narrow ? DType::f0_6_10 : DType::f32));
    bytes[is_narrow ? "narrow" : "wide"] += mean.bytes.size() + variance.bytes.size();
    CHECK((mean.bytes.size() + variance.bytes.size()) / parameter->shape.size() == (is_narrow ? 4 : 8));
  }
  CHECK(bytes["narrow"] == 24 * 24 * 4);
  CHECK(run.engine.pool().count(nn::Use::optimizer).now == bytes["narrow"] + bytes["wide"]);
}

TEST_CASE("a run with narrow moments goes on bit by bit, and learns as well as with moments of f32", "[train]") {
  for (const std::string& backend : tested_backends()) {
    for (const nn::MasterWeights masters : {nn::MasterWeights::f32, nn::MasterWeights::none}) {
      INFO(backend << " masters " << (masters == nn::MasterWeights::f32));
      TrainOptions options = narrow_options();
      options.values = DType::bf16;
      options.master_weights = masters;
      NarrowRun whole(options, backend), first(options, backend);
      options.optimizer.narrow_moments = false;
      NarrowRun wide(options, backend);
      const double expected = wide.loss_after(100);
      CHECK(whole.loss_after(100) == Approx(expected).epsilon(0.03));
      CHECK(whole.values() != wide.values());
      first.loss_after(40);
      const TensorFile file = test::saved(first.trainer);
      options.optimizer.narrow_moments = true;
      NarrowRun second(options, backend);
      second.loss_after(1);  // whatever it has is replaced
      test::load(second.trainer, TensorFile::parse(file.serialize(), "memory"));
      second.loss_after(60);
      CHECK(second.values() == whole.values());
      // And it is refused where moments have other types.
      CHECK(has(message_of(ErrorKind::data, [&] { test::load(wide.trainer, file); }),
                "'optimizer.mean.branch.weight' is 1-6-9 [24, 24], expected F32 [24, 24]"));
    }
  }
}

TEST_CASE("narrow moments are refused beside gradients of f64", "[train]") {
  TrainOptions options = narrow_options();
  options.values = DType::f64;
  nn::Engine engine({}, "ref");
  const test::SpiralOptions spirals;
  Classification task(test::spiral_net(spirals), {spirals.examples, 2}, test::spirals<double>(engine, spirals, DType::f64));
  CHECK(has(message_of(ErrorKind::usage, [&] { Trainer(engine, task, options); }),
            "`optimizer_state`: 16-bit with `dtype` f64; expected `dtype` f32, bf16 or f16"));
}
