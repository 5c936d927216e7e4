// The ranks of a run as a grid of three axes: data x pipeline x tensor, the last one fastest. Ranks that differ only in one
// index are a group, with a communicator of its own: with 8 tensor ranks of 512, ranks 0 to 7 are a tensor group, and 1, 9,
// ..., 505 a data group if there is one stage. A data group may be divided once more, into neighbours that have one copy of a
// training's state together.
#pragma once

#include <compare>
#include <functional>
#include <string>
#include <vector>

#include "mpi/comm.h"

namespace bitloom::mpi {

struct GridShape {
  int data = 1, pipeline = 1, tensor = 1;

  int ranks() const { return data * pipeline * tensor; }
  friend bool operator==(const GridShape&, const GridShape&) = default;
};

// A rank's place.
struct GridPlace {
  int data = 0, stage = 0, tensor = 0;
  friend bool operator==(const GridPlace&, const GridPlace&) = default;
};

GridPlace place_in(const GridShape& shape, int rank);
int rank_at(const GridShape& shape, const GridPlace& place);

// All shapes of that many ranks; the more alike a shape's pipeline and tensor are to those of `wanted`, by ratio, the earlier
// it comes.
std::vector<GridShape> shapes_of(int ranks, const GridShape& wanted = {});
// "data x pipeline x tensor": "4 x 2 x 1".
std::string described(const GridShape& shape);
// For a message: the first few of shapes_of() that are `possible`, any without it, or that there is none.
std::string possible_shapes(int ranks, const GridShape& wanted, const std::function<bool(const GridShape&)>& possible = {});

// The shape in which all ranks that `pipeline` and `tensor` leave are data-parallel. Throws Error(usage), which names the field
// (`pipeline`, `tensor`, or both) and lists possible shapes near by, if they do not divide the ranks or are below 1.
GridShape grid_shape(int ranks, int pipeline, int tensor);
// Throws the same, and names `data` too, if the shape has not that many ranks.
void require_shape(int ranks, const GridShape& shape);
// "" or, with the field's name, why the data ranks are not divided into groups of shard_ranks; 0: they are one group.
std::string reason_against_shards(const GridShape& shape, std::size_t shard_ranks);

class Grid {
 public:
  // Collective. `world` outlives this. shard_ranks: of a data group, those that share what is divided (Ramesh et al. 2021,
  // appendix E: the GPUs of a machine); 0: all. Throws Error(usage) as require_shape() does and for reason_against_shards(), on
  // all ranks.
  Grid(Comm& world, const GridShape& shape, int shard_ranks = 0);

  Comm& world() { return *world_; }
  // The groups of this rank; its rank in each is its index.
  Comm& data() { return data_; }
  Comm& pipeline() { return pipeline_; }
  Comm& tensor() { return tensor_; }
  // Parts of the data group: neighbours that divide the state, and those of other neighbours that have the same part of it.
  Comm& shards() { return is_divided_ ? shards_ : data_; }
  Comm& copies() { return copies_; }
  // Whether shard_ranks were given: there may be one group of them now, and more when a run goes on.
  bool is_divided() const { return is_divided_; }

  const GridShape& shape() const { return shape_; }
  int data_index() const { return place_.data; }
  int stage() const { return place_.stage; }
  int tensor_index() const { return place_.tensor; }

 private:
  Comm* world_;
  GridShape shape_;
  GridPlace place_;
  Comm data_, pipeline_, tensor_;
  bool is_divided_ = false;
  Comm shards_, copies_;
};

}  // namespace bitloom::mpi
