// Plans of float trainings on grids of ranks, as tables and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "cli/terminal.h"
#include "plan/float_advice.h"
#include "plan/float_grids.h"
#include "plan/float_local.h"

namespace bitloom::cli {

// A line for each grid. batch: examples of a step.
void print_grids(Terminal& terminal, const plan::FloatModel& model, std::span<const plan::FloatPlan> plans, std::size_t batch);
// Memory, bytes and time of every stage of one grid.
void print_stages(Terminal& terminal, const plan::FloatModel& model, const plan::FloatPlan& plan, std::size_t batch);

// Bytes and time where gradients go whole or by factors, and what pays.
void print_compressions(Terminal& terminal, const plan::FloatModel& model, std::span<const plan::CompressionPlan> plans,
                        std::size_t batch);

// Bytes and time where they train in local steps instead, and from how many steps between messages on links hardly cost time.
void print_local_steps(Terminal& terminal, const plan::FloatModel& model, std::span<const plan::LocalPlan> plans,
                       std::size_t batch);

// A sentence: which of these ways pays on the cluster's links, and why. grid: the best of all grids, which may be faster still.
void print_advice(Terminal& terminal, const plan::FloatModel& model, const plan::ExchangeAdvice& advice,
                  const plan::FloatCluster& cluster, const plan::FloatPlan& grid, std::size_t batch);

nlohmann::json to_json(const plan::LocalPlan& plan, const plan::FloatModel& model, std::size_t batch);
nlohmann::json to_json(const plan::ExchangeAdvice& advice, const plan::FloatModel& model);
nlohmann::json to_json(const plan::FloatPlan& plan, const plan::FloatModel& model, std::size_t batch);

}  // namespace bitloom::cli
