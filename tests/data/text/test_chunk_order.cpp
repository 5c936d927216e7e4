// The order of training examples.
#include <algorithm>
#include <map>
#include <set>
#include <thread>

#include "core/error.h"
#include "core/random.h"
#include "data/text/chunk_order.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;

namespace {

using Tokens = std::vector<std::int32_t>;

// Token i is i, so that every token tells where it came from.
TokenFile numbered(const std::vector<std::size_t>& lengths) {
  TokenFile::Content content;
  for (const std::size_t length : lengths) {
    for (std::size_t i = 0; i < length; ++i) content.tokens.push_back(static_cast<std::int32_t>(content.tokens.size()));
    content.document_ends.push_back(content.tokens.size());
  }
  content.vocabulary = content.tokens.size();
  return TokenFile(std::move(content));
}

std::vector<std::size_t> varied_lengths(std::size_t documents) {
  Random random(3, Stream::test);
  std::vector<std::size_t> lengths;
  for (std::size_t i = 0; i < documents; ++i) lengths.push_back(1 + random.below(90));
  return lengths;
}

struct Chunk {
  Tokens inputs, targets;
};

Chunk read(const ChunkOrder& order, std::uint64_t index) {
  Chunk chunk{Tokens(order.context(), -5), Tokens(order.context(), -5)};
  order.read(index, chunk.inputs, chunk.targets);
  return chunk;
}

Tokens all_inputs(const ChunkOrder& order, std::uint64_t epoch) {
  Tokens all;
  for (std::uint64_t i = 0; i < order.chunks(); ++i) {
    const Chunk chunk = read(order, epoch * order.chunks() + i);
    all.insert(all.end(), chunk.inputs.begin(), chunk.inputs.end());
  }
  return all;
}

}  // namespace

TEST_CASE("an epoch has every token at most once, and nearly all", "[chunk_order]") {
  for (const std::size_t context : {1, 7, 32, 64}) {
    for (const std::size_t shards : {1, 2, 5}) {
      const TokenFile file = numbered(varied_lengths(200));
      const ChunkOrder order(file, context, 11, shards);
      CAPTURE(context, shards, file.size());
      CHECK(order.context() == context);
      CHECK(order.chunks() <= file.size() / context);
      CHECK(order.chunks() + shards > file.size() / context);  // at most a chunk per shard is missing
      std::set<std::int32_t> ever;
      for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
        const Tokens all = all_inputs(order, epoch);
        const std::set<std::int32_t> once(all.begin(), all.end());
        CHECK(once.size() == all.size());
        CHECK(all.size() == order.chunks() * context);
        CHECK(all.size() + shards * (context - 1) >= file.size());
        ever.insert(once.begin(), once.end());
      }
      if (context < 64) CHECK(ever.size() == file.size());  // the tokens left out change
    }
  }
}

TEST_CASE("targets are the next tokens, across documents in their drawn order", "[chunk_order]") {
  const std::vector<std::size_t> lengths = varied_lengths(60);
  const TokenFile file = numbered(lengths);
  std::set<std::int32_t> ends, begins;
  for (std::size_t i = 0; i < file.documents(); ++i) {
    begins.insert(static_cast<std::int32_t>(file.document_begin(i)));
    ends.insert(static_cast<std::int32_t>(file.document_end(i)) - 1);
  }
  const ChunkOrder order(file, 16, 5);
  std::size_t crossings = 0;
  for (std::uint64_t i = 0; i < 2 * order.chunks(); ++i) {
    const Chunk chunk = read(order, i);
    CHECK(std::equal(chunk.inputs.begin() + 1, chunk.inputs.end(), chunk.targets.begin()));
    for (std::size_t k = 0; k < 16; ++k) {
      const std::int32_t input = chunk.inputs[k];
      const std::int32_t target = chunk.targets[k];
      if (ends.contains(input)) {
        CHECK(begins.contains(target));
        crossings += target == input + 1 ? 0 : 1;
      } else {
        CHECK(target == input + 1);
      }
    }
  }
  CHECK(crossings > 50);  // documents are shuffled
}

TEST_CASE("the order follows from seed and epoch alone", "[chunk_order]") {
  const TokenFile file = numbered(varied_lengths(150));
  const ChunkOrder order(file, 20, 7);
  const Tokens first = all_inputs(order, 0);
  const Tokens second = all_inputs(order, 1);
  CHECK(first != second);
  CHECK(all_inputs(ChunkOrder(file, 20, 7), 0) == first);
  CHECK(all_inputs(ChunkOrder(file, 20, 8), 0) != first);
  CHECK(all_inputs(ChunkOrder(file, 20, 7, 1), 0) != first);
  // Reading here and there, or from several threads, changes nothing.
  const ChunkOrder jumping(file, 20, 7);
  for (const std::uint64_t index :
       {5 * order.chunks() + 3, std::uint64_t{0}, order.chunks(), order.chunks() - 1, std::uint64_t{9}}) {
    CHECK(read(jumping, index).targets == read(ChunkOrder(file, 20, 7), index).targets);
  }
  std::vector<Tokens> found(4);
  std::vector<std::thread> threads;
  for (auto& each : found) threads.emplace_back([&] { each = all_inputs(jumping, 1); });
  for (std::thread& thread : threads) thread.join();
  for (const Tokens& each : found) CHECK(each == second);
}

TEST_CASE("shards are equal, shuffled inside, and of documents from everywhere", "[chunk_order]") {
  const TokenFile file = numbered(std::vector<std::size_t>(1000, 20));
  const ChunkOrder order(file, 50, 1, 5);
  CHECK(order.chunks() == 400);
  const auto documents_of = [&](std::uint64_t epoch, std::uint64_t part) {
    std::set<std::int32_t> documents;
    for (std::uint64_t i = 0; i < 80; ++i) {
      for (const std::int32_t token : read(order, epoch * 400 + part * 80 + i).inputs) documents.insert(token / 20);
    }
    return documents;
  };
  // The same five sets of documents in every epoch, in another order.
  std::vector<std::set<std::int32_t>> shards;
  for (std::uint64_t part = 0; part < 5; ++part) shards.push_back(documents_of(0, part));
  std::set<std::vector<std::size_t>> orders;
  for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<std::size_t> which;
    for (std::uint64_t part = 0; part < 5; ++part) {
      const auto found = std::find(shards.begin(), shards.end(), documents_of(epoch, part));
      REQUIRE(found != shards.end());
      which.push_back(static_cast<std::size_t>(found - shards.begin()));
    }
    orders.insert(which);
  }
  CHECK(orders.size() > 1);
  for (const auto& shard : shards) {
    CHECK(shard.size() == 200);
    CHECK(*shard.begin() < 50);
    CHECK(*shard.rbegin() >= 950);
  }
  // Chunks do not come in the order of the text that they are cut from.
  std::size_t follow = 0;
  for (std::uint64_t i = 0; i + 1 < 80; ++i)
    follow += read(order, i).targets.back() == read(order, i + 1).inputs.front() ? 1U : 0U;
  CHECK(follow < 10);
}

TEST_CASE("one document is a circle that is cut elsewhere in every epoch", "[chunk_order]") {
  const TokenFile file = numbered({100});
  const ChunkOrder order(file, 10, 2);
  CHECK(order.chunks() == 10);
  std::set<std::int32_t> phases;
  bool wrapped = false;
  for (std::uint64_t epoch = 0; epoch < 200; ++epoch) {
    const Chunk chunk = read(order, epoch * 10);
    phases.insert(chunk.inputs.front() % 10);
    for (std::size_t i = 0; i < 10; ++i) CHECK(chunk.targets[i] == (chunk.inputs[i] + 1) % 100);
    wrapped = wrapped || chunk.inputs.front() > chunk.inputs.back();
  }
  CHECK(phases.size() == 10);
  CHECK(wrapped);
}

TEST_CASE("too little text for a context is refused", "[chunk_order]") {
  CHECK(message_of(ErrorKind::data, [] { ChunkOrder(numbered({10}), 10, 1); }) ==
        "10 tokens are too few for a context of 10; expected 11 at least");
  CHECK(message_of(ErrorKind::data, [] { ChunkOrder(TokenFile(), 10, 1); }) ==
        "0 tokens are too few for a context of 10; expected 11 at least");
  CHECK(has(message_of(ErrorKind::usage, [] { ChunkOrder(numbered({10}), 0, 1); }), "a context of 0 tokens"));
  CHECK(has(message_of(ErrorKind::usage, [] { ChunkOrder(numbered({10}), 5, 1, 0); }), "0 shards"));
  const TokenFile file = numbered({11});
  const ChunkOrder least(file, 10, 1, 5);
  CHECK(least.chunks() == 1);
  CHECK(has(message_of(ErrorKind::internal, [&] { least.read(0, {}, {}); }), "expected 10 each"));
  // Short documents: fewer shards, none without a chunk.
  const TokenFile crumbs = numbered(std::vector<std::size_t>(30, 1));
  const ChunkOrder few(crumbs, 12, 1, 5);
  CHECK(few.chunks() == 2);
}
