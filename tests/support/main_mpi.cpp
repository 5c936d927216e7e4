// main() of the tests that run under mpirun.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "mpi/comm.h"
#include "tests/support/mpi.h"
#include "tests/support/session.h"

namespace bitloom::test {
namespace {

mpi::Environment* environment = nullptr;

}  // namespace

mpi::Comm& world() { return environment->world(); }

}  // namespace bitloom::test

int main(int argc, char** argv) {
  bitloom::mpi::Environment environment({},
                                        {1, [](const std::string& message) { std::fprintf(stderr, "%s\n", message.c_str()); }});
  bitloom::test::environment = &environment;
  // Without this check, tests would pass as separate runs of one rank where mpirun and the library do not belong together.
  const char* expected = std::getenv("BITLOOM_TEST_RANKS");
  if (expected != nullptr && std::atoi(expected) != environment.world().size()) {
    std::fprintf(stderr, "expected %s ranks, but MPI has %d\n", expected, environment.world().size());
    bitloom::mpi::abort_all(1);
  }
  const int result = bitloom::test::run_session(argc, argv);
  // A rank that failed is not where its peers wait for it; ending all at once keeps its message the last one.
  if (result != 0) {
    std::fflush(nullptr);
    bitloom::mpi::abort_all(result);
  }
  return 0;
}
