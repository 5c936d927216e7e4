// The options of `bitloom train binary`.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/model_source.h"
#include "cli/options.h"
#include "cli/teacher.h"
#include "layerwise/search.h"
#include "layerwise/trainer.h"
#include "mpi/comm.h"

namespace bitloom::cli {

struct TrainSettings {
  std::string net = "tiny";
  std::string out;
  std::string config;
  bool resume = false;
  std::vector<std::string> changes;   // --set
  std::vector<std::string> searches;  // --search
  bool spread = false;                // --spread
  std::size_t search_rounds = 1;      // --search-rounds
  std::size_t epochs = 0;             // 0: as the net says
  std::size_t batch_per_rank = 0;     // 0: `batch` counts
  std::string notice_command;
  double watchdog_seconds = mpi::Settings{}.watchdog_seconds;
  bool freeze_weights = false;
  std::string exchange = "dense";
  std::size_t workers = 0;  // 0: 64 with sparse messages, otherwise 1
  std::size_t fan_in = 8;
  std::string value_bits = "4";
  std::string residuals = "exact";
  std::string late = "fold";
  std::string plan;
  std::string augment = "crop4,flip";
  TeacherSettings teacher;
  std::string cache = "auto";
  DataOptions data;
  layerwise::RunOptions run;

  TrainSettings();
  void declare(Options& options);
  void declare_search(Options& options);
  // Options that decide how long an update takes, not where its run lies; sparse messages unless said otherwise.
  void declare_for_plan(Options& options);
  // Puts the text options into `run`: augmentation, cache folder, batch. `ranks` processes take part. Throws usage errors.
  void resolve(const Options& options, std::size_t ranks);
  // The most pixels by which the augmentation of a stage of the net, or of these, moves images.
  int most_crop_padding(std::span<const layerwise::Variant> nets) const;
  // Throws Error(usage) for options of this run that each stage of its net has for itself, or that none can use.
  void refuse_overruled(const Options& options) const;
  // The most processes that a run can be divided among: logical workers, or the images of a minibatch.
  std::size_t most_ranks(const Options& options) const;
  // Reads the text of the file of --plan. Throws usage errors.
  std::map<std::string, layerwise::PlannedBytes> planned(const std::string& text) const;
  // The net with --set and --epochs applied. Throws usage errors.
  layerwise::NetSpec make_net() const;
  // --search, one axis per occurrence. Throws usage errors.
  std::vector<layerwise::SearchAxis> search() const;

 private:
  void refuse_idle(const Options& options) const;
  bool counts_per_rank(const Options& options) const;  // whether --batch-per-rank counts
  std::size_t chosen_workers() const;                  // of sparse messages
};

// "layer2.width=512", a value of `option`, at its '='. Throws usage errors.
std::pair<std::string, std::string> split_setting(const std::string& option, const std::string& text);

}  // namespace bitloom::cli
