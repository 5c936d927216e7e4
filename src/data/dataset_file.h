// Data sets as tensors, for other processes and for caches; users have other formats (readers.h).
#pragma once

#include "core/safetensors.h"
#include "data/dataset.h"

namespace bitloom::data {

// Tensors of sets in memory.
TensorFile to_tensors(const DataSplits& splits);

// Throws Error(data) for anything that to_tensors() does not make.
DataSplits from_tensors(const TensorFile& file);

}  // namespace bitloom::data
