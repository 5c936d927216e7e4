// The report of a training run: one HTML page with its pictures inside, no scripts, nothing loaded from elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace bitloom::report {

// One binary layer as the model has it.
struct LayerRow {
  std::string name;
  std::string inputs;  // "input", "layer1 + layer2"
  std::string output;  // "16 x 16 x 256"
  std::uint64_t weight_bits = 0;
  std::uint64_t bit_macs = 0;  // per image
  std::string state;           // "trained", "frozen", "random", ...
};

// The linear filters of the encoder.
struct Filters {
  std::size_t count = 0, height = 0, width = 0, colours = 0;
  std::vector<float> taps;  // (count, height, width, colours)
};

struct ReportInput {
  std::string title;                    // heading of the page: the run folder's name; may be empty
  nlohmann::json config;                // the options of the run; not an object: no configuration is shown
  std::vector<nlohmann::json> metrics;  // the lines of metrics.jsonl, in order; may be those of an unfinished run
  Filters filters;                      // count 0: none to show
  std::vector<LayerRow> layers;         // empty: none to show
};

// The page, as UTF-8 that is well-formed XML too. Strings of the input are escaped, whatever they hold. Throws a usage error
// when the filters' sizes do not fit their taps.
std::string render_report(const ReportInput& input);

}  // namespace bitloom::report
