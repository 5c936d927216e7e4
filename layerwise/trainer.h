// A whole training run: stages in order, metrics, checkpoints, reuse of stages that were trained before, the final model.
// Prints nothing: progress goes to a sink, everything else into the run folder.
//
// Files of a run folder (all written by rank 0):
//   config.json      net, options, data: what the report reads
//   RunOptions::files   what the caller leaves there to resume by
//   metrics.jsonl    one JSON object per line; see src/report
//   checkpoint.safetensors, checkpoint.previous.safetensors, encoder.safetensors   while training
//   model.safetensors   the result
//   .lock            held while a process works on the folder
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/progress.h"
#include "data/dataset.h"
#include "layerwise/model.h"
#include "layerwise/stage.h"
#include "layerwise/stage_history.h"
#include "mpi/comm.h"
#include "run/open_run.h"

namespace bitloom::layerwise {

// The bytes of a stage's updates that a plan predicted; the run ends with an error when what is sent is not so.
struct PlannedBytes {
  struct Sparse {
    double bytes = 0;      // mean over updates
    double tolerance = 0;  // share of it by which it may be off
    // It is the budget's mean over a run: an epoch has what is wanted of it (ExchangeOptions::last_messages).
    bool follows_budget = false;
  };
  Sparse up, down;          // lengths of a worker's message and of a reply
  std::uint64_t dense = 0;  // bytes that a rank puts into the dense sums of an update in which weights learn: exact
};

struct RunOptions : run::Options {
  RunOptions() { checkpoint_seconds = 5; }  // at least, and four times as long as it takes to gather one

  NetSpec net;
  TrainOptions train;
  std::string data_name;          // name that the user gave, for messages and the report
  std::string command;            // the command line, for the report
  std::filesystem::path cache;    // trained stages and outputs of frozen layers; empty: none
  bool needs_cache = false;       // an error if the cache cannot be opened; otherwise the run goes on without
  std::uint64_t cache_limit = 0;  // bytes
  std::string frozen = "auto";    // outputs of frozen layers: cache, recompute, or what is cheaper; never the result
  // Bytes that workers of one process may keep in memory (sparse); more lies in a file in the cache's folder. 0: half of the
  // free memory, shared by the processes of a host.
  std::uint64_t residual_memory = 0;
  std::size_t stop_after_steps = 0;  // steps of this process after which it stops, resumable (tests); 0: never
  // Stages that were trained elsewhere, by their keys, as RunResult::trained of a run that trained them.
  std::map<std::string, std::vector<std::byte>> trained;
  std::vector<std::byte> encoder;  // encoder fitted elsewhere to the same images, as Encoder::save() makes it; empty: none
  std::size_t stages = 0;          // number of the net's first ones to train, without a model; 0: all
  std::map<std::string, PlannedBytes> planned;  // by stage; not all need be there
};

struct StageSummary {
  std::string name;
  double seconds = 0;
  bool reused = false;
  // By the vote over mirror images where the net has it, and of the image as it is. Nothing without validation images, or of a
  // reused stage whose layers have learned again in the run that it comes from.
  std::optional<double> validation_accuracy, plain_accuracy;
  std::size_t images = 0;   // images that passed through training steps of this run
  StageHistory trained_by;  // history of a reused one, without epochs
};

struct RunResult {
  Model model;
  Evaluation validation;  // empty if there is no validation set
  Evaluation test;
  std::vector<StageSummary> stages;
  double seconds = 0;                                     // time of training, over all resumptions
  std::size_t images = 0;                                 // images that passed through training steps, over all resumptions
  std::size_t steps = 0;                                  // steps of this process
  std::map<std::string, std::vector<std::byte>> trained;  // with RunOptions::stages: these, by their keys
};

// Collective. Throws Error(interrupted) after a checkpoint when asked to stop; usage errors for a folder that already holds
// a run (without resume), for a checkpoint of other options, for a cache of frozen layers that cannot be; busy if another
// process works on the folder; io and data errors.
RunResult train(const simd::Kernels& kernels, mpi::Comm& comm, const RunOptions& options, const data::DataSplits& data,
                ProgressSink& progress);

// The largest anonymous resident memory of this process, bytes, among the calls so far (train() asks after every epoch); 0
// where /proc is missing.
std::uint64_t peak_memory();
void forget_peak_memory();  // counts from here on

}  // namespace bitloom::layerwise
