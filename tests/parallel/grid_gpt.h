// A GPT that the ranks of the world train together.
#pragma once

#include <string>

#include "models/gpt/language_task.h"
#include "tests/models/gpt_nets.h"
#include "tests/support/mpi.h"
#include "train/parallel/tensor.h"
#include "train/trainer.h"

namespace bitloom::test {

struct GridGpt {
  // layout: the rest of it, without a grid. shard_ranks: 0: all.
  GridGpt(const mpi::GridShape& shape, const models::GptConfig& config, const train::TrainOptions& options,
          const train::Layout& layout, int shard_ranks = 0, const std::string& backend = "")
      : engine({}, backend),
        grid(world(), shape, shard_ranks),
        group(grid.tensor()),
        net(config, 0, &group),
        task(net, 1, chains(config, options.micro_batches)),
        trainer(engine, task, options, on_grid(layout)) {}

  nn::Engine engine;
  mpi::Grid grid;
  train::TensorGroup group;
  models::Gpt net;
  models::LanguageTask task;
  train::Trainer trainer;

 private:
  train::Layout on_grid(train::Layout layout) {
    layout.grid = &grid;
    return layout;
  }
};

}  // namespace bitloom::test
