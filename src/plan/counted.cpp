#include "plan/counted.h"

#include "core/error.h"

namespace bitloom::plan {
namespace {

GroupBytes bytes_of(const mpi::Comm& comm) {
  using mpi::Collective;
  const auto sent = [&](Collective kind) { return comm.traffic(kind).bytes_sent; };
  const GroupBytes bytes{sent(Collective::float_sum),  sent(Collective::float_max), sent(Collective::reduce_scatter),
                         sent(Collective::all_gather), sent(Collective::message),   sent(Collective::broadcast)};
  if (const std::uint64_t all = comm.traffic().bytes_sent; all != bytes.total()) {
    fail(ErrorKind::internal, "{} bytes that a group has sent are of no kind that plans know", all - bytes.total());
  }
  return bytes;
}

GroupBytes difference(const GroupBytes& a, const GroupBytes& b) {
  return {
      a.sums - b.sums,         a.maxima - b.maxima,        a.reduce_scatters - b.reduce_scatters, a.all_gathers - b.all_gathers,
      a.messages - b.messages, a.broadcasts - b.broadcasts};
}

GroupBytes sum(const GroupBytes& a, const GroupBytes& b) {
  return {
      a.sums + b.sums,         a.maxima + b.maxima,        a.reduce_scatters + b.reduce_scatters, a.all_gathers + b.all_gathers,
      a.messages + b.messages, a.broadcasts + b.broadcasts};
}

}  // namespace

GridBytes GridBytes::operator-(const GridBytes& earlier) const {
  return {difference(data, earlier.data), difference(pipeline, earlier.pipeline), difference(tensor, earlier.tensor)};
}

GridBytes counted(mpi::Grid& grid) {
  GroupBytes data = sum(bytes_of(grid.data()), bytes_of(grid.copies()));
  if (&grid.shards() != &grid.data()) data = sum(data, bytes_of(grid.shards()));
  return {data, bytes_of(grid.pipeline()), bytes_of(grid.tensor())};
}

}  // namespace bitloom::plan
