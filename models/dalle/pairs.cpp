#include "models/dalle/pairs.h"

#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/random.h"
#include "models/dalle/model_file.h"

namespace bitloom::models {

DallePairs::DallePairs(const DalleConfig& config, const data::Tokenizer& tokenizer, std::vector<std::string> captions,
                       std::vector<std::int32_t> codes, const Options& options)
    : config_(config), tokenizer_(tokenizer), captions_(std::move(captions)), codes_(std::move(codes)), options_(options) {
  if (codes_.size() != (options.codes_of ? 0 : captions_.size() * config.image())) {
    fail(ErrorKind::internal, "{} codes of {} images; expected {} of each", codes_.size(), captions_.size(), config.image());
  }
  if (options.batch == 0 || options.batch > captions_.size()) {
    fail_field(ErrorKind::usage, "batch", "{}; expected 1 to the {} training pairs", options.batch, captions_.size());
  }
  if (options.micro_batch == 0 || options.batch % options.micro_batch != 0) {
    fail_field(ErrorKind::usage, "micro_batch", "{}; expected a divisor of the batch, {}", options.micro_batch, options.batch);
  }
}

std::vector<std::size_t> DallePairs::indexes(std::uint64_t step, std::size_t first, std::size_t count) {
  const std::uint64_t epoch = step / steps_per_epoch();
  if (order_.empty() || order_epoch_ != epoch) {
    order_.resize(size());
    std::iota(order_.begin(), order_.end(), 0U);
    shuffle(order_.data(), order_.size(), Random(options_.seed, Stream::shuffle, epoch));
    order_epoch_ = epoch;
  }
  const std::size_t begin = step % steps_per_epoch() * options_.batch + first;
  return {order_.begin() + static_cast<std::ptrdiff_t>(begin), order_.begin() + static_cast<std::ptrdiff_t>(begin + count)};
}

const std::vector<std::int32_t>& DallePairs::texts(std::uint64_t step) {
  if (!texts_.empty() && texts_step_ == step) return texts_;
  texts_.clear();
  texts_step_ = step;
  for (const std::size_t index : indexes(step, 0, options_.batch)) {
    data::MergeDropout dropout;
    if (options_.merge_dropout > 0) {
      const std::uint64_t epoch = step / steps_per_epoch();
      dropout = {options_.merge_dropout, Random(options_.seed, Stream::merge_dropout, epoch, index).next()};
    }
    const std::vector<std::int32_t> tokens = caption_tokens(config_, tokenizer_, captions_[index], dropout);
    texts_.insert(texts_.end(), tokens.begin(), tokens.end());
  }
  return texts_;
}

DalleBatch DallePairs::batch(std::uint64_t step, std::uint64_t micro_batch) {
  const std::size_t first = micro_batch * options_.micro_batch;
  const auto text = texts(step).begin() + static_cast<std::ptrdiff_t>(first * config_.text);
  DalleBatch batch{{text, text + static_cast<std::ptrdiff_t>(options_.micro_batch * config_.text)}, {}};
  if (options_.codes_of) {
    batch.codes = options_.codes_of(step, micro_batch);
    return batch;
  }
  const auto image = static_cast<std::ptrdiff_t>(config_.image());
  for (const std::size_t index : indexes(step, first, options_.micro_batch)) {
    const auto codes = codes_.begin() + static_cast<std::ptrdiff_t>(index) * image;
    batch.codes.insert(batch.codes.end(), codes, codes + image);
  }
  return batch;
}

DalleTokens DallePairs::tokens(std::uint64_t step) {
  return {text_tokens_of(config_, texts(step)), options_.batch * config_.image()};
}

DalleBatch DallePairs::range(std::size_t first, std::size_t count) const {
  DalleBatch batch;
  for (std::size_t i = first; i < first + count; ++i) {
    const std::vector<std::int32_t> tokens = caption_tokens(config_, tokenizer_, captions_[i]);
    batch.text.insert(batch.text.end(), tokens.begin(), tokens.end());
  }
  const std::size_t image = config_.image();
  const auto codes = codes_.begin() + static_cast<std::ptrdiff_t>(first * image);
  batch.codes.assign(codes, codes + static_cast<std::ptrdiff_t>(count * image));
  return batch;
}

}  // namespace bitloom::models
