// Costs of the collectives so far.
#include <array>

#include "mpi/comm.h"

namespace bitloom::mpi {

const char* name_of(Collective kind) noexcept {
  constexpr std::array<const char*, collective_count> names{"sum",       "max",     "broadcast", "gather",    "barrier",
                                                            "check",     "message", "float_sum", "float_max", "reduce_scatter",
                                                            "all_gather"};
  return names[static_cast<std::size_t>(kind)];
}

Traffic Comm::traffic() const noexcept {
  Traffic total;
  for (std::size_t kind = 0; kind < collective_count; ++kind) total += traffic(static_cast<Collective>(kind));
  return total;
}

}  // namespace bitloom::mpi
