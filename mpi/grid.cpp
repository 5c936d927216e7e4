#include "mpi/grid.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>

#include "core/field.h"

namespace bitloom::mpi {
namespace {

// Number of shapes that a message lists.
constexpr std::size_t most_listed = 6;

// By how much the axes differ; a quotient of integers, so that shapes that are equally far are so exactly.
double distance(const GridShape& a, const GridShape& b) {
  const auto product = [](int x, int y) { return static_cast<double>(std::int64_t{x} * y); };
  return product(std::max(a.pipeline, b.pipeline), std::max(a.tensor, b.tensor)) /
         product(std::min(a.pipeline, b.pipeline), std::min(a.tensor, b.tensor));
}

void require_positive(int ranks, const char* field, int value, const GridShape& wanted) {
  if (value < 1) fail_field(ErrorKind::usage, field, "{}; expected at least 1; {}", value, possible_shapes(ranks, wanted));
}

}  // namespace

GridPlace place_in(const GridShape& shape, int rank) {
  return {rank / shape.tensor / shape.pipeline, rank / shape.tensor % shape.pipeline, rank % shape.tensor};
}

int rank_at(const GridShape& shape, const GridPlace& place) {
  return (place.data * shape.pipeline + place.stage) * shape.tensor + place.tensor;
}

std::vector<GridShape> shapes_of(int ranks, const GridShape& wanted) {
  std::vector<GridShape> shapes;
  for (int pipeline = 1; pipeline <= ranks; ++pipeline) {
    if (ranks % pipeline != 0) continue;
    const int rest = ranks / pipeline;
    for (int tensor = 1; tensor <= rest; ++tensor) {
      if (rest % tensor == 0) shapes.push_back({rest / tensor, pipeline, tensor});
    }
  }
  std::ranges::stable_sort(shapes, {}, [&](const GridShape& shape) { return distance(shape, wanted); });
  return shapes;
}

std::string described(const GridShape& shape) { return fmt::format("{} x {} x {}", shape.data, shape.pipeline, shape.tensor); }

std::string possible_shapes(int ranks, const GridShape& wanted, const std::function<bool(const GridShape&)>& possible) {
  const GridShape near{1, std::max(wanted.pipeline, 1), std::max(wanted.tensor, 1)};
  std::vector<std::string> listed;
  for (const GridShape& shape : shapes_of(ranks, near)) {
    if (listed.size() < most_listed && (!possible || possible(shape))) listed.push_back(described(shape));
  }
  if (listed.empty()) return fmt::format("no grid of {} ranks is possible", ranks);
  return fmt::format("possible near by (data x pipeline x tensor): {}", fmt::join(listed, ", "));
}

GridShape grid_shape(int ranks, int pipeline, int tensor) {
  const GridShape wanted{1, pipeline, tensor};
  require_positive(ranks, "pipeline", pipeline, wanted);
  require_positive(ranks, "tensor", tensor, wanted);
  const auto refuse = [&](const char* field, const std::string& value) {
    fail_field(ErrorKind::usage, field, "{} does not divide {} ranks; {}", value, ranks, possible_shapes(ranks, wanted));
  };
  if (ranks % tensor != 0) refuse("tensor", fmt::format("{}", tensor));
  if (ranks % pipeline != 0) refuse("pipeline", fmt::format("{}", pipeline));
  if (ranks / tensor % pipeline != 0) {
    refuse("pipeline", fmt::format("{} times {} {}", pipeline, marked_field("tensor"), tensor));
  }
  return {ranks / tensor / pipeline, pipeline, tensor};
}

void require_shape(int ranks, const GridShape& shape) {
  const GridShape possible = grid_shape(ranks, shape.pipeline, shape.tensor);
  if (shape == possible) return;
  fail_field(ErrorKind::usage, "data", "{}; expected {} for {} ranks with {} {} and {} {}", shape.data, possible.data, ranks,
             marked_field("pipeline"), shape.pipeline, marked_field("tensor"), shape.tensor);
}

std::string reason_against_shards(const GridShape& shape, std::size_t shard_ranks) {
  if (shard_ranks == 0 || static_cast<std::size_t>(shape.data) % shard_ranks == 0) return "";
  return fmt::format("{}: {}; expected a divisor of the {} data-parallel ranks", marked_field("shard_ranks"), shard_ranks,
                     shape.data);
}

Grid::Grid(Comm& world, const GridShape& shape, int shard_ranks) : world_(&world), shape_(shape) {
  require_shape(world.size(), shape);
  if (const std::string reason = reason_against_shards(shape, static_cast<std::size_t>(shard_ranks)); !reason.empty()) {
    fail(ErrorKind::usage, "{}", reason);
  }
  place_ = place_in(shape, world.rank());
  // A group's colour is the rank of its first member.
  const auto group = [&](GridPlace first, int index, const char* name) {
    return world.split(rank_at(shape, first), index, name);
  };
  data_ = group({0, place_.stage, place_.tensor}, place_.data, "data");
  pipeline_ = group({place_.data, 0, place_.tensor}, place_.stage, "pipeline");
  tensor_ = group({place_.data, place_.stage, 0}, place_.tensor, "tensor");
  is_divided_ = shard_ranks != 0;
  if (!is_divided_) return;
  const int number = place_.data / shard_ranks;
  const int index = place_.data % shard_ranks;
  shards_ = group({number * shard_ranks, place_.stage, place_.tensor}, index, "shards");
  copies_ = group({index, place_.stage, place_.tensor}, number, "copies");
}

}  // namespace bitloom::mpi
