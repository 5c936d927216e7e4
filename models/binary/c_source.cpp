#include "models/binary/c_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "core/bits.h"
#include "core/error.h"
#include "core/text.h"
#include "layerwise/forward.h"
#include "layerwise/rounded_weights.h"
#include "models/net_texts.h"

namespace bitloom::models {
namespace {

using layerwise::BinaryLayer;
using layerwise::Downsample;
using layerwise::Head;
using layerwise::LayerGeometry;

constexpr std::size_t block_channels = 8;  // channels whose weights lie together
constexpr std::size_t line_limit = 140;

const char* way_of(Downsample kind) {
  switch (kind) {
    case Downsample::all: return "pool_and";
    case Downsample::majority: return "pool_majority";
    case Downsample::space_to_depth: return "pool_space_to_depth";
    default: return "pool_or";
  }
}

// A string as C writes it.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += fmt::format("\\{}", c);
    } else if (byte < 32 || byte > 126 || c == '?') {
      result += fmt::format("\\{:03o}", byte);  // '?' too: two of them may begin a trigraph
    } else {
      result += c;
    }
  }
  return result + "\"";
}

// A name from a description, for a comment of C.
std::string commented(std::string name) {
  for (char& c : name) {
    if (c == '*' || c == '/' || c == '\\' || static_cast<unsigned char>(c) < 32) c = '_';
  }
  return name;
}

std::string number(std::uint32_t value) { return fmt::format("{}", value); }
std::string number(std::uint64_t value) { return fmt::format("0x{:x}", value); }
std::string number(std::int16_t value) { return fmt::format("{}", value); }
std::string number(std::int32_t value) {
  // The least of them is no literal of C.
  return value == INT32_MIN ? "-2147483647 - 1" : fmt::format("{}", value);
}
std::string number(float value) {
  if (!std::isfinite(value)) fail(ErrorKind::data, "a number of the model is {}; expected finite ones", value);
  std::string text = fmt::format("{:.9g}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text + "F";
}

const char* c_type(std::uint32_t) { return "uint32_t"; }
const char* c_type(std::uint64_t) { return "uint64_t"; }
const char* c_type(std::int16_t) { return "int16_t"; }
const char* c_type(std::int32_t) { return "int32_t"; }
const char* c_type(float) { return "float"; }

// The declarations of constants and tables, and how many bytes they are.
class Declarations {
 public:
  void add(const std::string& line) { text_ += line + "\n"; }
  template <typename T>
  void array(const std::string& name, std::span<const T> values) {
    text_ += fmt::format("static const {} {}[] = {{\n", c_type(T{}), name);
    std::string line;
    for (const T value : values) {
      const std::string one = number(value) + ",";
      if (line.size() + one.size() > line_limit) {
        text_ += line + "\n";
        line.clear();
      }
      line += one;
    }
    line.pop_back();
    text_ += line + "};\n";
    bytes_ += values.size_bytes();
  }
  const std::string& text() const { return text_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::string text_;
  std::size_t bytes_ = 0;
};

std::size_t blocks_for(std::size_t channels) { return (channels + block_channels - 1) / block_channels; }

// The first `channels` of (O, P) rows to (blocks, stored words, 8): words that meet the same word of a patch side by side,
// channels beyond the last 0.
std::vector<std::uint64_t> in_blocks(const std::uint64_t* rows, std::size_t channels, std::size_t patch,
                                     const std::vector<std::size_t>& stored) {
  std::vector<std::uint64_t> result(blocks_for(channels) * stored.size() * block_channels, 0);
  for (std::size_t o = 0; o < channels; ++o) {
    for (std::size_t t = 0; t < stored.size(); ++t)
      result[(o / block_channels * stored.size() + t) * block_channels + o % block_channels] = rows[o * patch + stored[t]];
  }
  return result;
}

// Where maps lie in the memory of the net, in words.
struct Maps {
  std::vector<std::size_t> in, out;  // by layer
  std::size_t words = 0;

  Maps(const layerwise::Model& model, const std::vector<bool>& needed) : in(needed.size(), 0), out(needed.size(), 0) {
    words = model.encoder.output().size();
    for (std::size_t i = 0; i < needed.size(); ++i) {
      if (!needed[i]) continue;
      in[i] = std::exchange(words, words + model.layers[i].geometry().input.size());
      out[i] = std::exchange(words, words + model.layers[i].geometry().output.size());
    }
  }
};

void declare_encoder(Declarations& to, const layerwise::Encoder& encoder) {
  const std::size_t run = encoder.patch() * encoder.image_shape().channels;
  const std::size_t pairs = (run + 1) / 2;
  const std::size_t filters = encoder.features();
  // (patch, pairs, filters, 2); the last tap of rows of odd length is 0.
  std::vector<std::int16_t> taps(encoder.patch() * pairs * filters * 2, 0);
  for (std::size_t f = 0; f < filters; ++f) {
    for (std::size_t t = 0; t < encoder.taps(); ++t) {
      const std::size_t column = t % run;
      taps[((t / run * pairs + column / 2) * filters + f) * 2 + column % 2] = encoder.filters()[f * encoder.taps() + t];
    }
  }
  std::vector<std::int32_t> upper(filters);
  std::vector<std::int32_t> lower(filters);
  for (std::size_t f = 0; f < filters; ++f) {
    upper[f] = encoder.thresholds()[2 * f];
    lower[f] = encoder.thresholds()[2 * f + 1];
  }
  to.array<std::int16_t>("filters", taps);
  to.array<std::int32_t>("upper", upper);
  to.array<std::int32_t>("lower", lower);
  if (encoder.contrast() > 0) to.add(fmt::format("static const float contrast = {};", number(encoder.contrast())));
}

// The constants of layer i; returns its row of the table of layers.
std::string declare_layer(Declarations& to, const BinaryLayer& layer, std::size_t i, const Maps& maps) {
  const LayerGeometry& geometry = layer.geometry();
  const std::string prefix = fmt::format("layer{}", i);
  std::string inputs;
  for (const LayerGeometry::Source& source : geometry.sources) {
    const std::size_t map = source.layer < 0 ? 0 : maps.out[static_cast<std::size_t>(source.layer)];
    inputs += fmt::format("{}{{{}, {}, {}, {}, {}}}", inputs.empty() ? "" : ", ", map, source.shape.words(), source.shape.width,
                          source.factor, source.word);
  }
  to.add(fmt::format("/* layer '{}' */\nstatic const struct input {}_inputs[] = {{{}}};", commented(layer.spec().name), prefix,
                     inputs));
  // Channels that are further thresholds of the same rows have their weights in the blocks of the first, and planes of a
  // source in the words of the first.
  const std::size_t rows = layer.ties().rows() % block_channels == 0 ? layer.ties().rows() : layer.channels();
  const layerwise::Ties::PixelWords& pixel = layer.ties().pixel_words();
  const std::size_t kernel = layer.spec().kernel;
  std::vector<std::size_t> stored;    // words of a patch
  std::vector<std::uint32_t> places;  // for each word of a row of the patch: where its weights begin in those of the row
  for (std::size_t tap = 0; tap < kernel * kernel; ++tap) {
    for (const std::size_t word : pixel.stored) stored.push_back(tap * pixel.place.size() + word);
  }
  for (std::size_t tap = 0; tap < kernel; ++tap) {
    for (const std::size_t place : pixel.place)
      places.push_back(static_cast<std::uint32_t>((tap * pixel.stored.size() + place) * block_channels));
  }
  const auto declare_rows = [&](const char* what, const Buffer<std::uint64_t>& words) {
    to.array<std::uint64_t>(prefix + what, in_blocks(words.data(), rows, layer.patch_words(), stored));
  };
  declare_rows("_weights", layer.rows());
  if (layer.spec().ternary) declare_rows("_nonzero", layer.nonzero_rows());
  const bool shared = pixel.stored.size() < pixel.place.size();
  if (shared) to.array<std::uint32_t>(prefix + "_places", places);
  const std::size_t blocks = blocks_for(layer.channels());
  to.array<std::int32_t>(prefix + "_thresholds", {layer.thresholds().data(), blocks * block_channels});
  return fmt::format(
      "    {{{0}_inputs, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, {16}, {0}_weights, "
      "{17}, {18}, {0}_thresholds}}",
      prefix, geometry.sources.size(), way_of(layer.spec().pool), maps.in[i], geometry.input.height, geometry.input.width,
      geometry.input.words(), geometry.input.border, kernel, layer.spec().stride, maps.out[i], geometry.output.height,
      geometry.output.width, geometry.output.words(), blocks_for(rows), layer.channels() / rows, stored.size() / kernel,
      layer.spec().ternary ? prefix + "_nonzero" : "NULL", shared ? prefix + "_places" : "NULL");
}

// Weights of one size: their signs, by class in whole words.
std::vector<std::uint64_t> signs_of(std::span<const std::int16_t> weights, std::size_t classes) {
  const std::size_t features = weights.size() / classes;
  const std::size_t words = words_for(features);
  std::vector<std::uint64_t> signs(classes * words, 0);
  for (std::size_t l = 0; l < classes; ++l) {
    for (std::size_t k = 0; k < features; ++k) set_bit(signs.data() + l * words, k, weights[l * features + k] < 0);
  }
  return signs;
}

// A matrix of a head (rows, columns); returns it as a member of the head's row.
std::string declare_matrix(Declarations& to, const std::string& name, std::span<const std::int16_t> weights, std::size_t rows,
                           std::size_t bits) {
  const layerwise::BitPlanes planes = layerwise::bit_planes(weights, rows, bits);
  to.array<std::uint64_t>(name, planes.planes);
  to.array<std::int16_t>(name + "_step", planes.steps);
  return fmt::format("{{{}, {}_step, {}, {}}}", name, name, bits, planes.words);
}

// The constants of the head on layer i; returns its row of the table of heads.
std::string declare_head(Declarations& to, const Head& head, const BinaryLayer& layer, std::size_t i, const Maps& maps) {
  const Head::Integers values = head.integers();
  const std::string prefix = fmt::format("head{}", i);
  const bool is_binary = head.spec().kind == "class_conv";
  const bool has_hidden = head.spec().kind == "hidden";
  to.add(fmt::format("/* the head on layer '{}' */", commented(layer.spec().name)));
  to.array(prefix + "_centre", values.centre);
  to.array(prefix + "_bias", values.bias);
  const std::string none = "{NULL, NULL, 0, 0}";
  std::string linear = none, input = none, output = none, signs = "NULL", input_bias = "NULL";
  if (is_binary) {
    signs = prefix + "_signs";
    to.array<std::uint64_t>(signs, signs_of(values.linear, head.classes()));
  } else {
    linear = declare_matrix(to, prefix + "_linear", values.linear, head.classes(), head.weight_bits());
  }
  if (has_hidden) {
    input = declare_matrix(to, prefix + "_in", values.input, values.input_bias.size(), head.weight_bits());
    output = declare_matrix(to, prefix + "_out", values.output, head.classes(), head.weight_bits());
    input_bias = prefix + "_in_bias";
    to.array(input_bias, values.input_bias);
  }
  const layerwise::MapShape& map = layer.geometry().output;
  return fmt::format("    {{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}}", maps.out[i], map.height,
                     map.width, map.words(), is_binary ? 0 : head.spec().grid, is_binary ? head.spec().kernel : 0,
                     prefix + "_centre", linear, signs, is_binary ? std::abs(values.linear[0]) : 0, number(values.linear_step),
                     prefix + "_bias", has_hidden ? values.input_bias.size() : 0, input, output, input_bias,
                     number(values.input_step));
}

// A name's place in a template -> what stands there.
using Places = std::vector<std::pair<std::string, std::string>>;

std::string filled(std::string_view text, const Places& places) {
  std::string result;
  while (!text.empty()) {
    const std::size_t at = text.find('@');
    result += text.substr(0, at);
    if (at == std::string_view::npos) break;
    text.remove_prefix(at);
    const auto found =
        std::find_if(places.begin(), places.end(), [&](const auto& place) { return text.starts_with(place.first); });
    if (found == places.end()) throw std::logic_error("a template of C has a place that nothing fills");
    result += found->second;
    text.remove_prefix(found->first.size());
  }
  return result;
}

std::string upper_case(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

void check_identifier(const std::string& name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const bool fits = !name.empty() && is_letter(name[0]) &&
                    std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
  if (!fits) {
    fail(ErrorKind::usage,
         "name: '{}' begins the names of C that are declared; expected letters, digits and '_', no digit first", name);
  }
}

std::string joined(const std::vector<std::string>& rows) { return fmt::format("{}", fmt::join(rows, ",\n")); }

// How many numbers the heads of a net need on the way.
struct HeadMemory {
  std::size_t features = 0;
  std::size_t active = 1;  // hidden units; C has no arrays of none
  void include(const Head& head) {
    features = std::max(features, head.features());
    active = std::max(active, head.integers().output.size() / head.classes());
  }
  // A row of any matrix, in whole words of its planes.
  std::size_t row() const { return 64 * std::max(words_for(features), words_for(active)); }
};

// Bytes of struct memory of the template, but for what the compiler adds so that members are aligned.
std::size_t memory_bytes(const layerwise::Encoder& encoder, std::size_t map_words, const HeadMemory& heads,
                         std::size_t classes) {
  const data::ImageShape& image = encoder.image_shape();
  const std::size_t border = encoder.patch() - 1;
  const std::size_t pixels = (image.height + border) * (image.width + border) * image.channels + 1;
  const std::size_t bytes =
      8 * map_words + 2 * pixels + 4 * encoder.features() + 4 * classes + 2 * (heads.features + heads.active + heads.row());
  return (bytes + 7) / 8 * 8;
}

}  // namespace

CSource c_source(const layerwise::Model& model, const layerwise::Views& views, const std::string& name,
                 const std::string& header_file) {
  check_identifier(name);
  const layerwise::Encoder& encoder = model.encoder;
  const data::ImageShape& image = encoder.image_shape();
  layerwise::check_views(views, image);
  const std::vector<std::size_t> voting = model.ensemble();
  const std::vector<bool> needed = layerwise::needed_layers(model.layers, voting);
  const Maps maps(model, needed);
  const std::size_t classes = model.class_names.size();

  Declarations data;
  HeadMemory largest;
  std::vector<std::string> layer_rows;
  std::vector<std::string> head_rows;
  std::vector<std::string> names;
  Declarations constants;
  declare_encoder(constants, encoder);
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (needed[i]) layer_rows.push_back(declare_layer(constants, model.layers[i], i, maps));
  }
  std::map<std::size_t, std::string> declared;  // a head may vote more than once
  for (const std::size_t i : voting) {
    const Head& head = model.heads.at(model.net.layers[i].name);
    if (!declared.contains(i)) declared[i] = declare_head(constants, head, model.layers[i], i, maps);
    head_rows.push_back(declared[i]);
    largest.include(head);
  }
  for (const std::string& each : model.class_names) names.push_back("    " + quoted(printable(each)));

  const auto define = [&](const char* what, std::size_t value) { data.add(fmt::format("#define {} {}", what, value)); };
  define("HEIGHT", image.height);
  define("WIDTH", image.width);
  define("COLOURS", image.channels);
  define("CLASSES", classes);
  define("PATCH", encoder.patch());
  define("FILTERS", encoder.features());
  define("CONTRAST_COUNTS", encoder.contrast() > 0 ? 1 : 0);
  define("MIRROR", views.mirror ? 1 : 0);
  define("SHIFT", views.shift);
  define("VIEWS", views.count());
  define("STOPS_EARLY", views.stop_early() ? 1 : 0);
  if (views.stop_early()) data.add(fmt::format("static const float most_doubt = {};", number(layerwise::most_doubt(views))));
  define("MAP_WORDS", maps.words);
  define("FEATURES", largest.features);
  define("ACTIVE", largest.active);
  define("ROW", largest.row());

  CSource result;
  result.constant_bytes = constants.bytes();
  result.memory_bytes = memory_bytes(encoder, maps.words, largest, classes);
  const std::string votes =
      fmt::format("{}{} view{} of the image{}{}", views.stop_early() ? "up to " : "", views.count(),
                  views.count() == 1 ? "" : "s", voting.size() == 1 ? "" : fmt::format(" and {} heads", voting.size()),
                  views.stop_early() ? fmt::format(", until a class has a probability of {}", views.sure) : "");
  const std::string about = fmt::format("A binary net '{}': images of {} x {} pixels, {} colours, to {} classes.",
                                        commented(model.net.name), image.width, image.height, image.channels, classes);
  const std::string all_data = fmt::format(
      "{}\n{}\nconst char *const {}_classes[] = {{\n{}}};\n\nstatic const struct layer layers[] = {{\n{}}};\n\n"
      "static const struct head heads[] = {{\n{}}};",
      data.text(), constants.text(), name, joined(names), joined(layer_rows), joined(head_rows));
  const Places places = {{"@about@", about},
                         {"@header@", header_file},
                         {"@source@", header_file.substr(0, header_file.rfind('.')) + ".c"},
                         {"@constant_bytes@", fmt::format("{}", result.constant_bytes)},
                         {"@memory_bytes@", fmt::format("{}", result.memory_bytes)},
                         {"@data@", all_data},
                         {"@name@", name},
                         {"@NAME@", upper_case(name)},
                         {"@GUARD@", "BITLOOM_NET_" + upper_case(name) + "_H"},
                         {"@height@", fmt::format("{}", image.height)},
                         {"@width@", fmt::format("{}", image.width)},
                         {"@colours@", fmt::format("{}", image.channels)},
                         {"@classes@", fmt::format("{}", classes)},
                         {"@images@", image.channels == 1 ? "PGM" : "PPM"},
                         {"@votes@", votes}};
  result.header = filled(c_net_texts().header, places);
  result.source = filled(c_net_texts().source, places);
  return result;
}

}  // namespace bitloom::models
