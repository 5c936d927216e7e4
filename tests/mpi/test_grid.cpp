// The grid's numbers for runs of any size, and its groups at the size of this one.
#include "mpi/grid.h"

#include <set>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"

namespace bitloom::mpi {
namespace {

std::string refusal(auto&& f) { return test::message_of(ErrorKind::usage, f); }

}  // namespace

TEST_CASE("every rank has one place, tensor ranks are neighbours", "[grid]") {
  const GridShape shape{2, 3, 4};
  CHECK(shape.ranks() == 24);
  std::set<int> seen;
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const GridPlace place = place_in(shape, rank);
    CHECK(rank_at(shape, place) == rank);
    CHECK((place.data >= 0 && place.data < 2 && place.stage >= 0 && place.stage < 3 && place.tensor >= 0 && place.tensor < 4));
    seen.insert(rank_at(shape, place));
  }
  CHECK(seen.size() == 24);
  CHECK(place_in(shape, 0) == GridPlace{0, 0, 0});
  CHECK(place_in(shape, 1) == GridPlace{0, 0, 1});
  CHECK(place_in(shape, 4) == GridPlace{0, 1, 0});
  CHECK(place_in(shape, 12) == GridPlace{1, 0, 0});
}

// Shoeybi et al. (2019), figure 13.
TEST_CASE("with 8 tensor ranks of 512, ranks 1, 9, ..., 505 are a data group", "[grid]") {
  const GridShape shape = grid_shape(512, 1, 8);
  CHECK(shape == GridShape{64, 1, 8});
  std::vector<int> group;
  for (int rank = 0; rank < 512; ++rank) {
    const GridPlace place = place_in(shape, rank);
    if (place.stage == 0 && place.tensor == 1) group.push_back(rank);
  }
  REQUIRE(group.size() == 64);
  for (std::size_t i = 0; i < group.size(); ++i) {
    CHECK(group[i] == static_cast<int>(8 * i + 1));
    CHECK(place_in(shape, group[i]).data == static_cast<int>(i));
  }
  CHECK(group.back() == 505);
}

TEST_CASE("shapes that do not divide the ranks are refused with possible ones near by", "[grid]") {
  CHECK(grid_shape(12, 2, 3) == GridShape{2, 2, 3});
  CHECK(grid_shape(1, 1, 1) == GridShape{1, 1, 1});
  CHECK(refusal([] { (void)grid_shape(8, 1, 3); }) ==
        "`tensor`: 3 does not divide 8 ranks; possible near by (data x pipeline x tensor): 2 x 1 x 4, 4 x 1 x 2, 1 x 1 x 8, "
        "1 x 2 x 4, 8 x 1 x 1, 2 x 2 x 2");
  CHECK(refusal([] { (void)grid_shape(8, 3, 2); }).starts_with("`pipeline`: 3 does not divide 8 ranks; possible near by"));
  CHECK(refusal([] { (void)grid_shape(8, 4, 4); }).starts_with("`pipeline`: 4 times `tensor` 4 does not divide 8 ranks;"));
  CHECK(refusal([] { (void)grid_shape(2, 0, 1); }) ==
        "`pipeline`: 0; expected at least 1; possible near by (data x pipeline x tensor): 2 x 1 x 1, 1 x 1 x 2, 1 x 2 x 1");
  CHECK(refusal([] { (void)grid_shape(2, 1, -4); }).starts_with("`tensor`: -4; expected at least 1;"));
  CHECK(refusal([] { (void)grid_shape(4, 1 << 30, 4); }).starts_with("`pipeline`: 1073741824 does not divide 4 ranks"));
  CHECK(refusal([] { require_shape(8, {3, 2, 2}); }) == "`data`: 3; expected 2 for 8 ranks with `pipeline` 2 and `tensor` 2");
  CHECK_NOTHROW(require_shape(8, {2, 2, 2}));
}

TEST_CASE("all shapes of a number of ranks are listed, the nearest first", "[grid]") {
  const std::vector<GridShape> shapes = shapes_of(12, {3, 2, 2});
  CHECK(shapes.size() == 18);
  CHECK(shapes.front() == GridShape{3, 2, 2});
  std::set<std::string> texts;
  for (const GridShape& shape : shapes) {
    CHECK(shape.ranks() == 12);
    texts.insert(described(shape));
  }
  CHECK(texts.size() == 18);
  CHECK(shapes_of(1) == std::vector<GridShape>{{1, 1, 1}});
}

TEST_CASE("the groups of a grid are those of its indices", "[grid]") {
  Comm& world = test::world();
  for (const GridShape& shape : shapes_of(world.size())) {
    CAPTURE(described(shape));
    Grid grid(world, shape);
    CHECK(&grid.world() == &world);
    CHECK(grid.shape() == shape);
    CHECK(rank_at(shape, {grid.data_index(), grid.stage(), grid.tensor_index()}) == world.rank());
    const auto check_group = [&](Comm& group, int size, int index, auto member) {
      REQUIRE(group.size() == size);
      REQUIRE(group.rank() == index);
      std::int64_t expected = 0;
      for (int i = 0; i < size; ++i) {
        CHECK(group.world_rank(i) == rank_at(shape, member(i)));
        expected += 1 << group.world_rank(i);
      }
      std::int64_t bits = 1 << world.rank();
      group.sum(std::span(&bits, 1));
      CHECK(bits == expected);
    };
    check_group(grid.data(), shape.data, grid.data_index(), [&](int i) {
      return GridPlace{i, grid.stage(), grid.tensor_index()};
    });
    check_group(grid.pipeline(), shape.pipeline, grid.stage(), [&](int i) {
      return GridPlace{grid.data_index(), i, grid.tensor_index()};
    });
    check_group(grid.tensor(), shape.tensor, grid.tensor_index(), [&](int i) {
      return GridPlace{grid.data_index(), grid.stage(), i};
    });
  }
  CHECK_THROWS_AS(Grid(world, {world.size(), 2, 1}), Error);
}

TEST_CASE("a data group is divided into neighbours, and into those of one index among them", "[grid]") {
  Comm& world = test::world();
  for (const GridShape& shape : shapes_of(world.size())) {
    Grid undivided(world, shape);
    CHECK(&undivided.shards() == &undivided.data());
    CHECK(undivided.copies().size() == 1);
    for (int ranks = 1; ranks <= shape.data; ++ranks) {
      CAPTURE(described(shape), ranks);
      if (shape.data % ranks != 0) {
        const std::string message = test::message_of(ErrorKind::usage, [&] { const Grid grid(world, shape, ranks); });
        CHECK(message == fmt::format("`shard_ranks`: {}; expected a divisor of the {} data-parallel ranks", ranks, shape.data));
        continue;
      }
      Grid grid(world, shape, ranks);
      REQUIRE(grid.shards().size() == ranks);
      REQUIRE(grid.copies().size() == shape.data / ranks);
      const auto rank_of = [&](int data) { return rank_at(shape, {data, grid.stage(), grid.tensor_index()}); };
      for (int i = 0; i < ranks; ++i) CHECK(grid.shards().world_rank(i) == rank_of(grid.data_index() / ranks * ranks + i));
      for (int i = 0; i < grid.copies().size(); ++i) {
        CHECK(grid.copies().world_rank(i) == rank_of(i * ranks + grid.data_index() % ranks));
      }
      CHECK(grid.shards().rank() == grid.data_index() % ranks);
      CHECK(grid.copies().rank() == grid.data_index() / ranks);
    }
  }
}

}  // namespace bitloom::mpi
