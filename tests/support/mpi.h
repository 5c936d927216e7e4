// Shared by the tests in tests/mpi/: their binary has one MPI environment, made by its main().
#pragma once

#include "mpi/comm.h"

namespace bitloom::test {

// All ranks of the test run: 1, 2, 3 or 4.
mpi::Comm& world();

}  // namespace bitloom::test
