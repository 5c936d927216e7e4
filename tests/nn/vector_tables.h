// The tables of vector kernels of the backend "cpu" that this CPU supports.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "core/isa.h"
#include "nn/cpu/kernel_tables.h"

namespace bitloom::test {

// The best first and the baseline last; each once, whatever names it has.
inline std::vector<const nn::VectorKernels*> supported_vector_kernels() {
  std::vector<const nn::VectorKernels*> tables;
  for (const std::string& name : supported_isas(nn::all_vector_kernels())) {
    const nn::VectorKernels* table = &isa_table(nn::all_vector_kernels(), name);
    if (std::find(tables.begin(), tables.end(), table) == tables.end()) tables.push_back(table);
  }
  return tables;
}

}  // namespace bitloom::test
