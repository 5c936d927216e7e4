// The pairs that a text-to-image transformer is trained and measured on, as tokens: those of captions are the tokenizer's,
// those of images are codes of a discrete VAE.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cli/command.h"
#include "cli/dalle_options.h"
#include "data/pairs/pair_batches.h"
#include "data/text/tokenizer.h"
#include "models/dalle/pairs.h"
#include "models/dvae/coder.h"
#include "mpi/grid.h"

namespace bitloom::cli {

class DallePairSets {
 public:
  // The images are of `side` x `side` pixels where the coder takes them. All but `side` outlive this. grid: of the processes,
  // of which a data rank has micro-batches of its own.
  DallePairSets(Session& session, mpi::Grid& grid, const DalleSettings& settings, const data::PairSplits& data,
                models::DvaeCoder& coder, std::size_t side);

  // Whether the codes of an image may differ from one epoch to the next.
  bool crops_vary() const { return crops_vary_; }

  // Collective: makes codes of all images, but for training pairs whose codes vary; micro_batch: pairs at once in training.
  void encode(const models::DalleConfig& config, const data::Tokenizer& tokenizer, std::size_t micro_batch);

  // After encode(). Codes that vary are made by the first of a tensor group for all of it, which ask together: machines need
  // not round alike, and their nets have to get the same tokens. The last stage of a pipeline makes the codes that it asks for
  // by itself: where it rounds otherwise, a code between two is another than the first stage's, which does no harm.
  models::DallePairs& train() { return *train_; }
  bool has_validation() const { return validation_ != nullptr; }
  const models::DallePairs& validation() const { return *validation_; }
  // Some of the training pairs, cut as the validation pairs are; where there are such.
  const models::DallePairs& measured_train() const { return *measured_train_; }

 private:
  bool find_crops_vary() const;
  std::vector<std::int32_t> codes_of(const data::Pairs& pairs, std::size_t tokens);
  std::unique_ptr<models::DallePairs> in_order(const models::DalleConfig& config, const data::Tokenizer& tokenizer,
                                               const data::Pairs& pairs);

  Session& session_;
  mpi::Grid& grid_;
  const DalleSettings& settings_;
  const data::PairSplits& data_;
  models::DvaeCoder& coder_;
  std::size_t side_;
  bool crops_vary_;
  std::unique_ptr<data::PairBatches> batches_;
  std::unique_ptr<models::DallePairs> train_, validation_, measured_train_;
};

}  // namespace bitloom::cli
