#include "models/gpt/sampler.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "core/error.h"
#include "core/field.h"
#include "core/random.h"

namespace bitloom::models {
namespace {

using nn::Tensor;
using nn::Use;

// The logits behind the last token of every sequence, step by step. Every process keeps keys and values of its own layers and
// heads.
class GptSteps {
 public:
  GptSteps(GptForward& net, std::size_t count, bool cache) : net_(net), engine_(net.engine()), count_(count) {
    if (cache) cache_.emplace(count, net.net().tokens());
  }

  // sequences: as long as one another. Gives (count, padded vocabulary) on the last stage, none elsewhere.
  std::vector<float> next(const std::vector<std::vector<std::int32_t>>& sequences) {
    const std::size_t context = net_.net().tokens();
    const std::size_t size = sequences.front().size();
    if (size - begin_ > context) {
      begin_ = size - (context + 1) / 2;
      if (cache_) cache_->clear();
    }
    return cache_ ? with_cache(sequences, size) : without_cache(sequences, size);
  }

 private:
  // Tokens begin .. end - 1 of every sequence, followed by zeros up to `padded` -> hidden states.
  Tensor pass_over(const std::vector<std::vector<std::int32_t>>& sequences, std::size_t begin, std::size_t end,
                   std::size_t padded) {
    std::vector<std::int32_t> ids;
    for (const std::vector<std::int32_t>& sequence : sequences) {
      ids.insert(ids.end(), sequence.begin() + static_cast<std::ptrdiff_t>(begin),
                 sequence.begin() + static_cast<std::ptrdiff_t>(end));
      ids.resize(ids.size() + padded - (end - begin));
    }
    nn::Pass pass{engine_};
    pass.training = false;
    pass.cache = cache_ ? &*cache_ : nullptr;
    return net_.hidden(pass, net_.net(), ids, {sequences.size(), padded});
  }

  // Logits of row `last` of every sequence.
  std::vector<float> logits_of(const Tensor& hidden, std::size_t last) const {
    if (!hidden) return {};
    const std::size_t tokens = hidden.shape()[1];
    const std::size_t width = hidden.shape()[2];
    const Tensor rows = hidden.reshaped({count_ * tokens, width});
    Tensor lasts = engine_.empty({count_, width}, hidden.dtype(), Use::activations);
    for (std::size_t s = 0; s < count_; ++s) {
      Tensor row = lasts.slice(s, s + 1);
      nn::scale_add(engine_, 1, rows.slice(s * tokens + last, s * tokens + last + 1), 0, row);
    }
    return engine_.to_host<float>(net_.net().logits(engine_, lasts));
  }

  std::vector<float> with_cache(const std::vector<std::vector<std::int32_t>>& sequences, std::size_t size) {
    const std::size_t begin = begin_ + cache_->size();
    cache_->begin(size - begin);
    const Tensor hidden = pass_over(sequences, begin, size, size - begin);
    cache_->end();
    return logits_of(hidden, size - begin - 1);
  }

  // No token sees those after it: the zeros that follow the last one have no effect.
  std::vector<float> without_cache(const std::vector<std::vector<std::int32_t>>& sequences, std::size_t size) {
    return logits_of(pass_over(sequences, begin_, size, net_.net().tokens()), size - begin_ - 1);
  }

  GptForward& net_;
  nn::Engine& engine_;
  std::size_t count_;
  std::size_t begin_ = 0;  // of the context, in the sequences
  std::optional<nn::KeyValueCache> cache_;
};

}  // namespace

void check(const SampleOptions& options) {
  check(static_cast<const DrawOptions&>(options));
  if (options.count == 0) fail_field(ErrorKind::usage, "count", "0; expected at least 1");
}

namespace {

void check_prompt(const Gpt& net, std::span<const std::int32_t> prompt) {
  if (prompt.empty()) fail_field(ErrorKind::usage, "prompt", "no tokens; expected at least one");
  for (const std::int32_t token : prompt) {
    if (token < 0 || static_cast<std::size_t>(token) >= net.config().vocabulary) {
      fail_field(ErrorKind::usage, "prompt", "token {}; expected 0 to {}", token, net.config().vocabulary - 1);
    }
  }
}

// Samples of all data ranks, in their order, on all processes.
std::vector<std::vector<std::int32_t>> gather_samples(mpi::Comm& data, const std::vector<std::vector<std::int32_t>>& own) {
  std::vector<std::int32_t> numbers;  // the length of each, and its tokens
  for (const std::vector<std::int32_t>& sample : own) {
    numbers.push_back(static_cast<std::int32_t>(sample.size()));
    numbers.insert(numbers.end(), sample.begin(), sample.end());
  }
  std::vector<std::byte> joined;
  for (const std::vector<std::byte>& bytes : data.gather_bytes(std::as_bytes(std::span(numbers)))) {
    joined.insert(joined.end(), bytes.begin(), bytes.end());
  }
  joined = data.broadcast_bytes(std::move(joined));
  numbers.resize(joined.size() / sizeof(std::int32_t));
  std::memcpy(numbers.data(), joined.data(), joined.size());
  std::vector<std::vector<std::int32_t>> all;
  for (auto next = numbers.begin(); next != numbers.end();) {
    const auto begin = next + 1;
    next = begin + *next;
    all.emplace_back(begin, next);
  }
  return all;
}

// How many samples have caches of 1 GiB in f32, where queries lie beside keys and values: of the whole net, though a process
// may have a part of it.
std::size_t samples_at_once(const GptConfig& config) {
  constexpr double most_bytes = 1U << 30U;
  const double bytes =
      3.0 * 4.0 * static_cast<double>(config.width) * static_cast<double>(config.layers) * static_cast<double>(config.context);
  return static_cast<std::size_t>(std::max(1.0, most_bytes / bytes));
}

struct Group {
  std::size_t first, count;  // of this process's samples, which may be none
};

// Appends what is drawn to `all`; gives whether on_token() stopped it, on any process.
bool draw_group(GptForward& net, std::span<const std::int32_t> prompt, const SampleOptions& options, const Group& group,
                const std::function<bool(std::size_t, std::int32_t)>& on_token, std::vector<std::vector<std::int32_t>>& all) {
  const auto& [first, count] = group;
  const GptConfig& config = net.net().config();
  std::vector<std::vector<std::int32_t>> sequences(count, {prompt.begin(), prompt.end()});
  std::vector<std::vector<std::int32_t>> drawn(count);
  std::vector<bool> ended(count);
  GptSteps steps(net, std::max<std::size_t>(count, 1), options.cache);
  const auto draw_next = [&](std::size_t n) {
    const std::vector<float> logits = steps.next(sequences);
    std::vector<std::int32_t> tokens(count);
    for (std::size_t s = 0; s < count && net.is_last(); ++s) {
      Random random(options.seed, Stream::sampling, first + s, n);
      const std::span<const float> row(logits.data() + s * config.padded_vocabulary(), config.vocabulary);
      // A sample that has ended goes along until all have.
      if (ended[s]) continue;
      check_logits(row);
      tokens[s] = draw(row, options, random.uniform());
    }
    net.take_from_last(std::span(tokens));
    bool stops = false;
    for (std::size_t s = 0; s < count; ++s) {
      sequences[s].push_back(tokens[s]);
      if (ended[s]) continue;
      if (tokens[s] == options.end) ended[s] = true;
      if (!ended[s]) drawn[s].push_back(tokens[s]);
      if (on_token && !on_token(first + s, tokens[s])) stops = true;
    }
    return stops;
  };
  bool stopped = false;
  for (std::size_t n = 0; n < options.tokens; ++n) {
    const bool is_done = std::all_of(ended.begin(), ended.end(), [](bool each) { return each; });
    const bool stops = !is_done && draw_next(n);
    std::array<std::int64_t, 2> state = {stops ? 1 : 0, is_done ? 0 : 1};
    net.grid().world().max(state);
    stopped = state[0] != 0;
    if (stopped || state[1] == 0) break;
  }
  all.insert(all.end(), drawn.begin(), drawn.end());
  return stopped;
}

}  // namespace

std::vector<std::vector<std::int32_t>> sample(GptForward net, std::span<const std::int32_t> prompt,
                                              const SampleOptions& options,
                                              const std::function<bool(std::size_t, std::int32_t)>& on_token) {
  check(options);
  check_prompt(net.net(), prompt);
  mpi::Grid& grid = net.grid();
  const auto share = [&](int data_index) {
    return options.count * static_cast<std::size_t>(data_index) / static_cast<std::size_t>(grid.shape().data);
  };
  const std::size_t begin = share(grid.data_index());
  const std::size_t end = share(grid.data_index() + 1);  // of this data rank
  const std::size_t at_once = options.at_once != 0 ? options.at_once : samples_at_once(net.net().config());
  // As many groups on all data ranks, which go from token to token together.
  const std::size_t largest_share = (options.count - 1) / static_cast<std::size_t>(grid.shape().data) + 1;
  std::vector<std::vector<std::int32_t>> drawn;
  bool stopped = false;
  for (std::size_t group = 0; group < largest_share && !stopped; group += at_once) {
    const std::size_t first = std::min(begin + group, end);
    stopped = draw_group(net, prompt, options, {first, std::min(at_once, end - first)}, on_token, drawn);
  }
  return gather_samples(grid.data(), drawn);
}

}  // namespace bitloom::models
