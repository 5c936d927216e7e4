// The one file that compiles Catch2 2's implementation, which takes long. Catch2 3 has it in a library and ignores the macro.
#define CATCH_CONFIG_RUNNER
#include "tests/support/session.h"

#include "tests/support/catch.h"

namespace bitloom::test {

int run_session(int argc, char** argv) { return Catch::Session().run(argc, argv); }

}  // namespace bitloom::test
