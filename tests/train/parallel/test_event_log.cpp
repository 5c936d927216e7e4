// The log of a step: which steps it has, what becomes of its events, and the bubble.
#include "train/parallel/event_log.h"

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::train;

TEST_CASE("the bubble is the share of time without passes", "[event_log]") {
  CHECK(bubble_of({}) == 0);
  CHECK(bubble_of({{}, {}}) == 0);
  CHECK(bubble_of({{{EventKind::receive, 0, 0, 0, 5}}}) == 0);  // no pass at all
  // From 1 to 5, two processes: 8 s, of which 2 + 1 + 3 are passes. What comes before the first pass is no bubble.
  const Events events{
      {{EventKind::receive, 0, 0, 0, 1}, {EventKind::forward, 0, 0, 1, 3}, {EventKind::send, 0, 0, 3, 4}},
      {{EventKind::recompute, 0, 0, 1, 2}, {EventKind::backward, 0, 0, 2, 5}, {EventKind::optimizer, 0, 0, 5, 9}}};
  CHECK(bubble_of(events) == Approx(0.25));
}

TEST_CASE("a log has the first steps and every n-th", "[event_log]") {
  mpi::Comm alone;
  EventLog log({2, 5, 10});
  std::vector<std::uint64_t> logged;
  for (std::uint64_t step = 0; step < 12; ++step) {
    const bool is_on = log.begin_step(step, alone);
    CHECK(is_on == log.is_on());
    { const EventSpan span(&log, EventKind::forward, 3, 1); }
    CHECK(log.events().size() == (is_on ? 1 : 0));
    if (is_on) logged.push_back(step);
    if (!is_on) continue;
    const Events gathered = log.gather(alone).events;
    REQUIRE(gathered.size() == 1);
    REQUIRE(gathered[0].size() == 1);
    const Event& event = gathered[0][0];
    CHECK((event.kind == EventKind::forward && event.micro_batch == 3 && event.chunk == 1));
    CHECK((event.begin >= 0 && event.end >= event.begin && event.end < 60));
    CHECK(!log.is_on());
    { const EventSpan span(&log, EventKind::backward); }
    CHECK(log.events().size() == 1);  // the step has ended
  }
  CHECK(logged == std::vector<std::uint64_t>{0, 1, 5, 10});
  { const EventSpan span(nullptr, EventKind::forward); }  // no log at all
}

TEST_CASE("a log of a step is bounded", "[event_log]") {
  mpi::Comm alone;
  EventLog log({1, 0, 4});
  REQUIRE(log.begin_step(0, alone));
  for (int i = 0; i < 7; ++i) log.add({});
  CHECK(log.events().size() == 4);
  CHECK(log.left_out() == 3);
  CHECK(log.gather(alone).left_out == std::vector<std::uint64_t>{3});
  CHECK(!log.begin_step(1, alone));
  CHECK(log.events().empty());
  CHECK(log.left_out() == 0);
}

TEST_CASE("an event is logged where the work throws, too", "[event_log]") {
  mpi::Comm alone;
  EventLog log({1, 0, 4});
  REQUIRE(log.begin_step(0, alone));
  CHECK_THROWS_AS(
      [&] {
        const EventSpan span(&log, EventKind::backward);
        throw Error(ErrorKind::data, "no");
      }(),
      Error);
  CHECK(log.events().size() == 1);
}

TEST_CASE("lines of a log have what pictures need", "[event_log]") {
  const Events events{{{EventKind::forward, 7, 1, 0.0123456789, 0.5}, {EventKind::optimizer, 0, 0, 0.5, 1}}, {}};
  const std::vector<nlohmann::json> lines = to_json(12, {events, {0, 5}});
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == nlohmann::json::parse(R"({"step": 12, "rank": 0, "bubble": 0.5, "events": [
      {"kind": "forward", "micro_batch": 7, "chunk": 1, "begin": 0.012346, "end": 0.5},
      {"kind": "optimizer", "micro_batch": 0, "chunk": 0, "begin": 0.5, "end": 1.0}], "left_out": 0})"));
  CHECK(lines[1]["rank"] == 1);
  CHECK(lines[1]["events"].empty());
  CHECK(lines[1]["left_out"] == 5);
}
