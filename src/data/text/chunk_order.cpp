#include "data/text/chunk_order.h"

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <numeric>

#include "core/error.h"
#include "core/random.h"
#include "data/text/document_batches.h"

namespace bitloom::data {
namespace {

// Purpose of a draw, besides the epoch: the second key of the random stream, with the shard or document above.
enum class Draw : std::uint64_t { deal = 0, shards = 1, documents = 2, cut = 3, chunks = 4, merges = 5 };

Random draws(std::uint64_t seed, std::uint64_t epoch, Draw what, std::size_t part = 0) {
  return {seed, Stream::chunk_order, epoch, static_cast<std::uint64_t>(what) + 8 * static_cast<std::uint64_t>(part)};
}

template <typename T>
std::vector<T> numbers_to(std::size_t size) {
  std::vector<T> numbers(size);
  std::iota(numbers.begin(), numbers.end(), T{0});
  return numbers;
}

}  // namespace

struct ChunkOrder::Circle {
  std::uint64_t epoch;
  std::size_t shard;
  std::vector<std::uint32_t> documents;
  std::vector<std::uint64_t> starts;  // start of each in the flattened shard; then the shard's tokens
  std::vector<std::int32_t> tokens;   // tokens of the flattened shard, with merge dropout; otherwise none: they are in the file
  std::uint64_t cut;                  // where the first chunk begins
  std::vector<std::uint32_t> chunks;
};

struct ChunkOrder::Cache {
  std::mutex mutex;
  // Two: around the end of a shard, threads may still want the one before.
  std::array<std::shared_ptr<const Circle>, 2> circles;
};

ChunkOrder::ChunkOrder(const TokenFile& file, std::size_t context, std::uint64_t seed, std::size_t shards,
                       const TokenDropout& dropout)
    : file_(&file), context_(context), seed_(seed), dropout_(dropout), cache_(std::make_shared<Cache>()) {
  if (context == 0) fail(ErrorKind::usage, "a context of 0 tokens; expected 1 at least");
  if (shards == 0) fail(ErrorKind::usage, "0 shards; expected 1 at least");
  if (file.size() <= context) {
    fail(ErrorKind::data, "{} tokens are too few for a context of {}; expected {} at least", file.size(), context, context + 1);
  }
  constexpr std::size_t most = std::numeric_limits<std::uint32_t>::max();
  if (file.documents() > most || file.size() / context > most) {
    fail(ErrorKind::data, "{} documents and {} chunks are too many; expected {} of each at most", file.documents(),
         file.size() / context, most);
  }
  if (dropout.rate != 0) check_dropout();
  deal(shards);
}

void ChunkOrder::check_dropout() const {
  if (dropout_.tokenizer == nullptr) fail(ErrorKind::internal, "merge dropout {} without a tokenizer", dropout_.rate);
  const std::string hash = data::tokenizer_hash(*dropout_.tokenizer);
  if (file_->tokenizer_hash() == hash) return;
  fail(ErrorKind::usage, "merge dropout {} with another tokenizer ({}) than that of the tokens ({})", dropout_.rate, hash,
       file_->tokenizer_hash());
}

std::vector<std::int32_t> ChunkOrder::stored_tokens(std::size_t document) const {
  std::vector<std::int32_t> tokens(file_->document_end(document) - file_->document_begin(document));
  file_->read(file_->document_begin(document), tokens);
  return tokens;
}

std::vector<std::int32_t> ChunkOrder::drawn_tokens(std::uint64_t epoch, std::size_t document) const {
  const std::string text = dropout_.tokenizer->decode(stored_tokens(document));
  std::vector<std::int32_t> tokens;
  dropout_.tokenizer->encode(text, tokens, {dropout_.rate, draws(seed_, epoch, Draw::merges, document).next()});
  tokens.push_back(dropout_.tokenizer->end_of_text());
  return tokens;
}

// How many tokens dropout makes of one, by the first documents in the order that was dealt.
double ChunkOrder::measure_expansion() const {
  constexpr std::size_t enough = 1 << 20;
  std::size_t stored = 0;
  std::size_t drawn = 0;
  for (std::size_t i = 0; i < dealt_.size() && stored < enough; ++i) {
    const std::vector<std::int32_t> tokens = stored_tokens(dealt_[i]);
    std::vector<std::int32_t> again = encode(*dropout_.tokenizer, dropout_.tokenizer->decode(tokens));
    again.push_back(dropout_.tokenizer->end_of_text());
    if (again != tokens) {
      fail(ErrorKind::usage,
           "merge dropout {}: the text of document {} has other tokens when it is tokenised again; expected a "
           "tokenizer that gives back text as it was",
           dropout_.rate, dealt_[i]);
    }
    stored += tokens.size();
    drawn += drawn_tokens(0, dealt_[i]).size();
  }
  return static_cast<double>(drawn) / static_cast<double>(stored);
}

std::uint64_t ChunkOrder::chunks() const { return chunks_; }
std::size_t ChunkOrder::context() const { return context_; }

void ChunkOrder::deal(std::size_t shards) {
  dealt_ = numbers_to<std::uint32_t>(file_->documents());
  shuffle(dealt_.data(), dealt_.size(), draws(seed_, 0, Draw::deal));
  shards = std::min(shards, file_->documents());  // also keeps the products below within 64 bits
  Shard shard{0, 0, 0, 0};
  std::uint64_t tokens = 0;
  for (std::size_t i = 0; i < dealt_.size(); ++i) {
    const std::uint64_t length = file_->document_end(dealt_[i]) - file_->document_begin(dealt_[i]);
    shard.tokens += length;
    tokens += length;
    shard.last = i + 1;
    const bool full = tokens * shards >= file_->size() * (shards_.size() + 1);
    if (!full || shard.tokens <= context_) continue;
    shards_.push_back(shard);
    shard = {i + 1, i + 1, 0, 0};
  }
  if (shards_.empty()) {
    shards_.push_back(shard);
  } else {  // the rest, too little for a shard
    shards_.back().last = shard.last;
    shards_.back().tokens += shard.tokens;
  }
  const double expansion = dropout_.rate == 0 ? 1 : measure_expansion();
  for (Shard& each : shards_) {
    // With one token for one it is exact below 2^53 tokens.
    const auto expected = static_cast<std::uint64_t>(expansion * static_cast<double>(each.tokens));
    each.chunks = std::max<std::uint64_t>(1, expected / context_);
    chunks_ += each.chunks;
  }
}

std::shared_ptr<const ChunkOrder::Circle> ChunkOrder::make_circle(std::uint64_t epoch, std::size_t shard) const {
  const Shard& from = shards_[shard];
  auto circle = std::make_shared<Circle>();
  circle->epoch = epoch;
  circle->shard = shard;
  circle->documents.assign(dealt_.begin() + static_cast<std::ptrdiff_t>(from.first),
                           dealt_.begin() + static_cast<std::ptrdiff_t>(from.last));
  shuffle(circle->documents.data(), circle->documents.size(), draws(seed_, epoch, Draw::documents, shard));
  if (dropout_.rate != 0) {
    tokenise(*circle);
  } else {
    std::uint64_t start = 0;
    for (const std::uint32_t document : circle->documents) {
      circle->starts.push_back(start);
      start += file_->document_end(document) - file_->document_begin(document);
    }
    circle->starts.push_back(start);
  }
  circle->cut = draws(seed_, epoch, Draw::cut, shard).next() % circle->starts.back();
  circle->chunks = numbers_to<std::uint32_t>(from.chunks);
  shuffle(circle->chunks.data(), circle->chunks.size(), draws(seed_, epoch, Draw::chunks, shard));
  return circle;
}

void ChunkOrder::tokenise(Circle& circle) const {
  std::vector<std::vector<std::int32_t>> drawn(circle.documents.size());
  for_each_parallel(drawn.size(), [&](std::size_t i) { drawn[i] = drawn_tokens(circle.epoch, circle.documents[i]); });
  std::uint64_t start = 0;
  for (const auto& tokens : drawn) {
    circle.starts.push_back(start);
    start += tokens.size();
  }
  circle.starts.push_back(start);
  circle.tokens.reserve(start);
  for (auto& tokens : drawn) {
    circle.tokens.insert(circle.tokens.end(), tokens.begin(), tokens.end());
    tokens = {};
  }
}

std::shared_ptr<const ChunkOrder::Circle> ChunkOrder::circle(std::uint64_t epoch, std::size_t shard) const {
  const std::lock_guard lock(cache_->mutex);
  auto& [last, before] = cache_->circles;
  for (const auto& known : cache_->circles) {
    if (known != nullptr && known->epoch == epoch && known->shard == shard) return known;
  }
  before = last;
  last = make_circle(epoch, shard);
  return last;
}

void ChunkOrder::read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
  if (inputs.size() != context_ || targets.size() != context_) {
    fail(ErrorKind::internal, "a chunk of {} inputs and {} targets was asked for; expected {} each", inputs.size(),
         targets.size(), context_);
  }
  const std::uint64_t epoch = index / chunks_;
  std::uint64_t chunk = index % chunks_;
  std::vector<std::size_t> order = numbers_to<std::size_t>(shards_.size());
  shuffle(order.data(), order.size(), draws(seed_, epoch, Draw::shards));
  std::size_t turn = 0;
  while (chunk >= shards_[order[turn]].chunks) chunk -= shards_[order[turn++]].chunks;

  const std::shared_ptr<const Circle> from = circle(epoch, order[turn]);
  const std::uint64_t size = from->starts.back();
  std::vector<std::int32_t> tokens(context_ + 1);
  std::uint64_t place = (from->cut + from->chunks[chunk] * static_cast<std::uint64_t>(context_)) % size;
  for (std::size_t done = 0; done < tokens.size();) {
    const auto next = std::upper_bound(from->starts.begin(), from->starts.end(), place);
    const std::uint64_t document = from->documents[static_cast<std::size_t>(next - from->starts.begin() - 1)];
    const std::uint64_t count = std::min<std::uint64_t>(*next - place, tokens.size() - done);
    const auto out = std::span(tokens).subspan(done, count);
    if (from->tokens.empty()) {
      file_->read(file_->document_begin(document) + (place - *(next - 1)), out);
    } else {
      std::copy_n(from->tokens.begin() + static_cast<std::ptrdiff_t>(place), count, out.begin());
    }
    done += count;
    place = (place + count) % size;
  }
  std::copy_n(tokens.begin(), context_, inputs.begin());
  std::copy_n(tokens.begin() + 1, context_, targets.begin());
}

}  // namespace bitloom::data
