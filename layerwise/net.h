// The description of a net and of how it is trained: what a net file (JSON with comments) says. models/binary/ holds the
// named ones. Plain data; everything that costs memory is made from it elsewhere.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "layerwise/bit_map.h"

namespace bitloom::layerwise {

// Pixels to bits. `whitened`: `filters` ZCA-whitened k-means filters over patch x patch pixels, two bits each.
// `thermometer`: `levels` bits per colour channel, evenly spread.
struct EncoderSpec {
  std::string kind = "whitened";
  std::size_t patch = 5;
  std::size_t filters = 64;
  std::size_t levels = 20;
  double epsilon = 0.05;  // ZCA regulariser, on pixels / 64
  double contrast = 10;   // grey levels added to a patch's contrast, by which its responses are divided; 0 disables this
};

// One binary layer: down-sample and concatenate the inputs, convolve, compare with a threshold per channel or with several.
struct LayerSpec {
  std::string name;
  std::vector<std::string> inputs;  // "input" (the encoder) or names of earlier layers
  Downsample pool = Downsample::none;
  std::size_t pool_factor = 1;  // 2 when pool is not none: how much smaller the largest common map becomes
  std::size_t width = 0;        // rows of weights
  std::size_t thresholds = 1;   // of each row, each of which gives an output channel (ties.h)
  std::size_t kernel = 3;
  std::size_t stride = 1;
  std::size_t padding = 1;  // default: (kernel - 1) / 2
  bool ternary = false;
  // Whether the layers that it reads and that learn with it get its gradient; without a value: as the stage says. Where a layer
  // passes none, a block of layers ends below it, which learns under heads of its own (Belilovsky et al. 2019).
  std::optional<bool> passes_gradient;

  std::size_t channels() const { return width * thresholds; }  // of the output: threshold by threshold
};

// The classifier that gives a layer its learning signal.
//   class_conv  a binary kernel per class, popcounts summed over the image (the essay "Distributed training")
//   linear      bits counted per grid cell, linear
//   hidden      linear, plus a hidden ReLU layer shared by all cells
// Further binary layers between the trained one and the classifier (k = 2, 3 of Belilovsky et al. 2018) are layers that a stage
// discards.
struct HeadSpec {
  std::string kind = "hidden";
  std::size_t grid = 4;
  std::size_t hidden = 64;
  std::size_t kernel = 3;  // size of the kernels of class_conv

  bool operator==(const HeadSpec&) const = default;
};

// One stage of training: which layers learn, which of them have a head, what is kept. A layer that an earlier stage trained may
// learn again, together with all trained layers that read it: it goes on from the weights it has.
struct StageSpec {
  std::string name;
  std::vector<std::string> train;    // in the order of the net
  std::vector<std::string> heads;    // subset of `train`; default: the last one
  std::vector<std::string> discard;  // auxiliary layers that only this stage uses; not part of the final net
  std::size_t epochs = 4;
  HeadSpec head;
  std::map<std::string, double>
      options;                  // training options that this stage sets for itself (train_options.h): "smallest_offset", ...
  std::string augment;          // augmentation of this stage's images (data/augment.h), instead of the run's; empty: the run's
  bool passes_gradient = true;  // between the layers of this stage; false: decoupled greedy learning

  // Whether a layer that this stage trains passes its gradient to those that it reads.
  bool lets_pass(const LayerSpec& layer) const { return layer.passes_gradient.value_or(passes_gradient); }
};

// Test-time augmentation: the views of an image whose log-probabilities are summed.
struct Views {
  bool mirror = true;     // its mirror image
  std::size_t shift = 0;  // pixels by which it (and its mirror image) is moved up, down, left and right; 0 disables this
  // An image has no more views as soon as its likeliest class has this probability, by the mean of the votes until then; with 1
  // it has all.
  double sure = 1;

  bool stop_early() const { return sure < 1 && count() > 1; }
  std::size_t count() const { return (mirror ? 2U : 1U) * (shift != 0 ? 5U : 1U); }
  // The images beside the one itself: "mirror and shifted"; "" without any.
  const char* names() const { return shift == 0 ? (mirror ? "mirror" : "") : (mirror ? "mirror and shifted" : "shifted"); }
};

struct NetSpec {
  std::string name;
  EncoderSpec encoder;
  std::vector<LayerSpec> layers;
  std::vector<StageSpec> stages;
  std::vector<std::string> classifier;  // layers whose heads vote; default: the last stage's heads
  Views views;                          // test-time augmentation
  // Bits that a finished run leaves of every weight of a voting head (Head::round_weights()), 2 to 16; class_conv has one
  // anyway.
  std::size_t head_bits = 4;

  const LayerSpec* find(const std::string& wanted) const;
  const LayerSpec& layer(const std::string& wanted) const;  // throws usage error with a suggestion
};

// Parses and validates. `source` names the file in messages. Throws usage errors that name the key, the value and what
// was expected; unknown keys are errors with a suggestion.
NetSpec parse_net(const std::string& text, const std::string& source);
nlohmann::json to_json(const NetSpec& net);
NetSpec net_from_json(const nlohmann::json& json, const std::string& source);

// The net without the layers that its stages discard: what a finished model holds. Throws a usage error if a layer that stays
// reads one that goes, or the classifier names one.
NetSpec without_discarded(const NetSpec& net);

// How many of their first stages the nets have in common: with the same training, these give the same layers and heads.
std::size_t shared_stages(const NetSpec& a, const NetSpec& b);

// Applies "layer3.width=256" to a net: the key is LAYER.KEY, STAGE.epochs, encoder.KEY, head.KEY or net.KEY.
NetSpec with_setting(const NetSpec& net, const std::string& key, const std::string& value);

// The size of a layer's output, given the encoder's map (height, width and channels of "input"). Throws a usage error when
// sizes do not fit: inputs whose sizes are not multiples of one another, kernels larger than the padded map, ...
struct LayerGeometry {
  struct Source {
    int layer = -1;  // index into NetSpec::layers, -1 for the encoder
    MapShape shape;  // as it comes
    std::size_t factor = 1;
    std::size_t word = 0;    // where it starts in a pixel of the input map
    std::size_t planes = 1;  // LayerSpec::thresholds of that layer
  };
  std::vector<Source> sources;
  MapShape input;   // concatenated, with border
  MapShape output;  // without border
  std::size_t patch_words = 0;
  std::size_t valid_bits = 0;  // bits of a patch that can be set: kernel^2 x channels without tails
};
// Words of a layer's weights, of which gradients hold the places in 28 bits (gradient.h).
inline constexpr std::size_t most_weight_words = std::size_t{1} << 28U;
std::vector<LayerGeometry> derive_geometry(const NetSpec& net, std::size_t height, std::size_t width,
                                           std::size_t input_channels);

}  // namespace bitloom::layerwise
