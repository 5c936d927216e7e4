// Whether the gradients of a case are the derivatives of its outputs.
#pragma once

#include <string>

#include "tests/cases/case.h"

namespace bitloom::test {

// "", or which gradient differs from the central difference of sum(dy y) over all outputs y that have an upstream gradient dy:
// of single elements (all of a small tensor, some of a large one) and along two directions that all elements take part in. The
// engine computes in double precision; relative errors are below `limit`.
std::string check_gradients(const OpCase& the_case, nn::Engine& engine, double limit = 1e-6);

}  // namespace bitloom::test
