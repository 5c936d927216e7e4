// Metrics of a run as TensorBoard reads them: an event file, records of Event messages (tensorflow/core/util/event.proto,
// summary.proto).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace bitloom::report {

// A PNG picture that a run made, and after how many steps.
struct EventPicture {
  std::string tag;
  double step = 0;
  std::string png;
};

// The bytes of a file whose name must begin with "events.out.tfevents.". Every number of the lines of metrics.jsonl becomes a
// point of the curve EVENT/KEY, or EVENT/NAME/KEY where a line has lists or objects with names (layers, heads, parts of the
// time); texts that a model drew become texts. Steps of a binary net's stages are counted on from one stage to the next. Times
// are those of the run.
std::string tensorboard_events(const std::vector<nlohmann::json>& metrics, const std::vector<EventPicture>& pictures);

}  // namespace bitloom::report
