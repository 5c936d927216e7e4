// The tree of ranks along which messages go up to the root and updates come down.
#pragma once

#include <vector>

namespace bitloom::mpi {

// Rank 0 is the root, and rank r > 0 hangs below rank (r - 1) / fan_in: every rank has at most fan_in ranks below it.
class Tree {
 public:
  // Throws Error(usage) for a fan-in below 1.
  Tree(int rank, int size, int fan_in);

  bool is_root() const { return rank_ == 0; }
  int parent() const { return (rank_ - 1) / fan_in_; }  // not of the root
  const std::vector<int>& children() const { return children_; }
  // This rank and all below it.
  std::vector<int> subtree() const;
  // Ranks above this one.
  int level() const;
  // Levels below this rank, and below the root.
  int height() const { return height_of(rank_); }
  int whole_height() const { return height_of(0); }

 private:
  int height_of(int rank) const;

  int rank_, size_, fan_in_;
  std::vector<int> children_;
};

}  // namespace bitloom::mpi
