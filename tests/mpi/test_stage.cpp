// Training on any number of ranks gives what one rank gives, bit for bit.
#include "tests/layerwise/small_stage.h"

#include <array>
#include <optional>

#include "layerwise/cache.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/mpi.h"

namespace bitloom::test {

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
    if (c.options.signal == "exact") continue;
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
    if (c.options.signal == "exact") continue;
    INFO(c.name);
    c.options.workers = 6;
    c.options.sparse = true;
    c.options.exchange.threshold = 1.5;
    c.options.exchange.statistics_every = 3;
    if (c.options.layer.rule.name == "accumulate" && c.name != "three joint layers") c.options.layer.flip_limit = 30;
    mpi::Comm alone;
    SmallStage single(c, simd::kernels(), alone);
    single.run(9);
    const TensorFile middle = single.run(0);
    const TensorFile expected = single.run(9);
    SmallStage shared(c, simd::kernels(), world());
    const TensorFile result = shared.run(18);
    SmallStage restarted(c, simd::kernels(), world());
    restarted.stage().load(middle);
    const TensorFile continued = restarted.run(9);
    if (world().is_root()) {
      CHECK(difference(expected, result) == "");
      CHECK(difference(expected, continued) == "");
    }
  }
}

TEST_CASE("with sparse messages, all ranks hold the same weights, thresholds and heads", "[stage]") {
  StageCase c = stage_cases()[3];
  c.options.workers = 6;
  c.options.sparse = true;
  c.options.exchange.threshold = 1;
  c.options.exchange.bytes_per_update = 2000;
  SmallStage shared(c, simd::kernels(), world());
  for (int step = 0; step < 12; ++step) shared.stage().step();
  TensorFile mine;
  for (const auto& trainer : shared.stage().trainers()) trainer->layer().save(mine);
  for (std::size_t h = 0; h < shared.stage().heads(); ++h) shared.stage().head(h).save(mine, "head", false);
  const TensorFile roots = TensorFile::parse(world().broadcast_bytes(mine.serialize()), "rank 0");
  TensorFile unsigned_mine = TensorFile::parse(mine.serialize(), "this rank");
  CHECK(difference(roots, unsigned_mine) == "");
}

TEST_CASE("sparse messages need at least a worker per rank, the windowed signal and fresh minibatches", "[stage]") {
  StageCase c = stage_cases()[0];
  c.options.sparse = true;
  c.options.workers = static_cast<std::size_t>(world().size()) - 1;
  CHECK(has(message_of(ErrorKind::usage, [&] { SmallStage(c, simd::kernels(), world()); }), "--workers: "));
  c.options.workers = 8;
  c.options.repeat = 2;
  CHECK(has(message_of(ErrorKind::usage, [&] { SmallStage(c, simd::kernels(), world()); }), "--repeat: 2"));
  StageCase exact = stage_cases()[4];
  exact.options.sparse = true;
  exact.options.workers = 8;
  CHECK(has(message_of(ErrorKind::usage, [&] { SmallStage(exact, simd::kernels(), world()); }), "--signal: "));
}

TEST_CASE("a batch smaller than the ranks is refused", "[stage]") {
  if (world().size() == 1) {
    CHECK(world().is_root());
    return;
  }
  StageCase c = stage_cases()[0];
  c.options.batch = static_cast<std::size_t>(world().size()) - 1;
  CHECK(has(message_of(ErrorKind::usage, [&] { SmallStage(c, simd::kernels(), world()); }), "--batch: "));
}

}  // namespace bitloom::test
