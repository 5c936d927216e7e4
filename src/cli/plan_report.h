// Findings of `plan` and `simulate` about a cluster, as text and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/terminal.h"
#include "plan/plan.h"

namespace bitloom::cli {

// A stage: the updates made here, and what follows from them.
struct PlannedStage {
  std::string name;
  plan::VirtualResult run;
  plan::Plan plan;
};

struct PlannedNet {
  std::vector<PlannedStage> stages;
  plan::PlanOptions options;
  plan::Cluster cluster;
};

// Prints what was measured, what was modelled and what is advised; with_updates: a line for every update first.
void print_plan(Terminal& terminal, const PlannedNet& net, bool with_updates);

// All figures. {"stages": [...]} is what `train binary --plan` reads.
nlohmann::json to_json(const PlannedNet& net);

}  // namespace bitloom::cli
