// Checkpoints of an exchange: taken while workers go on, and continued by any ranks.
#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "mpi/sparse_exchange.h"
#include "tests/mpi/exchange_trial.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"

using namespace bitloom;
using namespace bitloom::mpi;
using namespace bitloom::test;

TEST_CASE("an exchange that was saved goes on as if it had not been", "[exchange]") {
  for (const ExchangeOptions& options : option_cases()) {
    Trial trial(test::world(), options);
    for (std::uint64_t n = 0; n < 5; ++n) trial.update(n);
    TensorFile file;
    trial.exchange().save(file, "x");
    const std::vector<std::byte> bytes =
        test::world().broadcast_bytes(test::world().is_root() ? file.serialize() : std::vector<std::byte>{});
    const TensorFile shared = TensorFile::parse(bytes, "test");
    Trial again(test::world(), options);
    again.exchange().load(shared, "x");
    Comm alone;
    Trial single(alone, options);
    single.exchange().load(shared, "x");
    std::vector<Bundle> expected;
    for (std::uint64_t n = 5; n < 10; ++n) expected.push_back(trial.update(n));
    test::world().barrier();  // one exchange at a time may have messages on their way
    for (std::uint64_t n = 5; n < 10; ++n) {
      REQUIRE((again.update(n) == expected[n - 5]));
      REQUIRE((single.update(n) == expected[n - 5]));
    }
    test::world().barrier();
  }
}

// Workers waited until all of it was at the root.
TEST_CASE("an exchange is saved while updates go on, as it was when that began", "[exchange]") {
  Comm& comm = test::world();
  constexpr std::uint64_t begun_after = 4, updates = 9;
  std::vector<ExchangeOptions> cases = option_cases();
  cases.push_back(cases[1]);
  cases.back().error_feedback = ErrorFeedback::sum;
  cases.push_back(cases[1]);
  cases.back().staleness = 2;
  for (const ExchangeOptions& options : cases) {
    CAPTURE(options.threshold, options.bytes_per_update, static_cast<int>(options.error_feedback), options.staleness);
    // Two of them alike; one stops to be saved, and the other goes on.
    TensorFile expected, file;
    const auto run = [&](bool stops) {
      Trial trial(comm, options);
      std::vector<Bundle> replies;
      for (std::uint64_t n = 0; n < updates; ++n) {
        trial.compute(n);
        trial.send();
        if (n >= options.staleness) replies.push_back(trial.exchange().next_reply(n - options.staleness));
        if (n + 1 != begun_after) continue;
        if (stops) {
          if (options.staleness > 0) trial.exchange().settle(n);
          trial.exchange().save(expected, "x");
        } else {
          trial.exchange().begin_save(file, "x");
        }
      }
      for (std::uint64_t n = updates - options.staleness; n < updates; ++n) replies.push_back(trial.exchange().next_reply(n));
      trial.exchange().close();
      if (!stops) {
        trial.exchange().wait_for_save();
        if (comm.is_root()) trial.exchange().end_save(file, "x");
      }
      CHECK(trial.exchange().is_saved());
      comm.barrier();
      return replies;
    };
    const std::vector<Bundle> stopped = run(true);
    REQUIRE((run(false) == stopped));
    REQUIRE(file.tensors.size() == expected.tensors.size());
    REQUIRE((file.serialize() == expected.serialize()));
    if (comm.is_root())
      CHECK(file.contains("x.residual.6") == (options.keeps() && options.error_feedback == ErrorFeedback::exact));
  }
}

TEST_CASE("saving that has begun is broken off, and begins anew", "[exchange]") {
  Comm& comm = test::world();
  ExchangeOptions options;
  options.threshold = 2;
  Trial trial(comm, options);
  trial.update(0);
  for (std::uint64_t n = 1; n < 4; ++n) {
    TensorFile broken_off, whole, again;
    trial.exchange().begin_save(broken_off, "x");
    if (n == 2) trial.update(n);
    if (n == 3) trial.exchange().wait_for_save();  // which the root has not ended
    trial.exchange().cancel_save();
    CHECK(trial.exchange().is_saved());
    trial.exchange().begin_save(broken_off, "x");
    trial.exchange().save(whole, "x");  // instead of the other
    trial.exchange().save(again, "x");
    CHECK((whole.serialize() == again.serialize()));
    if (comm.is_root()) CHECK(whole.contains("x.residual.6"));
    if (n != 2) trial.update(n);
  }
}

TEST_CASE("a snapshot of what workers keep is of its moment, whatever they do meanwhile", "[exchange]") {
  constexpr std::size_t count = 9;
  KeptState state({{1000, true, 1}, {70, false, 1}}, {5}, count, {}, 0);
  const auto fill = [&](std::size_t w, std::int32_t value) {
    std::fill(state[w].feedback[0].narrow.begin(), state[w].feedback[0].narrow.end(), value);
    std::fill(state[w].feedback[1].wide.begin(), state[w].feedback[1].wide.end(), std::int64_t{value} << 40U);
    state[w].statistics[0].assign(5, -value);
  };
  // Copies of all workers, of two, and of one alone, before whoever changes waits.
  for (const std::size_t most : {std::size_t{1} << 30U, 2 * state.bytes_of_worker(), std::size_t{0}}) {
    for (const bool sum : {false, true}) {
      CAPTURE(most, sum);
      for (std::size_t w = 0; w < count; ++w) fill(w, static_cast<std::int32_t>(w) + 1);
      std::vector<std::byte> bytes;
      {
        KeptSnapshot snapshot(state, sum, most);
        // The last of them first, to which the thread comes last.
        for (std::size_t w = count; w-- > 0;) {
          snapshot.before_change(w);
          fill(w, 77);
          snapshot.before_change(w);
        }
        for (bool last = false; !last; std::this_thread::yield()) {
          const std::vector<std::byte> ready = snapshot.take(last);
          bytes.insert(bytes.end(), ready.begin(), ready.end());
        }
      }
      std::vector<std::int64_t> found;
      for (std::span<const std::byte> rest = bytes; !rest.empty();) {
        const Bundle bundle = decode_bundle(next_message(rest));
        REQUIRE(bundle.vectors.size() == 3);
        const std::int64_t value = dense(bundle.vectors[0]).at(999);
        CHECK(dense(bundle.vectors[0]) == std::vector<std::int64_t>(1000, value));
        CHECK(dense(bundle.vectors[1]) == std::vector<std::int64_t>(70, value << 40U));
        CHECK(dense(bundle.vectors[2]) == std::vector<std::int64_t>(5, -value));
        found.push_back(value);
      }
      CHECK(found == (sum ? std::vector<std::int64_t>{45} : std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
    }
  }
  // One that nobody takes ends with its life.
  const KeptSnapshot unused(state, false, 0);
  CHECK(state[0].statistics[0][0] == -77);
}

TEST_CASE("what workers keep lies in a file where memory does not suffice, which changes nothing", "[exchange]") {
  const test::TempDir folder;
  ExchangeOptions options;
  options.threshold = 2;
  Trial in_memory(test::world(), options);
  const std::size_t each = 20032 + 2432;  // 4 * narrow_size and 8 * wide_size, in lines of 64 bytes
  const std::size_t here = in_memory.exchange().local_workers();
  std::vector<Bundle> expected;
  for (std::uint64_t n = 0; n < 8; ++n) expected.push_back(in_memory.update(n));
  test::world().barrier();
  CHECK(in_memory.exchange().error_feedback_bytes_in_file() == 0);
  for (const std::size_t memory : {std::size_t{1}, each + 1, 3 * each}) {
    CAPTURE(memory, here);
    const std::size_t in_file = (here - std::min(here, memory / each)) * each;
    Trial trial(test::world(), options, {memory, folder.path()});
    CHECK(trial.exchange().error_feedback_bytes_in_file() == in_file);
    for (std::uint64_t n = 0; n < 4; ++n) REQUIRE((trial.update(n) == expected[n]));
    TensorFile file;
    trial.exchange().save(file, "x");
    const std::vector<std::byte> bytes =
        test::world().broadcast_bytes(test::world().is_root() ? file.serialize() : std::vector<std::byte>{});
    Trial again(test::world(), options, {memory, folder.path()});
    again.exchange().load(TensorFile::parse(bytes, "test"), "x");
    for (std::uint64_t n = 4; n < 8; ++n) REQUIRE((again.update(n) == expected[n]));
    test::world().barrier();
    CHECK(std::filesystem::is_empty(folder.path()));
    if (memory != 1) continue;  // which is too little on every rank
    CHECK(has(message_of(ErrorKind::usage, [&] { Trial(test::world(), options, {memory, {}}); }), "`residual_memory`: "));
  }
}

TEST_CASE("a sum of what workers kept is one worker's after a restart, and nothing of it is lost", "[exchange]") {
  ExchangeOptions options;
  options.threshold = 2;
  options.error_feedback = ErrorFeedback::sum;
  Trial trial(test::world(), options);
  for (std::uint64_t n = 0; n < 5; ++n) trial.update(n);
  TensorFile file;
  trial.exchange().save(file, "x");
  const TensorFile shared = TensorFile::parse(
      test::world().broadcast_bytes(test::world().is_root() ? file.serialize() : std::vector<std::byte>{}), "test");
  CHECK(shared.contains("x.residual.0"));
  CHECK(!shared.contains("x.residual.1"));
  Trial again(test::world(), options);
  again.exchange().load(shared, "x");
  TensorFile second;
  again.exchange().save(second, "x");
  if (test::world().is_root()) {
    const auto before = shared.get("x.residual.0").as<std::uint8_t>();
    const auto after = second.get("x.residual.0").as<std::uint8_t>();
    CHECK(std::vector(before.begin(), before.end()) == std::vector(after.begin(), after.end()));
    CHECK(before.size() > narrow_size / 2);
  }
}

// It was cut to the 30 bits of one worker, without a word.
TEST_CASE("a sum of what workers kept that is too large for one worker is kept by several after a restart", "[exchange]") {
  Comm& comm = test::world();
  ExchangeOptions options;
  options.threshold = 2;
  options.error_feedback = ErrorFeedback::sum;
  constexpr std::size_t size = 3;
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto rank = static_cast<std::size_t>(comm.rank());
  const std::size_t first = rank * workers / ranks, last = (rank + 1) * workers / ranks;
  const auto make = [&] { return SparseExchange(comm, options, workers, first, last - first, {{size, true}}, {}); };
  constexpr std::int32_t large = largest_kept<std::int32_t> - 5;
  SparseExchange exchange = make();
  exchange.begin(0, false);
  for (std::size_t w = first; w < last; ++w) {
    exchange.begin_worker(w);
    exchange.add(0, std::vector<std::int32_t>{large, -large, 1});
    exchange.end_worker();
  }
  if (std::optional<Bundle> merged = exchange.gather()) exchange.spread(*std::move(merged));
  exchange.next_reply(0);
  const auto saved = [&](SparseExchange& of) {
    TensorFile file;
    of.save(file, "x");
    return TensorFile::parse(comm.broadcast_bytes(comm.is_root() ? file.serialize() : std::vector<std::byte>{}), "test");
  };
  const auto kept = [](const TensorFile& file) {
    const auto numbers = file.get("x.residual.0").as<std::uint8_t>();
    return dense(decode_bundle(std::as_bytes(numbers)).vectors[0]);
  };
  const TensorFile file = saved(exchange);
  const std::vector<std::int64_t> expected = {std::int64_t{workers} * large, -std::int64_t{workers} * large, workers};
  CHECK(kept(file) == expected);
  SparseExchange again = make();
  again.load(file, "x");
  CHECK(kept(saved(again)) == expected);
  // Fewer workers cannot keep it.
  Comm alone;
  SparseExchange few(alone, options, workers - 1, 0, workers - 1, {{size, true}}, {});
  CHECK(has(message_of(ErrorKind::data, [&] { few.load(file, "x"); }), "x.residual.0: values that 7 workers kept"));
}
