// The report of a training run: one HTML page with its pictures inside, no scripts, nothing loaded from elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
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

// A layer of a float net.
struct FloatLayerRow {
  std::string name, kind;
  std::string output;  // "16 x 16 x 256"
  std::uint64_t parameters = 0;
  double multiply_adds = 0;  // per image
};

// An image that was classified wrongly.
struct WrongImage {
  std::size_t height = 0, width = 0, channels = 0;
  std::vector<std::uint8_t> pixels;  // (channels, height, width); three or more channels: red, green, blue first
  std::string truth, taken_for;
  double probability = 0;  // of the class that it was taken for
};

// The test images of a run, classified for the report.
struct Classification {
  std::string model;  // "the checkpoint after step 120"; empty: the run's model
  std::size_t images = 0, correct = 0;
  std::size_t views = 1;  // of an image, whose logits are averaged
  double loss = 0;        // nats
  std::vector<std::string> classes;
  std::vector<std::vector<double>> confusion;  // (classes, classes): true class, predicted class
  std::vector<WrongImage> wrong;               // the surest mistakes, the worst first
};

// The linear filters of a binary net's encoder, or the kernels of a float net's first convolution.
struct Filters {
  std::size_t count = 0, height = 0, width = 0, colours = 0;
  std::vector<float> taps;  // (count, height, width, colours)
};

struct ReportInput {
  std::string title;                    // heading of the page: the run folder's name; may be empty
  nlohmann::json config;                // the options of the run; not an object: no configuration is shown
  std::vector<nlohmann::json> metrics;  // the lines of metrics.jsonl, in order; may be those of an unfinished run
  std::vector<nlohmann::json> events;   // those of events.jsonl, which runs of several processes may have
  Filters filters;                      // count 0: none to show
  std::vector<LayerRow> layers;         // empty: none to show
  std::vector<FloatLayerRow> float_layers;
  std::optional<Classification> test;
  std::string test_missing;  // why a net that classifies images has no `test`, as a sentence
};

// The page, as UTF-8 that is well-formed XML too. Strings of the input are escaped, whatever they hold. Throws a usage error
// when the sizes of filters do not fit their taps, or those of images their pixels.
std::string render_report(const ReportInput& input);

}  // namespace bitloom::report
