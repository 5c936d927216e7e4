// Files of full tensors from and to processes that have parts of them.
#include "train/parallel/state_exchange.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <vector>

#include "nn/ops.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"

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

// What the ranks of a layout have of four tensors.
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
  mpi::Comm& world = test::world();
  StateGather gather(parts.engine, world, parts.held);
  if (world.is_root()) {
    save_streamed(path, {{"what", "a test"}}, gather.tensors());
    gather.release();
  } else {
    gather.serve();
  }
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

TEST_CASE("a full disk ends a checkpoint on all ranks", "[state]") {
  mpi::Comm& world = test::world();
  nn::Engine engine({}, "cpu");
  Parts parts(engine, false, world.rank(), world.size());
  StateGather gather(engine, world, parts.held);
  const std::string message = test::message_of(ErrorKind::io, [&] {
    world.together([&] {
      if (!world.is_root()) return gather.serve();
      try {
        save_streamed("/dev/full", {}, gather.tensors());
      } catch (...) {
        gather.release();
        throw;
      }
      gather.release();
    });
  });
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
