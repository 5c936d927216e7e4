// A trainer's state in one layout of processes, and in another: the same file, from which training goes on.
#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "tests/parallel/grid_gpt.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"
#include "tests/support/trainer_state.h"
#include "train/trainer.h"

namespace bitloom::train {
namespace {

struct Layouts {
  mpi::GridShape grid;
  ShardLevel shard = ShardLevel::none;
  std::string schedule = "1f1b";
};

// Those that the world's ranks have, sharded ones among them.
std::vector<Layouts> layouts() {
  std::vector<Layouts> all;
  for (const mpi::GridShape& grid : mpi::shapes_of(test::world().size())) {
    if (grid.tensor == 3) continue;  // four heads
    all.push_back({grid});
    if (grid.pipeline > 1) all.push_back({grid, ShardLevel::none, "gpipe"});
    if (grid.data == 1) continue;
    for (const ShardLevel level : {ShardLevel::optimizer, ShardLevel::gradients, ShardLevel::parameters}) {
      all.push_back({grid, level});
    }
  }
  return all;
}

// Moments of 16 bits are rounded by the number of an element in the whole; gradients of f16, by ref, have scales by block.
struct Types {
  DType values = DType::f32;
  bool narrow_moments = false;
  bool muon = false;

  bool scales_blocks() const { return values == DType::f16; }
};
constexpr Types all_types[] = {{DType::f32}, {DType::bf16}, {DType::f32, true}, {DType::f16}, {DType::f32, false, true}};

// Whether a layout can have it: four heads, stages of a pipeline send no gradients with scales, and Muon has whole matrices.
bool is_possible(const Layouts& layout, const Types& types) {
  const mpi::GridShape& grid = layout.grid;
  if (types.muon && (grid.tensor > 1 || layout.shard != ShardLevel::none)) return false;
  return grid.tensor != 3 && !(types.scales_blocks() && grid.pipeline > 1);
}

models::GptConfig config(const Types& types) {
  models::GptConfig config = test::small_gpt();
  if (types.narrow_moments) config.width = 64;  // so that matrices have several chunks, which shards are made of
  config.layers = 3;
  config.heads = 4;
  config.vocabulary_multiple = 1;
  config.dropout = 0.1;
  if (types.scales_blocks()) config.branch_values = types.values;
  return config;
}

struct LayoutRun : test::GridGpt {
  // micro_batches: a multiple of the data ranks.
  explicit LayoutRun(const Layouts& layout, std::size_t micro_batches, const Types& types)
      : GridGpt(layout.grid, config(types), options(types, micro_batches), make(layout), 0,
                types.scales_blocks() ? "ref" : "cpu") {
    trainer.share();
  }
  static TrainOptions options(const Types& types, std::size_t micro_batches) {
    TrainOptions options;
    options.values = types.values;
    options.optimizer.narrow_moments = types.narrow_moments;
    if (types.muon) options.optimizer.rule = "muon";
    if (types.scales_blocks()) {
      options.loss_scale.emplace();
      options.block_scales.emplace();
    }
    options.micro_batches = micro_batches;
    options.rate.peak = 0.01;
    options.optimizer.clip = 0.5;
    options.optimizer.average = 0.5;
    return options;
  }
  static Layout make(const Layouts& layout) {
    Layout made;
    made.schedule = layout.schedule;
    made.shard = layout.shard;
    return made;
  }
};

// Whether rank 0 has the same tensors in both.
bool same(const TensorFile& a, const TensorFile& b) { return test::world().flag_any(a.serialize() != b.serialize()) == false; }

}  // namespace

TEST_CASE("a checkpoint of any layout goes on in any other and comes back as the same file", "[layouts]") {
  const bool beside_training = test::world().size() == 1 || test::world().has_progress_thread();
  for (const Types& type : all_types) {
    constexpr std::size_t micro_batches = 12;
    const std::vector<Layouts> all = layouts();
    const auto possible = [&](const Layouts& layout) { return is_possible(layout, type); };
    LayoutRun first(*std::ranges::find_if(all, possible), micro_batches, type);
    for (int i = 0; i < 2; ++i) first.trainer.step();
    const TensorFile file = test::saved(first.trainer);
    const std::uint64_t hash = first.trainer.parameters_hash();
    const double loss = first.trainer.step().loss;
    const bool is_plain = type.values == DType::f32 && !type.narrow_moments;
    // Some layouts of other types, by a number that divides no number of choices: more would take minutes.
    for (std::size_t i = 0; i < all.size(); i += is_plain ? 1 : 5) {
      const Layouts& layout = all[i];
      if (!possible(layout)) continue;
      INFO(mpi::described(layout.grid) << " " << layout.schedule << " sharded " << static_cast<int>(layout.shard));
      INFO(dtype_name(type.values) << " narrow moments " << type.narrow_moments << " muon " << type.muon);
      LayoutRun other(layout, micro_batches, type);
      test::load(other.trainer, file);
      CHECK(other.trainer.steps() == 2);
      CHECK(same(test::saved(other.trainer), file));
      CHECK(other.trainer.parameters_hash() == hash);
      // The state of now is written while the trainer goes on to another.
      TensorFile beside;
      std::promise<void> stepped;
      other.trainer.begin_save([&](const std::map<std::string, StreamedTensor>& tensors) {
        if (beside_training) stepped.get_future().wait();
        beside = test::file_of(tensors);
      });
      CHECK(other.trainer.is_saving());
      const bool is_saved = test::world().is_root() && other.trainer.is_saved();
      CHECK(is_saved == (test::world().is_root() && !beside_training));
      CHECK(std::abs(other.trainer.step().loss - loss) < (type.values == DType::f32 ? 1e-5 : 1e-2));
      stepped.set_value();
      other.trainer.end_save([] {});
      CHECK_FALSE(other.trainer.is_saving());
      CHECK(same(beside, file));
      CHECK(other.trainer.parameters_hash() != hash);
    }
  }
}

TEST_CASE("shards come to the bits of processes that have everything", "[layouts]") {
  const Types type = all_types[GENERATE(0, 2, 3)];
  for (const mpi::GridShape& grid : mpi::shapes_of(test::world().size())) {
    if (grid.data == 1 || !is_possible({grid}, type)) continue;
    std::vector<std::byte> expected;
    double expected_loss = 0;
    for (const ShardLevel level : {ShardLevel::none, ShardLevel::optimizer, ShardLevel::gradients, ShardLevel::parameters}) {
      INFO(mpi::described(grid) << " sharded " << static_cast<int>(level) << " " << dtype_name(type.values));
      // Shards of gradients are summed over processes after each micro-batch: the same order only where each has one.
      LayoutRun run({grid, level}, static_cast<std::size_t>(grid.data), type);
      double norm = 0;
      for (int i = 0; i < 3; ++i) norm = run.trainer.step().gradient_norm;
      CHECK(norm > 0);
      const std::vector<std::byte> state = test::saved(run.trainer).serialize();
      if (level == ShardLevel::none) {
        expected = state;
      } else {
        CHECK_FALSE(test::world().flag_any(state != expected));
      }
      const Loss loss = run.trainer.evaluate(0, 0, 5);
      CHECK(loss.count == 5 * config(type).context);
      if (level == ShardLevel::none) expected_loss = loss.sum;
      CHECK(loss.sum == expected_loss);
      // Averages that had stood in for values took their place for good where these were parts of whole parameters.
      CHECK_FALSE(test::world().flag_any(test::saved(run.trainer).serialize() != expected));
    }
  }
}

TEST_CASE("stages of a pipeline refuse scales of residual blocks", "[layouts]") {
  const Types type = {DType::f16};
  for (const mpi::GridShape& grid : mpi::shapes_of(test::world().size())) {
    if (grid.pipeline == 1 || grid.tensor == 3) continue;
    const std::string message = test::message_of(ErrorKind::usage, [&] { LayoutRun({grid}, 12, type); });
    CHECK(test::has(message, "`loss_scale`: blocks with `pipeline`"));
  }
}

}  // namespace bitloom::train
