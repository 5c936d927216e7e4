// The tests of this folder on a real GPU. Without one: a message and exit code 77.
#include <iostream>
#include <string>

#include "nn/device.h"
#include "tests/support/session.h"

int main(int argc, char** argv) {
  if (const std::string problem = bitloom::nn::gpu_problem(0); !problem.empty()) {
    std::cerr << "SKIPPED: " << problem << '\n';
    return 77;
  }
  return bitloom::test::run_session(argc, argv);
}
