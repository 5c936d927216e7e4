// A hash of tensors that does not depend on how processes divide them.
#pragma once

#include <cstdint>

#include "nn/engine.h"
#include "train/parallel/state_exchange.h"

namespace bitloom::train {

// The sum, modulo 2^64, over the elements that this process has of a number that follows from the tensor's name, the element's
// place in the full tensor and its bits: sums over processes that divide a tensor are the hash of the whole.
std::uint64_t hash_elements(nn::Engine& engine, const HeldTensor& held);

}  // namespace bitloom::train
