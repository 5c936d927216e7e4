// Plans of float trainings on grids of ranks, as tables and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "cli/terminal.h"
#include "plan/float_plan.h"

namespace bitloom::cli {

// A line for each grid.
void print_grids(Terminal& terminal, std::span<const plan::FloatPlan> plans, std::size_t tokens_per_step);
// Memory, bytes and time of every stage of one grid.
void print_stages(Terminal& terminal, const plan::FloatModel& model, const plan::FloatPlan& plan, std::size_t tokens_per_step);

nlohmann::json to_json(const plan::FloatPlan& plan, std::size_t tokens_per_step);

}  // namespace bitloom::cli
