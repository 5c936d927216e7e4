// Training on any number of ranks gives what one rank gives, bit for bit.
#include "tests/layerwise/small_stage.h"

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "layerwise/cache.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/mpi.h"

namespace bitloom::test {

namespace {

// Without what only some ways of exchange keep.
TensorFile only_layers(TensorFile file) {
  std::erase_if(file.tensors,
                [](const auto& tensor) { return tensor.first.starts_with("stage.") || tensor.first.starts_with("server."); });
  return file;
}

// "" if this rank holds the same weights, thresholds and heads as rank 0; else the first difference.
std::string difference_to_root(const layerwise::Stage& stage) {
  TensorFile mine;
  for (const auto& trainer : stage.trainers()) trainer->layer().save(mine);
  for (std::size_t h = 0; h < stage.heads(); ++h) stage.head(h).save(mine, fmt::format("head{}", h), false);
  const TensorFile roots = TensorFile::parse(world().broadcast_bytes(mine.serialize()), "rank 0");
  return difference(roots, mine);
}

}  // namespace

TEST_CASE("ranks do not change a stage", "[stage]") {
  for (const StageCase& c : all_stage_cases()) {
    INFO(c.name);
    SmallStage shared(c, simd::kernels(), world());
    const TensorFile result = shared.run(5);
    mpi::Comm alone;
    SmallStage single(c, simd::kernels(), alone);
    CHECK(difference(single.run(5), result) == "");
  }
}

TEST_CASE("ranks that share a file of frozen outputs give what one rank computes", "[stage]") {
  StageCase c = stage_cases()[1];
  c.stage.train = {"b"};  // on a frozen layer
  c.stage.heads = {"b"};
  c.options.augment_copies = 2;
  mpi::Comm alone;
  SmallStage single(c, simd::kernels(), alone);
  const TensorFile expected = single.run(9);  // three epochs

  std::optional<TempDir> folder;
  if (world().is_root()) folder.emplace();
  layerwise::Cache cache(world().broadcast_text(folder ? folder->path().string() : ""), std::uint64_t{1} << 30U);
  for (const bool filled : {false, true}) {
    SmallStage small(c, simd::kernels(), world());
    layerwise::StageInputs& inputs = small.stage().inputs();
    CHECK(inputs.records() == 2 * 150);
    inputs.use(cache.open_records(inputs.records_hash("data").hex(), inputs.records(), inputs.record_words()));
    REQUIRE(inputs.file() != nullptr);
    CHECK(difference(small.run(9), expected) == "");
    const layerwise::RecordCounts counts = inputs.file()->take_counts();
    std::array<std::int64_t, 2> sums{static_cast<std::int64_t>(counts.read), static_cast<std::int64_t>(counts.missing)};
    world().sum(sums);
    CHECK(counts.damaged == 0);
    CHECK(sums[0] + sums[1] == 9 * 48 + 48);
    // Two epochs of 144 images use two copies; the third one adds what those had left out.
    CHECK(sums[1] >= (filled ? 0 : 288));
    CHECK(sums[1] <= (filled ? 0 : 300));
  }
  world().barrier();  // the folder goes with its owner
}

TEST_CASE("ranks that repeat minibatches give what one rank computes", "[stage]") {
  StageCase c = stage_cases()[0];
  c.options.repeat = 3;
  c.options.counts_limit = 1;
  SmallStage shared(c, simd::kernels(), world());
  const TensorFile result = shared.run(8);
  c.options.counts_limit = -1;
  mpi::Comm alone;
  SmallStage single(c, simd::kernels(), alone);
  CHECK(difference(single.run(8), result) == "");
}

TEST_CASE("losses and flips are those of the whole batch", "[stage]") {
  const StageCase c = stage_cases()[1];
  SmallStage shared(c, simd::kernels(), world());
  mpi::Comm alone;
  SmallStage single(c, simd::kernels(), alone);
  for (int step = 0; step < 4; ++step) {
    const layerwise::StepResult one = single.stage().step();
    const layerwise::StepResult all = shared.stage().step();
    CHECK(all.images == one.images);
    CHECK(all.loss == one.loss);
    CHECK(all.correct == one.correct);
    CHECK(all.flips == one.flips);
    CHECK(all.active_share == one.active_share);
  }
}

TEST_CASE("sparse messages without a threshold give what dense sums give", "[stage]") {
  for (StageCase c : all_stage_cases()) {
    if (c.name == ternary_exact_case().name) continue;  // refused
    INFO(c.name);
    c.options.workers = 5;
    mpi::Comm alone;
    SmallStage dense(c, simd::kernels(), alone);
    const TensorFile expected = dense.run(6);
    c.options.sparse = true;
    SmallStage sparse(c, simd::kernels(), world());
    TensorFile result = sparse.run(6);
    std::erase_if(result.tensors, [](const auto& tensor) { return tensor.first.starts_with("stage."); });
    for (const auto& [name, tensor] : expected.tensors) {
      if (name.starts_with("stage.")) result.tensors[name] = tensor;
    }
    // Accumulators are at rank 0 alone.
    if (world().is_root()) CHECK(difference(expected, result) == "");
  }
}

TEST_CASE("with sparse messages, ranks do not change a stage, nor does a restart on other ranks", "[stage]") {
  for (StageCase c : all_stage_cases()) {
    INFO(c.name);
    c.options.workers = 6;
    c.options.sparse = true;
    c.options.exchange.threshold = 1.5;
    c.options.exchange.statistics_every = 3;
    if (c.options.layer.rule.name == "accumulate" && c.name != "three joint layers" && c.name != ternary_exact_case().name &&
        c.name != tied_case().name) {
      c.options.layer.flip_limit = 30;
    }
    mpi::Comm alone;
    TensorFile middle, expected;
    if (world().is_root()) {
      SmallStage single(c, simd::kernels(), alone);
      single.run(10);  // one of three whose statistics are sent together
      middle = single.run(0);
      expected = single.run(8);
    }
    SmallStage shared(c, simd::kernels(), world());
    const TensorFile result = shared.run(18);
    middle = TensorFile::parse(world().broadcast_bytes(middle.serialize()), "middle");
    SmallStage restarted(c, simd::kernels(), world());
    restarted.stage().load(middle);
    const TensorFile continued = restarted.run(8);
    if (world().is_root()) {
      CHECK(difference(expected, result) == "");
      CHECK(difference(expected, continued) == "");
    }
  }
}

TEST_CASE("with replies that are late, ranks do not change a stage, nor does a restart on other ranks", "[stage]") {
  StageCase moments = stage_cases()[1];
  moments.name = "with second moments";
  moments.options.layer.second_moment_decay = 0.9;
  StageCase muon = stage_cases()[1];
  muon.name = "by Muon";
  muon.options.layer.muon_momentum = 0.9;
  for (StageCase c : {stage_cases()[1], stage_cases()[3], stage_cases()[4], moments, muon, tied_case()}) {
    for (const bool exact : {false, true}) {
      if (exact && c.name != stage_cases()[1].name && c.name != stage_cases()[4].name) continue;
      INFO(c.name);
      CAPTURE(exact);
      c.options.workers = 6;
      c.options.sparse = true;
      c.options.exchange.threshold = exact ? 0 : 1.5;
      c.options.exchange.statistics_every = 3;
      c.options.exchange.staleness = 0;
      c.stage.epochs = 5;  // each has three steps
      mpi::Comm alone;
      const std::size_t all = 15;
      TensorFile expected;
      if (world().is_root()) {
        SmallStage fresh(c, simd::kernels(), alone);
        CHECK(fresh.stage().total_steps() == all);
        const TensorFile undelayed = fresh.run(all);
        c.options.exchange.staleness = 2;
        SmallStage single(c, simd::kernels(), alone);
        expected = single.run(all);
        CHECK(difference(only_layers(undelayed), only_layers(expected)) != "");
      }
      c.options.exchange.staleness = 2;
      SmallStage shared(c, simd::kernels(), world());
      const TensorFile middle =
          TensorFile::parse(world().broadcast_bytes(shared.run(6).serialize()), "middle");  // on every rank rank 0's
      const TensorFile result = shared.run(all - 6);
      SmallStage restarted(c, simd::kernels(), world());
      restarted.stage().load(middle);
      const TensorFile continued = restarted.run(all - 6);
      if (world().is_root()) {
        SmallStage moved(c, simd::kernels(), alone);
        moved.stage().load(middle);
        const TensorFile of_one = moved.run(all - 6);
        CHECK(difference(expected, of_one) == "");
        CHECK(difference(expected, result) == "");
        CHECK(difference(expected, continued) == "");
      }
    }
  }
}

// Thresholds begin anew in the replies just after the root has seen how large gradients are.
TEST_CASE("with late replies and a budget a stage that stops after any step goes on as if it had not", "[stage]") {
  StageCase c = stage_cases()[1];
  c.stage.epochs = 5;
  c.options.workers = 6;
  c.options.sparse = true;
  c.options.exchange.bytes_per_update = 800;
  c.options.exchange.staleness = 2;
  const std::size_t all = 15;
  SmallStage whole(c, simd::kernels(), world());
  const TensorFile expected = whole.run(all);
  for (std::size_t cut = 1; cut < 11; ++cut) {
    CAPTURE(cut);
    SmallStage first(c, simd::kernels(), world());
    const TensorFile middle = TensorFile::parse(world().broadcast_bytes(first.run(cut).serialize()), "middle");
    SmallStage second(c, simd::kernels(), world());
    second.stage().load(middle);
    const TensorFile continued = second.run(all - cut);
    if (world().is_root()) CHECK(difference(expected, continued) == "");
  }
}

TEST_CASE("a stage that is shorter than the delay of its replies ends with all of them, and can be restored there", "[stage]") {
  StageCase c = stage_cases()[0];
  c.stage.epochs = 1;  // three steps
  c.options.workers = 6;
  c.options.sparse = true;
  c.options.exchange.threshold = 1.5;
  c.options.exchange.staleness = 10;
  SmallStage shared(c, simd::kernels(), world());
  const TensorFile result = TensorFile::parse(world().broadcast_bytes(shared.run(3).serialize()), "end");
  CHECK(shared.stage().finished());
  SmallStage again(c, simd::kernels(), world());
  again.stage().load(result);
  CHECK(again.stage().finished());
}

TEST_CASE("with a quorum all ranks hold the same, across epochs and stages", "[stage]") {
  for (const int fan_in : {1, 8}) {
    for (const std::size_t staleness : {0U, 1U}) {
      CAPTURE(fan_in, staleness);
      StageCase c = stage_cases()[0];
      c.stage.epochs = 4;  // each has three steps
      c.options.workers = 6;
      c.options.sparse = true;
      c.options.exchange.threshold = 0.5;
      c.options.exchange.staleness = staleness;
      c.options.exchange.tree.fan_in = fan_in;
      c.options.exchange.tree.quorum = 0.3;
      c.options.exchange.tree.deadline_seconds = 0.01;
      std::uint64_t missed = 0;
      for (const std::uint64_t id : {1U, 2U}) {
        SmallStage shared(c, simd::kernels(), world(), id);
        layerwise::Stage& stage = shared.stage();
        // The root leaves a mark of every step that is over for it.
        std::optional<TempDir> folder;
        if (world().is_root()) folder.emplace();
        const std::filesystem::path marks = world().broadcast_text(folder ? folder->path().string() : "");
        while (!stage.finished()) {
          layerwise::StepRequest request;
          const std::size_t number = stage.step_number();
          const auto mark = marks / std::to_string(number);
          // One after the other, ranks are late; the last one until the others have gone on without it.
          if (number % 4 == static_cast<std::size_t>(world().rank())) request.pace_seconds = 0.05;
          // In the last step of all they wait for it.
          const bool waits = world().size() > 1 && world().rank() == world().size() - 1 && request.pace_seconds > 0 &&
                             number + 1 < stage.total_steps();
          while (waits && !std::filesystem::exists(mark)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          missed += stage.step(request).exchange.tree.missed;
          if (world().is_root()) std::ofstream(mark).flush();
          if (stage.step_number() % stage.steps_per_epoch() != 0) continue;
          stage.settle();
          world().barrier();
        }
        CHECK(difference_to_root(stage) == "");
      }
      // Rank 0 is never late.
      if (world().is_root()) CHECK(missed == 0);
      std::vector<std::int64_t> total = {static_cast<std::int64_t>(missed)};
      world().sum(std::span(total));
      CHECK((total[0] > 0) == (world().size() > 1));
    }
  }
}

// Its request went with its sums, which came too late to count.
TEST_CASE("with a quorum a rank that is always late can ask for a stop", "[stage]") {
  if (world().size() == 1) return;
  StageCase c = stage_cases()[0];
  c.stage.epochs = 4;
  c.options.workers = 6;
  c.options.sparse = true;
  c.options.exchange.threshold = 0.5;
  c.options.exchange.tree.quorum = 0.3;
  c.options.exchange.tree.deadline_seconds = 0.01;
  SmallStage shared(c, simd::kernels(), world());
  layerwise::Stage& stage = shared.stage();
  std::optional<TempDir> folder;
  if (world().is_root()) folder.emplace();
  const std::filesystem::path marks = world().broadcast_text(folder ? folder->path().string() : "");
  const auto wait_for = [&](const std::string& mark) {
    while (!std::filesystem::exists(marks / mark)) {
      stage.exchange()->poll();  // replies on the way go on
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  const bool is_late = world().rank() == world().size() - 1;
  bool stops = false;
  while (!stops && !stage.finished()) {
    const std::size_t number = stage.step_number();
    // All begin together.
    if (is_late && number > 0 && number + 1 < stage.total_steps()) wait_for(std::to_string(number));
    if (world().is_root() && number == 3) wait_for("asked");
    layerwise::StepRequest request;
    request.stop = is_late && number > 0;
    stops = stage.step(request).stop;
    if (world().is_root()) std::ofstream(marks / std::to_string(number)).flush();
    if (request.stop) std::ofstream(marks / "asked").flush();
  }
  CHECK(stops);
  CHECK(stage.step_number() < stage.total_steps());
  stage.leave();
}

TEST_CASE("with replies that are late, all images are counted once", "[stage]") {
  StageCase c = stage_cases()[1];
  c.options.workers = 6;
  c.options.sparse = true;
  c.options.exchange.threshold = 1.5;
  c.options.exchange.staleness = 2;
  SmallStage shared(c, simd::kernels(), world());
  std::vector<std::size_t> images;
  for (std::size_t step = 0; step < shared.stage().total_steps(); ++step) images.push_back(shared.stage().step().images);
  std::vector<std::size_t> expected(images.size(), 48);
  expected[0] = expected[1] = 0;
  expected.back() = 3 * 48;
  CHECK(images == expected);
}

TEST_CASE("with sparse messages, all ranks hold the same weights, thresholds and heads", "[stage]") {
  StageCase c = stage_cases()[3];
  c.options.workers = 6;
  c.options.sparse = true;
  c.options.exchange.threshold = 1;
  c.options.exchange.bytes_per_update = 2000;
  SmallStage shared(c, simd::kernels(), world());
  for (int step = 0; step < 12; ++step) shared.stage().step();
  CHECK(difference_to_root(shared.stage()) == "");
}

// A request used to be counted by workers, of which 64 take a byte more in the reply than none, and a budget counts bytes.
TEST_CASE("with sparse messages, the net does not depend on when checkpoints are asked for", "[stage]") {
  StageCase c = stage_cases()[1];
  c.options.batch = 130;
  c.options.workers = 130;
  c.options.sparse = true;
  c.options.exchange.bytes_per_update = 800;
  SmallStage quiet(c, simd::kernels(), world());
  for (std::size_t step = 0; step < 8; ++step) CHECK_FALSE(quiet.stage().step().checkpoint);
  const TensorFile expected = quiet.run(0);
  SmallStage asked(c, simd::kernels(), world());
  std::size_t requests = 0;
  for (std::size_t step = 0; step < 8; ++step) {
    layerwise::StepRequest request;
    request.checkpoint = step % 2 == 1;  // by all ranks, so that their number does not matter
    requests += asked.stage().step(request).checkpoint ? 1 : 0;
  }
  CHECK(requests == 4);
  CHECK(difference(expected, asked.run(0)) == "");
}

TEST_CASE("sparse messages need at least a worker per rank, and fresh minibatches", "[stage]") {
  StageCase c = stage_cases()[0];
  c.options.sparse = true;
  c.options.workers = static_cast<std::size_t>(world().size()) - 1;
  CHECK(has(message_of(ErrorKind::usage, [&] { SmallStage(c, simd::kernels(), world()); }), "`workers`: "));
  c.options.workers = 8;
  c.options.repeat = 2;
  CHECK(has(message_of(ErrorKind::usage, [&] { SmallStage(c, simd::kernels(), world()); }), "`repeat`: 2"));
  c = ternary_exact_case();
  c.options.sparse = true;
  c.options.workers = 8;
  CHECK(has(message_of(ErrorKind::usage, [&] { SmallStage(c, simd::kernels(), world()); }), "`threshold`: 0 for the ternary"));
}

TEST_CASE("a batch smaller than the ranks is refused", "[stage]") {
  if (world().size() == 1) {
    CHECK(world().is_root());
    return;
  }
  StageCase c = stage_cases()[0];
  c.options.batch = static_cast<std::size_t>(world().size()) - 1;
  CHECK(has(message_of(ErrorKind::usage, [&] { SmallStage(c, simd::kernels(), world()); }), "`batch`: "));
}

}  // namespace bitloom::test
