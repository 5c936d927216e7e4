#include "cli/dalle_pairs.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "cli/pair_options.h"
#include "cli/step_samples.h"

namespace bitloom::cli {
namespace {

// Training pairs whose losses each evaluation measures beside those of the validation pairs: how far the two are apart.
constexpr std::size_t most_drawn = 128;

}  // namespace

DallePairSets::DallePairSets(Session& session, mpi::Grid& grid, const DalleSettings& settings, const data::PairSplits& data,
                             models::DvaeCoder& coder, std::size_t side)
    : session_(session),
      grid_(grid),
      settings_(settings),
      data_(data),
      coder_(coder),
      side_(side),
      crops_vary_(find_crops_vary()) {}

bool DallePairSets::find_crops_vary() const {
  for (std::size_t i = 0; i < data_.train.size(); ++i) {
    const data::Pair& pair = data_.train[i];
    if (data::crops_vary(data::parse_crop(settings_.crop), pair.height, pair.width, side_)) return true;
  }
  return settings_.crop == "dvae";  // which mirrors
}

// Codes (N,tokens) of images (N) cut in the centre; every process makes a part of them.
std::vector<std::int32_t> DallePairSets::codes_of(const data::Pairs& pairs, std::size_t tokens) {
  constexpr std::size_t at_once = 32;
  const auto ranks = static_cast<std::size_t>(session_.comm.size());
  std::vector<std::int32_t> codes(pairs.size() * tokens);
  session_.comm.together([&] {
    for (std::size_t first = at_once * static_cast<std::size_t>(session_.comm.rank()); first < pairs.size();
         first += at_once * ranks) {
      std::vector<std::size_t> indexes(std::min(at_once, pairs.size() - first));
      std::iota(indexes.begin(), indexes.end(), first);
      const std::vector<std::int32_t> some = coder_.encode(data::centre_batch(pairs, indexes, side_).images);
      std::ranges::copy(some, codes.begin() + static_cast<std::ptrdiff_t>(first * tokens));
      session_.terminal.update(fmt::format("images become codes: {} of {}", first + indexes.size(), pairs.size()));
    }
  });
  // The others have zeros.
  constexpr std::size_t piece = std::size_t{1} << 24U;
  for (std::size_t begin = 0; begin < codes.size(); begin += piece) {
    session_.comm.sum(std::span(codes).subspan(begin, std::min(piece, codes.size() - begin)));
  }
  return codes;
}

// Pairs as they are.
std::unique_ptr<models::DallePairs> DallePairSets::in_order(const models::DalleConfig& config, const data::Tokenizer& tokenizer,
                                                            const data::Pairs& pairs) {
  models::DallePairs::Options options;
  options.batch = options.micro_batch = 1;
  return std::make_unique<models::DallePairs>(config, tokenizer, captions_of(pairs), codes_of(pairs, config.image()), options);
}

void DallePairSets::encode(const models::DalleConfig& config, const data::Tokenizer& tokenizer, std::size_t micro_batch) {
  models::DallePairs::Options options;
  options.batch = settings_.batch;
  options.micro_batch = micro_batch;
  options.seed = settings_.seed;
  options.merge_dropout = tokenizer.kind() == "bytes" ? 0 : settings_.merge_dropout;
  std::vector<std::int32_t> codes;
  if (crops_vary_) {
    data::PairBatches::Options cuts;
    cuts.batch = options.batch;
    cuts.micro_batch = options.micro_batch;
    cuts.side = side_;
    cuts.crop = data::parse_crop(settings_.crop);
    cuts.seed = options.seed;
    cuts.ranks = grid_.shape().data;
    batches_ = std::make_unique<data::PairBatches>(data_.train, cuts);
    options.codes_of = [this, size = micro_batch * config.image()](std::uint64_t step, std::uint64_t which) {
      mpi::Comm& group = grid_.tensor();
      std::vector<std::int32_t> made(size);
      group.together([&] {
        if (group.is_root()) made = coder_.encode(batches_->get(step, which).images);
      });
      group.broadcast(std::span(made));
      return made;
    };
  } else {
    codes = codes_of(data_.train, config.image());
  }
  train_ = std::make_unique<models::DallePairs>(config, tokenizer, captions_of(data_.train), std::move(codes), options);
  if (data_.validation.size() == 0) return;
  validation_ = in_order(config, tokenizer, data_.validation);
  const std::size_t measured = std::min(most_drawn, data_.validation.size());
  measured_train_ = in_order(config, tokenizer, data_.train.select(spread(measured, data_.train.size())));
}

}  // namespace bitloom::cli
