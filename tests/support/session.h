// Runs the tests that are linked into this binary: what the two mains share.
#pragma once

namespace bitloom::test {

// Parses Catch2's command line, runs the tests, and returns the exit code: 0 when all passed.
int run_session(int argc, char** argv);

}  // namespace bitloom::test
