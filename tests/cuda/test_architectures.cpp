// GPUs for which a program has no code.
#include "nn/cuda/architectures.h"

#include "nn/engine.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;
using nn::cuda::code_problem;

TEST_CASE("a GPU runs binaries of its major version and PTX of earlier ones", "[cuda]") {
  const auto runs = [](int major, int minor, const char* architectures) {
    return code_problem(major, minor, architectures).empty();
  };
  CHECK(runs(8, 6, "86-real"));
  CHECK(runs(8, 6, "80-real"));
  CHECK_FALSE(runs(8, 0, "86-real"));
  CHECK_FALSE(runs(9, 0, "80-real,86-real"));
  CHECK(runs(9, 0, "80-real,86"));
  CHECK(runs(12, 1, "90-virtual"));
  CHECK_FALSE(runs(8, 9, "90-virtual"));
  CHECK(runs(9, 0, "80-real,90a-real"));
  CHECK_FALSE(runs(10, 0, "90a"));
  CHECK_FALSE(runs(12, 1, "120a"));
  CHECK(runs(12, 1, "120f"));
  CHECK_FALSE(runs(12, 0, "100f"));
  CHECK(runs(10, 3, "100-real"));
  // Words that say nothing of numbers refuse no GPU.
  for (const char* unknown : {"", "native", "all-major", "80-real,all", "a-real", "1"}) CHECK(runs(7, 0, unknown));
}

TEST_CASE("the message names the GPU's version, those of the program, and what to do", "[cuda]") {
  CHECK(code_problem(8, 6, "90a-real") ==
        "it has compute capability 8.6, and this program was compiled for 9.0a: configure it with "
        "-DCMAKE_CUDA_ARCHITECTURES=86");
  CHECK(has(code_problem(7, 5, "80-real,86-real,90-virtual"), "was compiled for 8.0, 8.6, 9.0 and later: "));
}
