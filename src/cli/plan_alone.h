// Needs of training a float net in one process, as `plan gpt`, `plan dalle` and `plan cnn` show them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/terminal.h"
#include "plan/float_plan.h"

namespace bitloom::cli {

struct AlonePlan {
  plan::FloatModel model;
  plan::FloatOptions training;  // micro_batch 0: what suits the memory
  std::string values;           // their type, as --dtype has it
  std::uint64_t limit = 0;      // memory, bytes
  std::size_t enough = 0;       // tokens of a micro-batch beyond which the device is hardly faster
  std::string savers;           // fields that take less memory
  // Share of what is kept that is saved by keeping `bits` of activations, as Novikov et al. 2022 count it; may be none.
  std::function<double(unsigned bits)> paper_saving;
  bool has_recompute = true;  // whether there are blocks that can be computed again
  // The model that keeps `bits` of activations, where the description of its layers says that; else the training's do.
  std::function<plan::FloatModel(unsigned bits)> with_bits = {};
};

// Prints memory, and the ways to keep less of it for the backward pass, and gives them as JSON. Throws Error(usage) where not
// even one example fits.
nlohmann::json plan_alone(Terminal& terminal, const AlonePlan& plan);

}  // namespace bitloom::cli
