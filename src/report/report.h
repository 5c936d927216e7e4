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

// The test images of a run, classified for the report. Of a binary net's, which its run has classified: images, correct,
// classes and wrong.
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

// An image in the page.
struct PageImage {
  std::size_t height = 0, width = 0, channels = 0;
  std::vector<std::uint8_t> pixels;  // (channels, height, width); three or more channels: red, green, blue first
};

// Images of the same examples, by what made them.
struct Samples {
  struct Row {
    std::string name;               // "original", "step 1,200"
    std::vector<PageImage> images;  // one for each caption; without pixels: a gap
  };
  std::vector<std::string> captions;
  std::vector<Row> rows;
  std::size_t left_out = 0;  // rows that the run made besides
};

// A held-out image, and what a discrete VAE makes of its tokens.
struct Reconstruction {
  std::string caption;
  PageImage original, again;
  double psnr = 0;  // dB
};

// How often each code of a discrete VAE stands for a part of held-out images.
struct CodeUse {
  std::size_t images = 0;
  std::vector<std::int64_t> counts;
};

// How near some captions and images are by a contrastive model; pair i is captions[i] with images[i].
struct Similarities {
  std::vector<std::string> captions;
  std::vector<PageImage> images;
  std::vector<std::vector<double>> cosines;  // (captions, images)
  std::size_t pairs = 0;                     // that the ranks are among
  std::vector<std::size_t> caption_ranks;    // of an image's own caption among all, 1 the nearest
  std::vector<std::size_t> image_ranks;      // of a caption's own image
};

struct ReportInput {
  std::string title;                    // heading of the page: the run folder's name; may be empty
  std::string kind;                     // of a float model, where the metrics do not say it
  nlohmann::json config;                // the options of the run; not an object: no configuration is shown
  std::vector<nlohmann::json> metrics;  // the lines of metrics.jsonl, in order; may be those of an unfinished run
  std::vector<nlohmann::json> events;   // those of events.jsonl, which runs of several processes may have
  Filters filters;                      // count 0: none to show
  std::vector<LayerRow> layers;         // empty: none to show
  std::vector<FloatLayerRow> float_layers;
  std::optional<Classification> test;
  std::string test_missing;  // why a net that classifies images has no `test`, as a sentence
  std::string model;         // that made what follows: "the checkpoint after step 120"; empty: the run's model
  std::optional<Samples> samples;
  nlohmann::json flips;  // what `bitloom inspect RUN --flips` found; not an object: nothing
  std::vector<Reconstruction> reconstructions;
  std::optional<CodeUse> codes;
  std::optional<Similarities> similarities;
  std::vector<std::string> missing;  // what the page cannot show, and why, as sentences
};

// Kind of the float model that the run is of, by its metrics or else as the input says; "": a binary net's.
std::string model_kind(const ReportInput& input);

// The page, as UTF-8 that is well-formed XML too. Strings of the input are escaped, whatever they hold. Throws a usage error
// when the sizes of filters do not fit their taps, or those of images their pixels.
std::string render_report(const ReportInput& input);

// A page that compares runs, at least two, of the same kind or of several, the best first: results, curves over each other,
// what flips would do, and the options that differ. Of each it takes the title, the kind, the metrics, the study of flips and,
// as `config`, its options by name.
std::string render_comparison(const std::vector<ReportInput>& given);

}  // namespace bitloom::report
