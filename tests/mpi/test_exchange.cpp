// The exchange of logical workers does not depend on the ranks that carry them, and nothing is lost on the way.
#include <algorithm>
#include <chrono>
#include <cmath>
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

TEST_CASE("ranks do not change what workers exchange", "[exchange]") {
  for (const ExchangeOptions& options : option_cases()) {
    CAPTURE(options.threshold, options.bytes_per_update);
    Comm alone;
    Trial single(alone, options);
    Trial shared(test::world(), options);
    for (std::uint64_t n = 0; n < 12; ++n) {
      const Bundle expected = single.update(n);
      REQUIRE((shared.update(n) == expected));
      if (test::world().is_root()) REQUIRE((shared.merged() == single.merged()));
      CHECK(single.exchange().totals(expected, 2)[0] == 21);
      CHECK(single.exchange().totals(expected, 2)[1] == 7);
    }
    const ExchangeCounts one = single.exchange().take_counts();
    const ExchangeCounts all = shared.exchange().take_counts();
    CHECK(one.updates == 12);
    CHECK(all.updates == 12);
    if (test::world().is_root()) {
      CHECK(all.worker_bytes == one.worker_bytes);
      CHECK(all.reply_bytes == one.reply_bytes);
    }
    CHECK(one.tree.sent_up == 0);
    // Every rank but the root sends up, and every rank but the root is sent to.
    std::vector<std::int64_t> sent = {static_cast<std::int64_t>(all.tree.sent_up),
                                      static_cast<std::int64_t>(all.tree.sent_down)};
    CHECK((all.tree.sent_up > 0) == !test::world().is_root());
    test::world().sum(std::span(sent));
    CHECK(sent[1] == static_cast<std::int64_t>(one.reply_bytes) * (test::world().size() - 1));
  }
}

TEST_CASE("replies may be late by some updates, on all ranks alike and after a restart", "[exchange]") {
  constexpr std::uint64_t updates = 12;
  constexpr std::uint64_t saved_after = 7;
  for (ExchangeOptions options : option_cases()) {
    for (const std::size_t staleness : {1U, 3U}) {
      CAPTURE(options.threshold, options.bytes_per_update, staleness);
      options.staleness = staleness;
      std::vector<Bundle> expected;
      TensorFile file;
      // Updates from .. to, and the replies that are due; to the last of them also what is left.
      const auto run = [&](Trial& trial, std::uint64_t from, std::uint64_t to, auto&& with_reply) {
        for (std::uint64_t n = from; n < to; ++n) {
          trial.compute(n);
          trial.send();
          if (n >= staleness) with_reply(trial.exchange().next_reply(n - staleness));
          if (n + 1 == saved_after) trial.exchange().save(file, "x");
        }
        for (std::uint64_t n = to - staleness; n < to; ++n) with_reply(trial.exchange().next_reply(n));
        trial.exchange().close();
      };
      const auto compare = [&](const Bundle& reply) { REQUIRE((reply == expected.at(reply.update))); };
      Comm alone;
      Trial single(alone, options);
      run(single, 0, updates, [&](Bundle reply) { expected.push_back(std::move(reply)); });
      REQUIRE(expected.size() == updates);
      Trial shared(test::world(), options);
      run(shared, 0, updates, compare);
      const std::vector<std::byte> bytes =
          test::world().broadcast_bytes(test::world().is_root() ? file.serialize() : std::vector<std::byte>{});
      Trial again(test::world(), options);
      again.exchange().load(TensorFile::parse(bytes, "test"), "x");
      run(again, saved_after, updates, compare);
    }
  }
}

TEST_CASE("with a quorum an update does not wait for a rank that is late, and folds in what it sends", "[exchange]") {
  Comm& comm = test::world();
  for (const Late late : {Late::fold, Late::drop}) {
    ExchangeOptions options;
    options.tree.quorum = 0.1;
    options.tree.deadline_seconds = 0.2;
    options.tree.late = late;
    Trial trial(comm, options);
    const bool is_late = comm.size() > 1 && comm.rank() == comm.size() - 1;
    std::vector<std::int64_t> sum(narrow_size + statistics_size);
    std::vector<std::int64_t> computed(narrow_size + statistics_size);
    std::uint64_t in_time = 0;
    std::uint64_t missed = 0;
    std::uint64_t n = 0;
    // The last rank computes until several updates are over without it. In the end nobody is late, and what was is there.
    constexpr std::uint64_t last_missed = 2;
    for (bool done = false; !done; ++n) {
      REQUIRE(n < 1000);
      if (n >= 6) comm.barrier();
      if (trial.exchange().is_late(n)) {
        trial.exchange().pass(n);
        ++missed;
      } else {
        trial.compute(n);
        trial.note_computed(n, computed);
        while (is_late && n == 0 && !trial.exchange().is_late(last_missed))
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        trial.send();
      }
      const Bundle reply = trial.exchange().next_reply(n);
      add_to(std::span(sum).first(narrow_size), reply.vectors[0]);
      if (reply.vectors[2].size != 0) add_to(std::span(sum).last(statistics_size), reply.vectors[2]);
      in_time += reply.workers;
      done = n >= 6 && has_statistics(n) && reply.workers == workers;
    }
    trial.exchange().close();
    const ExchangeCounts counts = trial.exchange().take_counts();
    CHECK(counts.tree.missed >= missed);
    // All ranks have the same replies.
    std::vector<std::int64_t> roots = sum;
    comm.broadcast(std::span(roots));
    CHECK(roots == sum);
    comm.sum(std::span(computed));
    CHECK((sum == computed) == (late == Late::fold || comm.size() == 1));
    if (comm.size() == 1) {
      CHECK(in_time == n * workers);
      continue;
    }
    if (is_late) CHECK(counts.tree.missed > 0);
    CHECK(in_time < n * workers);
  }
}

TEST_CASE("without a threshold everything arrives in the update it belongs to", "[exchange]") {
  Trial trial(test::world(), {});
  for (std::uint64_t n = 0; n < 3; ++n) {
    const Bundle reply = trial.update(n);
    std::vector<std::int64_t> narrow(narrow_size);
    std::vector<std::int64_t> statistics(statistics_size);
    for (std::size_t w = 0; w < workers; ++w) {
      const auto a = drawn(n, w, 0, narrow_size, 100);
      const auto s = drawn(n, w, 2, statistics_size, 50);
      for (std::size_t i = 0; i < narrow_size; ++i) narrow[i] += a[i];
      for (std::size_t i = 0; i < statistics_size; ++i) statistics[i] += s[i];
    }
    CHECK(dense(reply.vectors[0]) == narrow);
    if (n % 3 == 0) {
      CHECK(dense(reply.vectors[2]) == statistics);
    } else {
      CHECK(reply.vectors[2].size == 0);
    }
  }
}

TEST_CASE("what is not sent is sent later: sums over updates stay near the truth", "[exchange]") {
  // The same gradients in every update: their sum grows with the updates, what is kept does not.
  Comm alone;
  // A low threshold must not cut what is far above it: the rest would grow with every update.
  ExchangeOptions options;
  for (const auto& [threshold, keeps] : {std::pair{3.0, true}, std::pair{3.0, false}, std::pair{0.1, true}}) {
    options.threshold = threshold;
    options.error_feedback = keeps ? ErrorFeedback::exact : ErrorFeedback::none;
    SparseExchange exchange(alone, options, 2, 0, 2, {{1000, true}}, {});
    const std::vector<std::int64_t> gradient = drawn(1, 1, 1, 1000, 100);
    const std::vector<std::int32_t> fresh(gradient.begin(), gradient.end());
    std::vector<std::int64_t> sum(1000);
    constexpr std::int64_t updates = 200;
    for (std::uint64_t n = 0; n < updates; ++n) {
      exchange.begin(n, n < 2);
      for (std::size_t w = 0; w < 2; ++w) {
        exchange.begin_worker(w);
        exchange.add(0, fresh);
        exchange.end_worker();
      }
      Bundle merged = *exchange.gather();
      merged.vectors[0] = exchange.limit(0, merged.vectors[0]);
      exchange.spread(std::move(merged));
      add_to(sum, exchange.next_reply(n).vectors[0]);
    }
    double worst = 0;
    double largest = 0;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      worst = std::max(worst, std::abs(static_cast<double>(sum[i] - 2 * updates * fresh[i])));
      largest = std::max(largest, std::abs(2.0 * updates * fresh[i]));
    }
    CAPTURE(threshold, keeps, worst, largest);
    CHECK((worst < 0.1 * largest) == keeps);
  }
}

TEST_CASE("statistics are the sums since they were last sent, if what is not sent is kept", "[exchange]") {
  for (const ErrorFeedback kind : {ErrorFeedback::exact, ErrorFeedback::sum, ErrorFeedback::none}) {
    ExchangeOptions options;
    options.threshold = 2;
    options.error_feedback = kind;
    Trial trial(test::world(), options);
    std::vector<std::int64_t> expected(statistics_size);
    for (std::uint64_t n = 0; n < 7; ++n) {
      if (kind == ErrorFeedback::none) std::fill(expected.begin(), expected.end(), 0);
      for (std::size_t w = 0; w < workers; ++w) {
        const auto s = drawn(n, w, 2, statistics_size, 50);
        for (std::size_t i = 0; i < statistics_size; ++i) expected[i] += s[i];
      }
      const Bundle reply = trial.update(n);
      if (n % 3 == 0) {
        CHECK(dense(reply.vectors[2]) == expected);
        std::fill(expected.begin(), expected.end(), 0);
      } else {
        CHECK(reply.vectors[2].size == 0);
      }
    }
  }
}

TEST_CASE("thresholds find the bytes that are asked for, in both directions", "[exchange]") {
  constexpr double compression = 60;
  constexpr double dense_bytes = 4 * (narrow_size + wide_size);
  ExchangeOptions number;
  number.bytes_per_update = 300;
  ExchangeOptions ratio;
  ratio.compression = compression;
  for (const auto& [options, wanted] : {std::pair{number, 300.0}, std::pair{ratio, dense_bytes / compression}}) {
    CAPTURE(wanted);
    Trial trial(test::world(), options);
    for (std::uint64_t n = 0; n < 300; ++n) trial.update(n);
    trial.exchange().take_counts();
    constexpr std::uint64_t measured = 150;
    for (std::uint64_t n = 300; n < 300 + measured; ++n) trial.update(n);
    const ExchangeCounts counts = trial.exchange().take_counts();
    if (!test::world().is_root()) {
      CHECK(counts.worker_bytes == 0);
      continue;
    }
    CHECK(static_cast<double>(counts.worker_bytes) / measured / workers == Approx(wanted).epsilon(0.05));
    CHECK(static_cast<double>(counts.reply_bytes) / measured == Approx(wanted).epsilon(0.05));
    CHECK(counts.wanted_bytes == Approx(wanted * measured));
  }
}

TEST_CASE("of a ratio messages may be longer and shorter than the mean", "[exchange]") {
  ExchangeOptions options;
  options.compression = 20;
  constexpr double mean = 4 * (narrow_size + wide_size) / 20.0;
  constexpr std::uint64_t updates = 150;
  Trial trial(test::world(), options);
  std::uint64_t n = 0;
  for (const double length : {1.7, 0.6}) {
    trial.length = length;
    for (std::uint64_t i = 0; i < 300; ++i) trial.update(n++);
    trial.exchange().take_counts();
    for (std::uint64_t i = 0; i < updates; ++i) trial.update(n++);
    const ExchangeCounts counts = trial.exchange().take_counts();
    CAPTURE(length);
    if (!test::world().is_root()) continue;
    CHECK(counts.wanted_bytes == Approx(length * mean * updates));
    CHECK(static_cast<double>(counts.worker_bytes) / updates / workers == Approx(length * mean).epsilon(0.08));
    CHECK(static_cast<double>(counts.reply_bytes) / updates == Approx(length * mean).epsilon(0.08));
  }
  // A number of bytes is one for every update.
  options.compression = 0;
  options.bytes_per_update = 300;
  Trial number(test::world(), options);
  number.length = 1.7;
  number.update(0);
  if (test::world().is_root()) CHECK(number.exchange().take_counts().wanted_bytes == 300);
}

TEST_CASE("messages that are far too long since gradients have grown are shortened within a few updates", "[exchange]") {
  constexpr std::size_t size = 20000;
  constexpr double wanted = 500;
  ExchangeOptions options;
  options.bytes_per_update = static_cast<std::uint64_t>(wanted);
  for (const ErrorFeedback kind : {ErrorFeedback::exact, ErrorFeedback::none}) {
    options.error_feedback = kind;
    Comm alone;
    SparseExchange exchange(alone, options, 1, 0, 1, {{size, true, 1}}, {});
    // Root mean squares are seen in the first updates; then gradients are three times as large.
    constexpr std::uint64_t calm = 60;
    std::vector<std::uint64_t> after;
    for (std::uint64_t n = 0; n < calm + 40; ++n) {
      exchange.begin(n, n < 4);
      exchange.begin_worker(0);
      const std::vector<std::int64_t> a = drawn(n, 0, 0, size, n < calm ? 100 : 300);
      exchange.add(0, std::vector<std::int32_t>(a.begin(), a.end()));
      exchange.end_worker();
      Bundle merged = *exchange.gather();
      merged.vectors[0] = exchange.limit(0, merged.vectors[0]);
      exchange.spread(std::move(merged));
      exchange.next_reply(n);
      const std::uint64_t bytes = exchange.take_counts().worker_bytes;
      if (n >= calm) after.push_back(bytes);
    }
    CAPTURE(options.keeps(), after);
    CHECK(static_cast<double>(after.front()) > 4 * wanted);
    CHECK(static_cast<double>(*std::max_element(after.begin() + 12, after.end())) < 2 * wanted);
  }
}

TEST_CASE("what messages had too many at the start is saved in those that follow", "[exchange]") {
  constexpr std::uint64_t updates = 1500;
  constexpr std::uint64_t loud = 2;  // whose replies have all elements, whatever the thresholds are
  constexpr std::size_t size = 4000;
  constexpr double wanted = 250;
  ExchangeOptions options;
  options.bytes_per_update = static_cast<std::uint64_t>(wanted);
  Comm alone;
  SparseExchange exchange(alone, options, 1, 0, 1, {{size, true, 1}}, {});
  std::uint64_t first_down = 0;
  for (std::uint64_t n = 0; n < updates; ++n) {
    const std::vector<std::int64_t> fresh = drawn(n, 0, 0, size, 100);
    exchange.begin(n, n % 8 == 0);
    exchange.begin_worker(0);
    exchange.add(0, std::vector<std::int32_t>(fresh.begin(), fresh.end()));
    exchange.end_worker();
    std::optional<Bundle> merged = exchange.gather();
    REQUIRE(merged);
    SparseVector reply = exchange.limit(0, merged->vectors[0]);
    if (n < loud) reply = to_sparse(std::vector<std::int64_t>(fresh.begin(), fresh.end()));
    merged->vectors[0] = std::move(reply);
    exchange.spread(*std::move(merged));
    exchange.next_reply(n);
    if (n + 1 == loud) first_down = exchange.take_counts().reply_bytes;
  }
  const std::uint64_t down = first_down + exchange.take_counts().reply_bytes;
  exchange.close();
  CHECK(static_cast<double>(first_down) > 15 * loud * wanted);
  CHECK(static_cast<double>(down) <= updates * wanted);
  CHECK(static_cast<double>(down) > 0.97 * updates * wanted);
}

// Heads of some kinds have no hidden units: vectors without elements, which never got a threshold, made thresholds begin anew
// with all statistics.
TEST_CASE("vectors without elements and without gradients leave messages their length", "[exchange]") {
  constexpr std::uint64_t updates = 400;
  constexpr std::size_t size = 4000;
  constexpr double wanted = 300;
  ExchangeOptions options;
  options.bytes_per_update = static_cast<std::uint64_t>(wanted);
  Comm alone;
  SparseExchange exchange(alone, options, 1, 0, 1, {{size, true, 1}, {0, true, 1}, {50, true, 1}}, {});
  // Ever the same, so that what waits grows beyond any first threshold.
  const std::vector<std::int64_t> drawn_once = drawn(0, 0, 0, size, 100);
  const std::vector<std::int32_t> fresh(drawn_once.begin(), drawn_once.end());
  const std::vector<std::int32_t> zeros(50);
  for (std::uint64_t n = 0; n < updates; ++n) {
    exchange.begin(n, n % 8 == 0);
    exchange.begin_worker(0);
    exchange.add(0, fresh);
    exchange.add(1, std::span<const std::int32_t>{});
    exchange.add(2, zeros);
    exchange.end_worker();
    Bundle merged = *exchange.gather();
    for (std::size_t v = 0; v < 3; ++v) merged.vectors[v] = exchange.limit(v, merged.vectors[v]);
    exchange.spread(std::move(merged));
    exchange.next_reply(n);
    if (n + 1 == updates / 2) exchange.take_counts();
  }
  const auto late_bytes = static_cast<double>(exchange.take_counts().worker_bytes);
  CHECK(late_bytes == Approx(wanted * updates / 2).epsilon(0.08));
  exchange.close();
}

TEST_CASE("what is urgent waits less", "[exchange]") {
  ExchangeOptions options;
  options.threshold = 4;
  constexpr std::size_t size = 2000;
  constexpr double rms = 100;
  Comm alone;
  SparseExchange exchange(alone, options, 1, 0, 1, {{size, true, 1}, {size, true, 4}}, {});
  std::vector<std::int64_t> waiting[2] = {std::vector<std::int64_t>(size), std::vector<std::int64_t>(size)};
  for (std::uint64_t n = 0; n < 40; ++n) {
    const std::vector<std::int64_t> fresh = drawn(n, 0, 0, size, rms);
    exchange.begin(n, true);
    exchange.begin_worker(0);
    for (std::size_t v = 0; v < 2; ++v) exchange.add(v, std::vector<std::int32_t>(fresh.begin(), fresh.end()));
    exchange.end_worker();
    std::optional<Bundle> merged = exchange.gather();
    REQUIRE(merged);
    for (std::size_t v = 0; v < 2; ++v) {
      const std::vector<std::int64_t> sent = dense(merged->vectors[v]);
      for (std::size_t i = 0; i < size; ++i) waiting[v][i] += fresh[i] - sent[i];
    }
    exchange.spread(*std::move(merged));
    exchange.next_reply(n);
  }
  const auto largest = [](const std::vector<std::int64_t>& values) {
    return static_cast<double>(std::abs(*std::max_element(
        values.begin(), values.end(), [](std::int64_t a, std::int64_t b) { return std::abs(a) < std::abs(b); })));
  };
  CHECK(largest(waiting[0]) > 3.5 * rms);
  CHECK(largest(waiting[0]) < 4.2 * rms);
  CHECK(largest(waiting[1]) > 0.8 * rms);
  CHECK(largest(waiting[1]) < 1.1 * rms);
}

TEST_CASE("messages have the bytes that are asked for from the first on that hold gradients", "[exchange]") {
  for (const std::uint64_t wanted : {250U, 600U, 1500U}) {
    CAPTURE(wanted);
    ExchangeOptions options;
    options.bytes_per_update = wanted;
    options.error_feedback = ErrorFeedback::none;
    Comm alone;
    Trial trial(alone, options);
    trial.update(0);  // shows how large gradients are
    trial.exchange().take_counts();
    trial.update(1);
    const auto bytes = static_cast<double>(trial.exchange().take_counts().worker_bytes) / workers;
    CHECK(bytes > 0.7 * static_cast<double>(wanted));
    CHECK(bytes < 1.3 * static_cast<double>(wanted));
  }
}

// Peers are trusted, but what they send is not taken for memory or places that are not there.
TEST_CASE("a bundle that cannot be is an error of whoever gets it", "[exchange]") {
  Comm& comm = test::world();
  if (comm.size() == 1) {
    CHECK(comm.is_root());
    return;
  }
  const auto error_of = [&](auto&& change) {
    Trial trial(comm, {});
    std::string message;
    if (comm.rank() == 1) {
      Bundle bundle;
      bundle.workers = 1;
      bundle.totals = {1, 1};
      bundle.vectors.resize(3);
      change(bundle);
      comm.send(0, encode(bundle));
    }
    if (comm.is_root()) {
      // Whenever it arrives.
      message = message_of(ErrorKind::data, [&] {
        trial.compute(0);
        trial.send();
      });
    }
    comm.wait_until([&] { return comm.sends_finished(); }, "test");
    comm.barrier();
    return comm.broadcast_text(message);
  };
  CHECK(error_of([](Bundle& bundle) { bundle.workers = ~std::uint64_t{0}; }) ==
        "exchange: rank 1 sends 18446744073709551615 workers; expected at most 7");
  // The root computes nothing here that has this vector, so that only its size tells.
  const auto own = (static_cast<std::size_t>(comm.rank()) + 1) * workers / static_cast<std::size_t>(comm.size()) -
                   static_cast<std::size_t>(comm.rank()) * workers / static_cast<std::size_t>(comm.size());
  std::vector<std::int64_t> carried = {static_cast<std::int64_t>(comm.is_root() ? own : 0)};
  comm.sum(std::span(carried));
  SparseExchange exchange(comm, {}, workers,
                          static_cast<std::size_t>(comm.rank()) * workers / static_cast<std::size_t>(comm.size()), own,
                          {{narrow_size, true}}, {});
  std::string message;
  if (comm.rank() == 1) {
    Bundle bundle;
    bundle.workers = workers - static_cast<std::uint64_t>(carried[0]);
    bundle.vectors = {SparseVector{std::uint64_t{1} << 32U, {0}, {1}}};
    comm.send(0, encode(bundle));
  }
  if (comm.is_root()) {
    exchange.begin(0, false);
    for (std::size_t w = 0; w < own; ++w) {
      exchange.begin_worker(w);
      exchange.end_worker();
    }
    message = message_of(ErrorKind::data, [&] { exchange.gather(); });
  }
  comm.wait_until([&] { return comm.sends_finished(); }, "test");
  comm.barrier();
  CHECK(comm.broadcast_text(message) == "exchange: vector 0 of update 0 has 4294967296 elements; expected 5000");
}

TEST_CASE("options that cannot be are refused", "[exchange]") {
  ExchangeOptions options;
  options.threshold = -1;
  CHECK(message_of(ErrorKind::usage, [&] { check(options); }) == "`threshold`: -1; expected 0 to 10000 root mean squares");
  options.threshold = std::nan("");
  CHECK(message_of(ErrorKind::usage, [&] { check(options); }).starts_with("`threshold`: nan"));
  options = {};
  options.bytes_per_update = 10;
  CHECK(message_of(ErrorKind::usage, [&] { check(options); }) ==
        "`bytes_per_update`: 10 bytes; expected 0 (no limit) or at least 64");
  options.compression = 10;
  options.bytes_per_update = 100;
  CHECK(message_of(ErrorKind::usage, [&] { check(options); }) == "`compression` and `bytes_per_update` exclude each other");
  options = {};
  for (const double last : {-0.1, 1.1, std::nan("")}) {
    options.last_messages = last;
    CHECK(has(message_of(ErrorKind::usage, [&] { check(options); }), "`last_messages`"));
  }
  options = {};
  for (const double compression : {-1.0, 0.5, 1e7, std::nan("")}) {
    options.compression = compression;
    CHECK(has(message_of(ErrorKind::usage, [&] { check(options); }), "expected 0 (no limit) or 1 to 1e+06 times fewer bytes"));
  }
  options = {};
  options.staleness = 100;
  CHECK(message_of(ErrorKind::usage, [&] { check(options); }) == "`staleness`: 100 updates; expected 0 to 64");
  options = {};
  options.tree.quorum = 0;
  CHECK(message_of(ErrorKind::usage, [&] { check(options); }) == "`quorum`: 0; expected a share of the workers, above 0 to 1");
  options = {};
  options.tree.deadline_seconds = -1;
  CHECK(message_of(ErrorKind::usage, [&] { check(options); }) == "`deadline`: -1 seconds; expected 0 or more");
  options = {};
  options.tree.fan_in = 0;
  CHECK(message_of(ErrorKind::usage, [&] { check(options); }) == "`fan_in`: 0; expected at least 1");
  options = {};
  options.value_bits = 3;
  CHECK(message_of(ErrorKind::usage, [&] { check(options); }).starts_with("value bits: 3"));
}
