// Shared by the tests in tests/mpi/ and tests/parallel/: their binaries have one MPI environment, made by its main().
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <ranges>
#include <span>
#include <vector>

#include "mpi/comm.h"
#include "mpi/grid.h"

namespace bitloom::test {

// All ranks of the test run: 1, 2, 3 or 4.
mpi::Comm& world();

// Collective: all ranks of comm data-parallel; none without it.
inline std::unique_ptr<mpi::Grid> data_grid(mpi::Comm* comm) {
  return comm == nullptr ? nullptr : std::make_unique<mpi::Grid>(*comm, mpi::GridShape{comm->size(), 1, 1});
}

// Collective: whether all processes have the same numbers, bit for bit.
template <std::ranges::contiguous_range Values>
bool same_everywhere(const Values& values) {
  const auto bytes = std::as_bytes(std::span(values));
  std::vector<std::byte> of_root(bytes.begin(), bytes.end());
  world().broadcast(of_root);
  return !world().flag_any(!std::ranges::equal(of_root, bytes));
}

// Restores the settings that a test changes.
class Configured {
 public:
  Configured(mpi::Comm& comm, const mpi::Settings& settings) : comm_(comm), before_(comm.settings()) {
    comm.configure(settings);
  }
  Configured(const Configured&) = delete;
  Configured& operator=(const Configured&) = delete;
  ~Configured() { comm_.configure(before_); }

 private:
  mpi::Comm& comm_;
  mpi::Settings before_;
};

}  // namespace bitloom::test
