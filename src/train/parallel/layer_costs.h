// Costs of a net's layers, by which a pipeline cuts it.
#pragma once

#include <cstddef>
#include <vector>

#include "train/task.h"

namespace bitloom::train {

// Multiplications and additions of each layer's forward pass under a micro-batch of shape x. head: those of what follows the
// last layer, which count as its own. Throws Error(usage) for an x that the net cannot take.
std::vector<double> estimated_costs(nn::Sequence& net, const nn::Shape& x, double head = 0);

// Seconds of each layer's forward and backward pass with micro-batch 0 on this machine, the fastest of some; the loss counts as
// the last layer's. For a net whose parameters have no memory yet: each layer's get it as long as it is measured, so that the
// net need not fit, and give it back. Numbers differ from one call to the next; processes that share a net take over those of
// one of them.
std::vector<double> measured_costs(nn::Engine& engine, Task& task, DType values, std::size_t repeats = 3);

}  // namespace bitloom::train
