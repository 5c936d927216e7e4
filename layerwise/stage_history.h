// How a stage was trained, kept beside its weights in the cache: a run that reuses the stage has its curves, and can say whose
// they are.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace bitloom::layerwise {

struct StageHistory {
  std::string run;         // the folder of the run that trained it; "": nobody knows
  std::string time;        // when it was finished, as utc_now() has it
  double seconds = 0;      // time of training
  std::size_t images = 0;  // images that passed through training steps
  // Its lines of metrics.jsonl, one per epoch, marked as reused; their `seconds` count from the start of the stage.
  std::vector<nlohmann::json> epochs;
};

// From the lines of metrics.jsonl of the run in folder `run`, whether it trained the stage, from second `begin` on, or reused
// it.
StageHistory history_of(const std::vector<nlohmann::json>& metrics, const std::string& stage, const std::string& run,
                        double begin);

// For the metadata of the stage's blob. Reading never fails: what is not there, or not as expected, is left out, since a stage
// without its curves is better than none.
std::string to_text(const StageHistory& history);
StageHistory history_from_text(const std::string& text);

// The part that a stage's line of metrics has, without the epochs.
nlohmann::json origin_json(const StageHistory& history);

// "in 12 s on 45,000 images by runs/first (2026-11-20T23:44:00Z)": a folder inside the current one is named from there. "" if
// nobody knows.
std::string origin_text(const StageHistory& history);

}  // namespace bitloom::layerwise
