// Which GPUs can run the code that a program was compiled to: CUDA C++ programming guide, "Binary compatibility" and "PTX
// compatibility".
#pragma once

#include <string>
#include <string_view>

namespace bitloom::nn::cuda {

// "", or why a GPU of compute capability major.minor has nothing to run in a program that was compiled for `architectures`, as
// CMake names them, with commas: "80-real,90a-real,90-virtual". Also "" where they say something else ("native").
std::string code_problem(int major, int minor, std::string_view architectures);

}  // namespace bitloom::nn::cuda
