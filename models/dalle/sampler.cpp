#include "models/dalle/sampler.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/field.h"
#include "core/random.h"
#include "nn/layers/tokens.h"

namespace bitloom::models {
namespace {

using nn::Tensor;
using nn::Use;

// Logits of the code behind the last token of every sequence.
class DalleSteps {
 public:
  DalleSteps(nn::Engine& engine, Dalle& net, bool caches) : engine_(engine), net_(net), caches_(caches) {}

  // Before the first token of `count` other sequences. The memory of as many before them is theirs.
  void begin(std::size_t count) {
    if (cache_ && count == count_) {
      cache_->clear();
    } else if (caches_) {
      cache_.emplace(count, net_.config().tokens());
    }
    count_ = count;
  }

  // sequences (count, all tokens), of which the first `size` are there.
  std::vector<float> next(std::span<const std::int32_t> sequences, std::size_t size) {
    const std::size_t tokens = net_.config().tokens();
    const std::size_t begin = cache_ ? cache_->size() : 0;
    // No token sees those after it: whatever follows the last one has no effect.
    const std::size_t end = cache_ ? size : tokens;
    std::vector<std::int32_t> ids;
    for (std::size_t b = 0; b < count_; ++b) {
      const auto row = sequences.begin() + static_cast<std::ptrdiff_t>(b * tokens);
      ids.insert(ids.end(), row + static_cast<std::ptrdiff_t>(begin), row + static_cast<std::ptrdiff_t>(end));
    }
    nn::Pass pass{engine_};
    pass.training = false;
    pass.cache = cache_ ? &*cache_ : nullptr;
    if (cache_) cache_->begin(end - begin);
    const Tensor x = engine_.from(std::span<const std::int32_t>(ids), {count_, end - begin}, Use::data);
    const Tensor hidden = net_.layers().forward(pass, x);
    if (cache_) cache_->end();
    return logits_of(hidden, size - 1 - begin);
  }

 private:
  std::vector<float> logits_of(const Tensor& hidden, std::size_t last) const {
    const std::size_t tokens = hidden.shape()[1];
    const std::size_t width = hidden.shape()[2];
    std::vector<std::int32_t> rows;
    for (std::size_t b = 0; b < count_; ++b) rows.push_back(static_cast<std::int32_t>(b * tokens + last));
    const Tensor ids = engine_.from(std::span<const std::int32_t>(rows), {rows.size()}, Use::data);
    Tensor lasts = engine_.empty({count_, width}, hidden.dtype(), Use::activations);
    nn::gather(engine_, hidden.reshaped({count_ * tokens, width}), ids, lasts);
    return engine_.to_host<float>(net_.code_head().logits(engine_, lasts));
  }

  nn::Engine& engine_;
  Dalle& net_;
  bool caches_;
  std::size_t count_ = 0;
  std::optional<nn::KeyValueCache> cache_;
};

void check(const DalleConfig& config, std::span<const std::int32_t> texts, std::span<const std::int32_t> given,
           const ImageOptions& options) {
  models::check(static_cast<const DrawOptions&>(options));
  if (options.count == 0) fail_field(ErrorKind::usage, "count", "0; expected at least 1");
  if (options.at_once == 0) fail_field(ErrorKind::usage, "at_once", "0; expected at least 1");
  if (texts.empty() || texts.size() % config.text != 0) {
    fail(ErrorKind::internal, "texts of {} positions; expected {} of each", texts.size(), config.text);
  }
  if (given.size() >= config.image()) {
    fail_field(ErrorKind::usage, "rows", "{} codes are given; expected fewer than an image's {}", given.size(), config.image());
  }
}

}  // namespace

std::vector<std::vector<std::int32_t>> sample_images(nn::Engine& engine, Dalle& net, std::span<const std::int32_t> texts,
                                                     std::span<const std::int32_t> given, const ImageOptions& options,
                                                     const std::function<bool(std::size_t, std::size_t)>& on_code) {
  const DalleConfig& config = net.config();
  check(config, texts, given, options);
  DalleBatch pairs{{texts.begin(), texts.end()}, {}};
  const std::size_t all = texts.size() / config.text * options.count;
  for (std::size_t t = 0; t < texts.size() / config.text; ++t) {
    pairs.codes.insert(pairs.codes.end(), given.begin(), given.end());
    pairs.codes.resize((t + 1) * config.image());
  }
  const std::vector<std::int32_t> begins = inputs_of(config, pairs);
  DalleSteps steps(engine, net, options.cache);
  std::vector<std::vector<std::int32_t>> images;
  while (images.size() < all) {
    const std::size_t first = images.size();
    const std::size_t count = std::min(options.at_once, all - first);
    std::vector<std::int32_t> sequences;
    for (std::size_t i = first; i < first + count; ++i) {
      const auto begin = begins.begin() + static_cast<std::ptrdiff_t>(i / options.count * config.tokens());
      sequences.insert(sequences.end(), begin, begin + static_cast<std::ptrdiff_t>(config.tokens()));
    }
    std::vector<std::vector<std::int32_t>> drawn(count, {given.begin(), given.end()});
    steps.begin(count);
    for (std::size_t n = given.size(); n < config.image(); ++n) {
      const std::vector<float> logits = steps.next(sequences, config.text + n);
      for (std::size_t b = 0; b < count; ++b) check_logits(std::span(logits).subspan(b * config.codes, config.codes));
#pragma omp parallel for schedule(static)
      for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(count); ++i) {
        const auto b = static_cast<std::size_t>(i);
        Random random(options.seed, Stream::sampling, options.first + first + b, n);
        const std::span<const float> row(logits.data() + b * config.codes, config.codes);
        const std::int32_t code = draw(row, options, random.uniform());
        drawn[b].push_back(code);
        sequences[b * config.tokens() + config.text + n] =
            static_cast<std::int32_t>(config.code_id(static_cast<std::size_t>(code)));
      }
      if (on_code && !on_code(first, n + 1)) return images;
    }
    images.insert(images.end(), drawn.begin(), drawn.end());
  }
  return images;
}

PairNats pair_nats(nn::Engine& engine, Dalle& net, const DalleBatch& pairs) {
  return pair_nats(engine, net, dalle_hidden(engine, net, pairs), pairs);
}

PairNats pair_nats(nn::Engine& engine, Dalle& net, const Tensor& hidden, const DalleBatch& pairs) {
  const std::size_t count = pairs.codes.size() / net.config().image();
  const DallePartLosses losses = dalle_losses(engine, net, hidden, pairs, 0, 0, nullptr);
  const auto sums = [&](const Tensor& tensor) {
    const std::vector<float> each = engine.to_host<float>(tensor);
    std::vector<double> all(count);
    for (std::size_t i = 0; i < each.size(); ++i) all[i * count / each.size()] += static_cast<double>(each[i]);
    return all;
  };
  return {sums(losses.text), sums(losses.image)};
}

}  // namespace bitloom::models
