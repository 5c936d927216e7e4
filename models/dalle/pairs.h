// Captions and the codes of their images as batches, in an order that a seed gives.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/text/tokenizer.h"
#include "models/dalle/dalle_task.h"

namespace bitloom::models {

class DallePairs {
 public:
  struct Options {
    std::size_t batch = 32;        // pairs of a step; a set with fewer is an error
    std::size_t micro_batch = 32;  // a divisor of it
    std::uint64_t seed = 1;
    // Codes (micro_batch,image) of a micro-batch whose images are cut anew in every epoch, in the order of
    // data::PairBatches with the same seed; none: those given are the codes of every epoch.
    std::function<std::vector<std::int32_t>(std::uint64_t step, std::uint64_t micro_batch)> codes_of;
    double merge_dropout = 0;  // rate at which merges of captions are left out, others in every epoch (Provilkov et al. 2020)
  };
  // codes (N,image) of N captions, or none where options.codes_of makes them. config and tokenizer outlive this. Throws
  // Error(usage) that names the field.
  DallePairs(const DalleConfig& config, const data::Tokenizer& tokenizer, std::vector<std::string> captions,
             std::vector<std::int32_t> codes, const Options& options);

  std::size_t size() const { return captions_.size(); }
  std::uint64_t steps_per_epoch() const { return size() / options_.batch; }
  // Micro-batch `micro_batch` of step `step`. An epoch has as many whole batches as there are; its order is a shuffle of its
  // own.
  DalleBatch batch(std::uint64_t step, std::uint64_t micro_batch);
  // Tokens that all micro-batches of a step ask for.
  DalleTokens tokens(std::uint64_t step);
  // Pairs first .. first + count - 1 as they are; of the codes that were given.
  DalleBatch range(std::size_t first, std::size_t count) const;

 private:
  // Numbers of the pairs of a step, which begin at `first` of its batch.
  std::vector<std::size_t> indexes(std::uint64_t step, std::size_t first, std::size_t count);
  // Tokens (batch,text) of all captions of a step, of which every micro-batch has some and whose number each asks for.
  const std::vector<std::int32_t>& texts(std::uint64_t step);

  const DalleConfig& config_;
  const data::Tokenizer& tokenizer_;
  std::vector<std::string> captions_;
  std::vector<std::int32_t> codes_;
  Options options_;
  std::vector<std::uint32_t> order_;  // of order_epoch_
  std::uint64_t order_epoch_ = 0;
  std::vector<std::int32_t> texts_;  // of texts_step_
  std::uint64_t texts_step_ = 0;
};

}  // namespace bitloom::models
