// Orders of passes in a pipeline: complete, without waits for ever, in ascending order, and with the bubbles and micro-batches
// in flight of their papers.
#include "train/parallel/schedule.h"

#include <algorithm>
#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::train;
using bitloom::test::has;
using bitloom::test::message_of;

namespace {

std::vector<PassCosts> equal_costs(const PipelineShape& shape, double forward, double backward) {
  return std::vector<PassCosts>(shape.parts(), PassCosts{forward, backward});
}

// Stages of a schedule as text: "F0 F1 B0 B1", chunks by letters behind the number.
std::string to_text(const std::vector<Action>& actions, bool with_chunks) {
  std::string text;
  for (const Action& action : actions) {
    text += text.empty() ? "" : " ";
    text += (action.work == Work::forward ? "F" : "B") + std::to_string(action.micro_batch);
    if (with_chunks) text += static_cast<char>('a' + action.chunk);
  }
  return text;
}

}  // namespace

TEST_CASE("schedules are what their papers draw", "[schedule]") {
  const Schedule gpipe = make_schedule("gpipe", {3, 4});
  for (const auto& actions : gpipe) CHECK(to_text(actions, false) == "F0 F1 F2 F3 B0 B1 B2 B3");
  const Schedule one = make_schedule("1f1b", {3, 4});
  CHECK(to_text(one[0], false) == "F0 F1 F2 B0 F3 B1 B2 B3");
  CHECK(to_text(one[1], false) == "F0 F1 B0 F2 B1 F3 B2 B3");
  CHECK(to_text(one[2], false) == "F0 B0 F1 B1 F2 B2 F3 B3");
  // Narayanan et al. 2021, figure 4: four chunks' worth of forward passes before the first stage's first backward pass.
  const Schedule two = make_schedule("interleaved", {2, 4, 2});
  CHECK(to_text(two[0], true) == "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a");
  CHECK(to_text(two[1], true) == "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a");
}

TEST_CASE("gpipe and 1f1b have the bubble of Huang et al. 2019", "[schedule]") {
  for (std::size_t stages = 1; stages <= 8; ++stages) {
    for (std::size_t micro_batches = 1; micro_batches <= 16; ++micro_batches) {
      const PipelineShape shape{stages, micro_batches};
      const double k = static_cast<double>(stages), m = static_cast<double>(micro_batches);
      for (const char* name : {"gpipe", "1f1b"}) {
        const Schedule schedule = make_schedule(name, shape);
        for (const double backward : {0.5, 1.0, 2.0}) {
          const Simulation run = simulate(schedule, shape, equal_costs(shape, 1, backward));
          CAPTURE(stages, micro_batches, name, backward);
          CHECK(run.seconds == Approx((m + k - 1) * (1 + backward)));
          CHECK(std::abs(run.bubble - (k - 1) / (m + k - 1)) < 1e-12);
          for (std::size_t s = 0; s < stages; ++s) {
            const bool all = std::string(name) == "gpipe";
            CHECK(run.in_flight[s] == (all ? micro_batches : std::min(micro_batches, stages - s)));
          }
        }
      }
    }
  }
}

TEST_CASE("interleaving divides the bubble by the chunks", "[schedule]") {
  for (std::size_t stages = 1; stages <= 8; ++stages) {
    for (std::size_t rounds = 1; rounds <= 4; ++rounds) {
      for (std::size_t chunks = 2; chunks <= 4; ++chunks) {
        const PipelineShape shape{stages, rounds * stages, chunks};
        const Schedule schedule = make_schedule("interleaved", shape);
        const Simulation run = simulate(schedule, shape, equal_costs(shape, 1, 2));
        const double k = static_cast<double>(stages), passes = static_cast<double>(shape.micro_batches * chunks);
        CAPTURE(stages, rounds, chunks);
        CHECK(std::abs(run.bubble - (k - 1) / (passes + k - 1)) < 1e-12);
      }
    }
  }
  // One stage has every chunk of a micro-batch in flight, and no bubble.
  const PipelineShape alone{1, 3, 2};
  const Simulation run = simulate(make_schedule("interleaved", alone), alone, equal_costs(alone, 1, 1));
  CHECK(run.bubble == 0);
  CHECK(run.in_flight[0] == 2);
}

TEST_CASE("forward passes alone take any shape", "[schedule]") {
  for (std::size_t stages = 1; stages <= 5; ++stages) {
    for (std::size_t micro_batches = 0; micro_batches <= 9; ++micro_batches) {
      for (std::size_t chunks = 1; chunks <= 3; ++chunks) {
        const PipelineShape shape{stages, micro_batches, chunks};
        CAPTURE(stages, micro_batches, chunks);
        CHECK_NOTHROW(check(forward_schedule(shape), shape, true));
      }
    }
  }
}

TEST_CASE("a simulation counts messages and unequal stages", "[schedule]") {
  const PipelineShape shape{2, 2};
  const Schedule schedule = make_schedule("gpipe", shape);
  const std::vector<PassCosts> costs{{1, 2}, {10, 20}};
  // Stage 1: forward from 1.5 to 21.5, backward to 61.5; stage 0 has the gradient at 62 and takes 2.
  const Simulation run = simulate(schedule, shape, costs, 0.5);
  CHECK(run.seconds == Approx(64));
  CHECK(run.bubble == Approx(1 - 66.0 / 128));
  const std::vector<Event>& first = run.events[0];
  REQUIRE(first.size() == 4);
  CHECK((first[2].kind == EventKind::backward && first[2].begin == Approx(42) && first[2].end == Approx(44)));
}

TEST_CASE("an action's result is for the neighbouring part, and ends at the loss and at the first layer", "[schedule]") {
  const PipelineShape shape{3, 1, 2};
  const auto next = [&](std::size_t stage, Action action) { return next_action(shape, {stage, action}); };
  CHECK(next(0, {Work::forward, 4, 0})->stage == 1);
  CHECK(next(2, {Work::forward, 4, 0})->stage == 0);
  CHECK(next(2, {Work::forward, 4, 0})->action == Action{Work::forward, 4, 1});
  CHECK(!next(2, {Work::forward, 4, 1}));
  CHECK(next(0, {Work::backward, 4, 1})->stage == 2);
  CHECK(next(0, {Work::backward, 4, 1})->action == Action{Work::backward, 4, 0});
  CHECK(!next(0, {Work::backward, 4, 0}));
}

TEST_CASE("a schedule that is wrong is found", "[schedule]") {
  const PipelineShape shape{2, 2};
  const Schedule good = make_schedule("1f1b", shape);
  CHECK_NOTHROW(check(good, shape));
  const auto problem = [&](const Schedule& schedule) {
    return message_of(ErrorKind::internal, [&] { check(schedule, shape); });
  };
  Schedule bad = good;
  bad.pop_back();
  CHECK(has(problem(bad), "1 stages; expected 2"));
  bad = good;
  bad[1].pop_back();
  CHECK(has(problem(bad), "stage 1 passes 1 of 2 micro-batches"));
  bad = make_schedule("gpipe", shape);
  std::swap(bad[0][2], bad[0][3]);  // sums of gradients would be others
  CHECK(has(problem(bad), "stage 0 passes micro-batch 1 backward through chunk 0 out of turn"));
  bad = make_schedule("gpipe", shape);
  std::swap(bad[0][0], bad[0][1]);
  CHECK(has(problem(bad), "stage 0 passes micro-batch 1 forward through chunk 0 out of turn"));
  bad = good;
  bad[1].push_back({Work::backward, 2, 0});
  CHECK(has(problem(bad), "stage 1 passes 3 of 2 micro-batches"));
  bad = good;
  bad[0][0].chunk = 1;
  CHECK(has(problem(bad), "chunk 1 out of turn"));
  // Stage 0 wants its first gradient before it has let stage 1 have the second micro-batch, for which stage 1 waits.
  bad = good;
  bad[0] = {{Work::forward, 0, 0}, {Work::backward, 0, 0}, {Work::forward, 1, 0}, {Work::backward, 1, 0}};
  bad[1] = {{Work::forward, 0, 0}, {Work::forward, 1, 0}, {Work::backward, 0, 0}, {Work::backward, 1, 0}};
  CHECK(has(problem(bad), "stage 0 waits for ever to pass micro-batch 0 backward through chunk 0"));
  // Backward before forward.
  bad = good;
  std::rotate(bad[1].begin(), bad[1].begin() + 1, bad[1].begin() + 2);
  CHECK(has(problem(bad), "stage 0 waits for ever"));
}

TEST_CASE("schedules that there are not are refused", "[schedule]") {
  const auto refused = [](const char* name, const PipelineShape& shape) {
    return message_of(ErrorKind::usage, [&] { make_schedule(name, shape); });
  };
  CHECK(refused("gpip", {2, 2}) == "`pipeline_schedule`: 'gpip'; did you mean 'gpipe'?");
  CHECK(has(refused("gpipe", {2, 0}), "`pipeline_schedule`: 2 stages, 0 micro-batches and 1 chunks"));
  CHECK(has(refused("1f1b", {2, 4, 2}), "`pipeline_schedule`: 1f1b, with 2 parts of the net for each stage; expected 1"));
  CHECK(has(refused("interleaved", {2, 4, 1}),
            "`pipeline_schedule`: interleaved, with 1 parts of the net for each stage; expected at least 2"));
  CHECK(has(refused("interleaved", {4, 6, 2}),
            "`pipeline_schedule`: interleaved, with 6 micro-batches in 4 stages; expected a multiple of the stages"));
  for (const NamedSchedule& each : named_schedules()) CHECK(find_schedule(each.name).make == each.make);
}
