#include "plan/counted.h"

#include <functional>

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

// f of each count.
template <typename F>
GroupBytes combined(const GroupBytes& a, const GroupBytes& b, F f) {
  return {f(a.sums, b.sums),
          f(a.maxima, b.maxima),
          f(a.reduce_scatters, b.reduce_scatters),
          f(a.all_gathers, b.all_gathers),
          f(a.messages, b.messages),
          f(a.broadcasts, b.broadcasts)};
}

GroupBytes difference(const GroupBytes& a, const GroupBytes& b) { return combined(a, b, std::minus()); }
GroupBytes sum(const GroupBytes& a, const GroupBytes& b) { return combined(a, b, std::plus()); }

}  // namespace

GridBytes GridBytes::operator-(const GridBytes& earlier) const {
  return {difference(data, earlier.data), difference(pipeline, earlier.pipeline), difference(tensor, earlier.tensor)};
}

GridBytes counted(mpi::Grid& grid) {
  GroupBytes data = sum(bytes_of(grid.data()), bytes_of(grid.copies()));
  if (grid.is_divided()) data = sum(data, bytes_of(grid.shards()));
  return {data, bytes_of(grid.pipeline()), bytes_of(grid.tensor())};
}

}  // namespace bitloom::plan
