// Files of full tensors from and to processes that have parts of them.
#include "train/parallel/state_exchange.h"
#include "train/parallel/state_save.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <numeric>
#include <thread>
#include <vector>

#include "nn/ops.h"
#include "run/folder.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/lines.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"
#include "tests/train/spirals.h"
#include "train/run.h"
#include "train/run_checkpoints.h"
#include "train/trainer.h"

namespace bitloom::train {
namespace {

// Rank r of n has of `length` elements those from length r / n on.
std::pair<std::uint64_t, std::uint64_t> share(std::uint64_t length, int rank, int ranks) {
  const auto r = static_cast<std::uint64_t>(rank);
  const auto n = static_cast<std::uint64_t>(ranks);
  return {length * r / n, length * (r + 1) / n};
}

// Columns of a matrix (rows, blocks x width): those of this rank in each of the blocks.
Holding columns(std::uint64_t rows, std::uint64_t blocks, std::uint64_t width, int rank, int ranks) {
  const auto [begin, end] = share(width, rank, ranks);
  return {{begin, std::max<std::uint64_t>(end - begin, 1), width}, rows * blocks * (end - begin)};
}

Holding range(std::uint64_t elements, int rank, int ranks) {
  const auto [begin, end] = share(elements, rank, ranks);
  return {{.begin = begin}, end - begin};
}

// Elements whose value is their number in the full tensor.
std::vector<float> numbers_of(const Holding& holding) {
  std::vector<float> values(holding.count);
  for (std::uint64_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(holding.numbers(i));
  return values;
}

// Parts of four tensors that the ranks of a layout have.
struct Parts {
  Parts(nn::Engine& used, bool by_columns, int rank, int ranks) : engine(used) {
    add("matrix", {7, 12}, by_columns ? columns(7, 3, 4, rank, ranks) : range(84, rank, ranks));
    add("vector", {5}, Holding::whole(5));
    add("large", {3, 500000}, by_columns ? columns(3, 1, 500000, rank, ranks) : range(1500000, rank, ranks));
    if (rank == ranks - 1) add("last", {2, 2}, Holding::whole(4));
  }
  void add(const std::string& name, std::vector<std::size_t> shape, const Holding& holding) {
    const std::vector<float> values = numbers_of(holding);
    tensors.push_back(
        std::make_unique<nn::Tensor>(engine.from(std::span<const float>(values), {values.size()}, nn::Use::parameters)));
    held.push_back({name, std::move(shape), holding, tensors.back().get(), DType::f32});
  }
  nn::Engine& engine;
  std::vector<std::unique_ptr<nn::Tensor>> tensors;
  std::vector<HeldTensor> held;
};

void save(Parts& parts, const std::filesystem::path& path) {
  StateGather(parts.engine, test::world(), parts.held).run({}, [&](const std::map<std::string, StreamedTensor>& tensors) {
    save_streamed(path, {{"what", "a test"}}, tensors);
  });
}

}  // namespace

TEST_CASE("own elements are counted and found by their numbers", "[holding]") {
  for (const Holding& holding : {columns(7, 3, 4, 1, 3), range(10, 1, 3), Holding::whole(5), Holding{{2, 3, 10, 4}, 7}}) {
    std::uint64_t before = 0;
    for (std::uint64_t n = 0; n < 100; ++n) {
      CHECK(holding.below(n) == before);
      for (std::uint64_t i = 0; i < holding.count; ++i) before += holding.numbers(i) == n ? 1 : 0;
    }
    CHECK(before == holding.count);
    std::vector<std::uint64_t> numbers;
    holding.numbers.for_runs(0, holding.count, [&](std::size_t own, std::size_t full, std::size_t length) {
      CHECK(own == numbers.size());
      for (std::uint64_t i = 0; i < length; ++i) numbers.push_back(full + i);
    });
    for (std::uint64_t i = 0; i < holding.count; ++i) CHECK(numbers.at(i) == holding.numbers(i));
  }
}

TEST_CASE("a checkpoint is the same file whatever the layout, and any layout goes on from it", "[state]") {
  mpi::Comm& world = test::world();
  nn::Engine engine({}, "cpu");
  const test::TempDir folder;  // rank 0's is used
  Parts by_columns(engine, true, world.rank(), world.size());
  Parts by_range(engine, false, world.rank(), world.size());
  save(by_columns, folder / "columns");
  save(by_range, folder / "range");
  std::optional<TensorReader> file;
  if (world.is_root()) {
    CHECK(read_bytes(folder / "columns") == read_bytes(folder / "range"));
    file = TensorReader::open(folder / "range", Checksum::required);
    const TensorFile whole = TensorFile::load(folder / "range");
    CHECK(whole.tensors.size() == 4);
    for (const auto& [name, tensor] : whole.tensors) {
      const auto values = tensor.as<float>();
      std::vector<float> expected(values.size());
      std::iota(expected.begin(), expected.end(), 0.0F);
      INFO(name);
      CHECK(std::ranges::equal(values, expected));
    }
  }
  for (Parts* parts : {&by_columns, &by_range}) {
    for (const auto& tensor : parts->tensors) nn::fill(engine, *tensor, -1);
    scatter_state(engine, world, parts->held, file ? &*file : nullptr);
    for (const HeldTensor& each : parts->held) {
      INFO(each.name);
      CHECK(engine.to_host<float>(*each.tensor) == numbers_of(each.holding));
    }
  }
}

TEST_CASE("processes that have the same share the work", "[state]") {
  mpi::Comm& world = test::world();
  nn::Engine engine({}, "cpu");
  Parts parts(engine, false, world.rank(), world.size());
  for (const char* name : {"replica", "replica 2"}) parts.add(name, {3, 400000}, Holding::whole(1200000));
  for (int i = 0; i < 8; ++i) parts.add(fmt::format("small {}", i), {2000}, Holding::whole(2000));
  std::vector<std::int64_t> own(static_cast<std::size_t>(world.size()));
  own[static_cast<std::size_t>(world.rank())] = static_cast<std::int64_t>(StateGather(engine, world, parts.held).own_bytes());
  world.sum(own);
  const std::int64_t all = 4 * (84 + 5 + 1500000 + 4 + 2 * 1200000 + 8 * 2000);
  CHECK(std::accumulate(own.begin(), own.end(), std::int64_t{0}) == all);
  for (const std::int64_t bytes : own) CHECK(std::abs(bytes - all / world.size()) < 40000);
  const test::TempDir folder;
  save(parts, folder / "file");
  if (!world.is_root()) return;
  const TensorFile file = TensorFile::load(folder / "file", Checksum::required);
  for (const char* name : {"replica", "replica 2", "small 5", "large"}) {
    const auto values = file.get(name).as<float>();
    INFO(name);
    for (std::size_t i = 0; i < values.size(); i += 999) REQUIRE(values[i] == static_cast<float>(i));
  }
}

TEST_CASE("tensors may change while they are written", "[state]") {
  mpi::Comm& world = test::world();
  nn::Engine engine({}, "cpu");
  Parts parts(engine, true, world.rank(), world.size());
  parts.add("replica", {3, 400000}, Holding::whole(1200000));
  const test::TempDir folder;
  save(parts, folder / "expected");
  mpi::Comm comm = world.split(0, 0, "checkpoint");
  TensorFile rest;
  rest.put("steps", {1}, std::vector<std::uint64_t>{7});
  const auto write_to = [&](const std::string& name, const std::function<void()>& before) {
    return [path = folder / name, before](std::map<std::string, StreamedTensor> tensors) {
      before();
      CHECK(tensors.erase("steps") == (test::world().is_root() ? 1 : 0));
      save_streamed(path, {{"what", "a test"}}, tensors);
    };
  };
  const auto is_as_expected = [&](const std::string& name) {
    return !world.is_root() || read_bytes(folder / name) == read_bytes(folder / "expected");
  };
  if (world.size() == 1 || world.has_progress_thread()) {
    std::promise<void> changed;
    StateSave save(engine, comm, parts.held, rest, write_to("beside", [&] { changed.get_future().wait(); }));
    CHECK_FALSE((world.is_root() && save.is_over()));
    for (const auto& tensor : parts.tensors) nn::fill(engine, *tensor, -1);
    std::vector<std::int64_t> ones = {1};
    world.sum(ones);  // other communicators go on
    CHECK(ones[0] == world.size());
    changed.set_value();
    save.finish([] {});
    CHECK(is_as_expected("beside"));
    for (const HeldTensor& each : parts.held) {
      const std::vector<float> numbers = numbers_of(each.holding);
      engine.write(*each.tensor, std::as_bytes(std::span(numbers)));
    }
  }
  // Where there is no room for copies, on one host even, nothing goes on meanwhile; nor where MPI allows no second thread.
  StateSave poor(engine, comm, parts.held, rest, write_to("no room", [] {}), world.is_root() ? 1 : UINT64_MAX);
  CHECK(poor.is_over());
  poor.finish([] {});
  CHECK(is_as_expected("no room"));
  mpi::Settings settings = world.settings();
  settings.progress_thread = false;
  if (world.size() > 1) {
    const test::Configured without_thread(world, settings);
    StateSave alone(engine, comm, parts.held, rest, write_to("no thread", [] {}));
    CHECK(alone.is_over());
    alone.finish([] {});
    CHECK(is_as_expected("no thread"));
  }
  world.barrier();
}

// The run was taken for hanging where that takes longer than the supervisor's deadline.
TEST_CASE("a checkpoint for which training waits gives signs of life", "[state]") {
  mpi::Comm& world = test::world();
  if (world.size() == 1) return;
  mpi::Settings settings = world.settings();
  settings.progress_thread = false;
  const test::Configured without_thread(world, settings);
  const test::TempDir folder;
  nn::Engine engine;
  Classification task(test::spiral_net({}), {16, 2}, test::spirals<float>(engine, {}, DType::f32));
  mpi::Grid grid(world, {world.size(), 1, 1});
  TrainOptions train;
  train.micro_batches = static_cast<std::size_t>(world.size());
  Layout layout;
  layout.grid = &grid;
  Trainer trainer(engine, task, train, layout);
  trainer.share();
  RunOptions options;
  options.folder = folder / "run";
  test::Lines progress;
  run::OpenRun open(world, options, progress);
  int signs = 0;
  RunCheckpoints checkpoints(trainer, open, "{}", "", [&] { ++signs; });
  if (world.is_root()) open.lock([] {});
  checkpoints.begin([] { return TensorFile(); });
  CHECK((signs > 0) == world.is_root());
  checkpoints.end();
  CHECK(std::filesystem::exists(folder / "run/checkpoint.safetensors") == world.is_root());
}

TEST_CASE("a full disk beside training is an error of whoever waits for the end", "[state]") {
  mpi::Comm& world = test::world();
  nn::Engine engine({}, "cpu");
  Parts parts(engine, false, world.rank(), world.size());
  mpi::Comm comm = world.split(0, 0, "checkpoint");
  const auto write = [](const std::map<std::string, StreamedTensor>& tensors) { save_streamed("/dev/full", {}, tensors); };
  StateSave save(engine, comm, parts.held, {}, write);
  const std::string message = test::message_of(ErrorKind::io, [&] { world.together([&] { save.finish([] {}); }); });
  CHECK(test::has(message, "/dev/full"));
  // An end that nobody waits for comes as well.
  StateSave(engine, comm, parts.held, {}, write);
  world.barrier();
}

TEST_CASE("a rank whose part comes late waits longer than the watchdog allows", "[state]") {
  mpi::Comm& world = test::world();
  if (world.size() == 1) return;
  nn::Engine engine({}, "cpu");
  Parts parts(engine, false, world.rank(), world.size());
  if (world.is_root()) parts.add("before all others", {1500000}, Holding::whole(1500000));
  mpi::Settings settings = world.settings();
  settings.watchdog_seconds = 4;
  const test::Configured configured(world, settings);
  std::size_t pieces = 0;
  StateGather(engine, world, parts.held).run({}, [&](const std::map<std::string, StreamedTensor>& tensors) {
    for (const auto& [name, tensor] : tensors) {
      tensor.bytes([&, slow = name == "before all others"](std::span<const std::byte>) {
        if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(900));
        ++pieces;
      });
    }
  });
  CHECK(pieces == (world.is_root() ? 6 + 6 + 3 : 0));
  world.barrier();
}

TEST_CASE("ranks wait longer than the watchdog allows while rank 0 says that it is at work", "[state]") {
  mpi::Comm& world = test::world();
  if (world.size() == 1) return;
  mpi::Settings settings = world.settings();
  settings.watchdog_seconds = 3;
  const test::Configured configured(world, settings);
  bool is_done = false;
  int signs = 0;
  const auto work = [&](const std::function<void()>& sign) {
    for (int i = 0; i < 50; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      sign();
    }
    is_done = true;
  };
  run::on_root_for_long(world, work, [&] { ++signs; });
  CHECK(is_done == world.is_root());
  CHECK(signs >= 3);
  const auto failing = [&](const std::function<void()>&) { fail(ErrorKind::data, "cannot be read"); };
  CHECK(test::has(test::message_of(ErrorKind::data, [&] { run::on_root_for_long(world, failing, [] {}); }), "cannot be read"));
}

TEST_CASE("a full disk ends a checkpoint on all ranks", "[state]") {
  mpi::Comm& world = test::world();
  nn::Engine engine({}, "cpu");
  Parts parts(engine, false, world.rank(), world.size());
  const std::string message = test::message_of(ErrorKind::io, [&] { world.together([&] { save(parts, "/dev/full"); }); });
  CHECK(test::has(message, "/dev/full"));
  world.barrier();
}

TEST_CASE("a checkpoint that cannot be read to its end is an error of all ranks", "[state]") {
  mpi::Comm& world = test::world();
  nn::Engine engine({}, "cpu");
  Parts parts(engine, true, world.rank(), world.size());
  const test::TempDir folder;
  save(parts, folder / "file");
  std::optional<TensorReader> file;
  if (world.is_root()) {
    file = TensorReader::open(folder / "file");
    std::filesystem::resize_file(folder / "file", std::filesystem::file_size(folder / "file") / 2);
  }
  const std::string message =
      test::message_of(ErrorKind::io, [&] { scatter_state(engine, world, parts.held, file ? &*file : nullptr); });
  CHECK(test::has(message, "cannot read"));
  CHECK(test::has(message, world.is_root() ? (folder / "file").string() : "file"));
}

TEST_CASE("elements that nobody has, and files that lack a tensor, are named", "[state]") {
  mpi::Comm& world = test::world();
  nn::Engine engine({}, "cpu");
  Parts parts(engine, true, world.rank(), world.size());
  parts.held[1].shape = {6};
  CHECK(test::has(test::message_of(ErrorKind::internal, [&] { StateGather(engine, world, parts.held); }),
                  "'vector' of [6]: the processes have 5 elements of it; expected 6"));
  parts.held[1].shape = {5};
  TensorFile file;
  file.put("large", {3, 500000}, std::vector<float>(1500000));
  file.put("last", {2, 2}, std::vector<float>(4));
  file.put("vector", {5}, std::vector<float>(5));
  const auto scatter = [&] { scatter_state(engine, world, parts.held, &file); };
  CHECK(test::has(test::message_of(ErrorKind::data, scatter), "matrix"));
  file.put("matrix", {7, 11}, std::vector<float>(77));
  CHECK(test::has(test::message_of(ErrorKind::data, scatter), "'matrix' is F32 [7, 11], expected F32 [7, 12]"));
}

}  // namespace bitloom::train
