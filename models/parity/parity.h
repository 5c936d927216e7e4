// Whether the processes of a run come to the same net however they are laid out: small nets trained a few steps in every grid,
// schedule, level of sharding and kind of recomputation, beside the same training by one process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mpi/grid.h"
#include "nn/device.h"
#include "train/trainer.h"

namespace bitloom::models {

struct ParityCase {
  std::string net;  // "gpt" or "cnn"
  mpi::GridShape grid;
  std::string schedule = "1f1b";
  train::ShardLevel shard = train::ShardLevel::none;
  std::string recompute = "none";  // of "gpt": none, block (each block keeps its input) or stage (each stage its inputs)
  unsigned bits = 0;               // kept of activations' inputs; 0: all
};
std::string to_text(const ParityCase& the_case);

// All that processes of this number have.
std::vector<ParityCase> parity_cases(int ranks);

struct ParityResult {
  double difference =
      0;               // largest of parameters, and of losses, after three steps, as a share of the largest parameter or loss
  double limit = 0;    // that it has to keep; 0: the same bits are expected
  double seconds = 0;  // of the steps
  bool passes() const { return difference <= limit; }
};

// Trains by all ranks, each of which has what one process comes to.
class Parity {
 public:
  // All outlive this.
  Parity(mpi::Comm& world, nn::Device device, std::string backend);
  ~Parity();

  // Collective: the same result on all ranks.
  ParityResult run(const ParityCase& the_case);

 private:
  struct Outcome {
    std::map<std::string, std::vector<float>> parameters;
    std::vector<double> losses;
    double seconds = 0;
  };
  Outcome train(const ParityCase& the_case, mpi::Grid& grid);
  const Outcome& alone(const ParityCase& the_case);

  mpi::Comm& world_;
  nn::Device device_;
  std::string backend_;
  mpi::Comm self_;
  mpi::Grid single_;
  std::map<std::string, Outcome> alone_;  // by what it depends on
  std::map<std::string, std::unique_ptr<mpi::Grid>> grids_;
};

}  // namespace bitloom::models
