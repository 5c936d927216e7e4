// Lines of a run's metrics.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/metrics.h"

namespace bitloom::test {

inline std::vector<nlohmann::json> lines_of(const std::filesystem::path& run, const std::string& event) {
  std::vector<nlohmann::json> lines;
  for (const nlohmann::json& line : read_metrics(run / "metrics.jsonl")) {
    if (line["event"] == event) lines.push_back(line);
  }
  return lines;
}

}  // namespace bitloom::test
