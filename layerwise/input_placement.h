// Where a stage takes the outputs of frozen layers from: computed again, or read from the cache, which other hosts may fill.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/progress.h"
#include "data/dataset.h"
#include "layerwise/cache.h"
#include "layerwise/stage.h"
#include "layerwise/trainer.h"
#include "mpi/comm.h"

namespace bitloom::layerwise {

// Throws Error(usage) for a value of RunOptions::frozen that cannot be met, whatever the figures.
void check_frozen_option(const RunOptions& options);

class InputPlacement {
 public:
  // cache: null for none. frozen: of RunOptions. All references outlive this.
  InputPlacement(mpi::Comm& comm, Cache* cache, const std::string& frozen, const data::Dataset& images,
                 const std::string& data_hash, ProgressSink& progress)
      : comm_(comm), cache_(cache), frozen_(frozen), images_(images), data_hash_(data_hash), progress_(progress) {}

  // Collective: gives the stage its record file where that is the cheaper way. Each rank opens the file on its own host; one
  // that cannot computes its images itself, to the same result. alive: called now and then while hosts send records.
  void place(Stage& stage, const std::function<void()>& alive);

  // Collective: the counts of all ranks' records since the last call, for the metrics; says what is amiss.
  nlohmann::json report(const Stage& stage);

 private:
  bool plan(const Stage& stage);
  std::string key(const Stage& stage) const;
  void share(Stage& stage, RecordFile* records, const std::function<void()>& alive);

  mpi::Comm& comm_;
  Cache* cache_;
  const std::string& frozen_;
  const data::Dataset& images_;
  const std::string& data_hash_;
  ProgressSink& progress_;
  bool error_told_ = false;
};

}  // namespace bitloom::layerwise
