// Trainings of a small net on spirals, and whether one that is stopped is the one that never stopped.
#pragma once

#include <string>
#include <vector>

#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/parameters.h"
#include "tests/support/trainer_state.h"
#include "tests/train/spirals.h"
#include "train/trainer.h"

namespace bitloom::test {

struct SpiralTraining {
  SpiralTraining(const train::TrainOptions& options, const std::string& backend, std::uint64_t seed = 1)
      : engine(device_of(backend), backend),
        task(spiral_net(spiral_options()), {spiral_options().examples, 2},
             spirals<float>(engine, spiral_options(), options.values), 0.1),
        trainer(engine, task, with_seed(options, seed)) {}

  static SpiralOptions spiral_options() {
    SpiralOptions spirals;
    spirals.per_step = 2;
    spirals.batch_norm = true;
    return spirals;
  }
  static train::TrainOptions with_seed(train::TrainOptions options, std::uint64_t seed) {
    options.seed = seed;
    return options;
  }
  std::vector<double> values() { return all_of(engine, trainer.parameters(), &nn::Parameter::value); }

  nn::Engine engine;
  train::Classification task;
  train::Trainer trainer;
};

// The last ten of 20 steps by a trainer that takes over the state, and began with this seed: the same losses, values and state,
// bit by bit. A state without `tensor` is refused by its name. Gives the losses.
inline std::vector<double> check_that_it_goes_on(const train::TrainOptions& options, const std::string& backend,
                                                 std::uint64_t seed, const std::string& tensor) {
  SpiralTraining whole(options, backend);
  std::vector<double> losses;
  for (int i = 0; i < 20; ++i) losses.push_back(whole.trainer.step().loss);
  CHECK(losses.back() < losses.front());
  SpiralTraining first(options, backend);
  for (int i = 0; i < 10; ++i) first.trainer.step();
  CHECK(first.trainer.steps() == 10);
  TensorFile file = saved(first.trainer);
  SpiralTraining second(options, backend, seed);
  second.trainer.step();  // whatever it has is replaced
  load(second.trainer, TensorFile::parse(file.serialize(), "memory"));
  CHECK(second.trainer.steps() == 10);
  for (std::size_t i = 10; i < 20; ++i) CHECK(second.trainer.step().loss == losses[i]);
  CHECK(second.values() == whole.values());
  CHECK(saved(second.trainer).serialize() == saved(whole.trainer).serialize());
  // A checkpoint says what is missing.
  REQUIRE(file.tensors.erase(tensor) == 1);
  CHECK(has(message_of(ErrorKind::data, [&] { load(second.trainer, file); }), tensor));
  return losses;
}

}  // namespace bitloom::test
