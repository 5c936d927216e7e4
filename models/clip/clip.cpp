#include "models/clip/clip.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/suggest.h"
#include "models/config_json.h"
#include "models/transformer/blocks.h"

namespace bitloom::models {
namespace {

using Json = nlohmann::json;

struct NamedClip {
  const char* name;
  const char* image;       // layers of the convolutional net
  std::size_t least_side;  // of the images, whose maps are halved by some of these
  std::size_t embedding, text, layers, heads, width;
};
constexpr NamedClip named_clips[] = {
    {"tiny",
     R"([{"kind": "conv", "channels": 8, "stride": 2}, {"kind": "norm"}, {"kind": "activation"},
         {"kind": "conv_group", "channels": 16, "convolutions": 1}, {"kind": "global_mean_pool"}, {"kind": "linear"}])",
     3, 16, 12, 1, 2, 16},
    {"emoji",
     R"([{"kind": "conv", "channels": 32, "stride": 2}, {"kind": "norm"}, {"kind": "activation"},
         {"kind": "conv_group", "channels": 64, "convolutions": 1}, {"kind": "conv_group", "channels": 128, "convolutions": 1},
         {"kind": "conv_group", "channels": 192, "convolutions": 1}, {"kind": "linear"}])",
     15, 128, 32, 3, 4, 128},
};

CnnConfig image_net(const std::string& layers, std::size_t embedding, const data::ImageShape& shape) {
  CnnConfig config = parse_cnn(R"({"name": "image", "activation": "gelu", "layers": )" + layers + "}", "the image net");
  config.image = shape;
  config.classes = embedding;
  return config;
}

constexpr std::array<SizeField<ClipConfig>, 5> clip_sizes = {{{"text_positions", &ClipConfig::text},
                                                              {"text_vocabulary", &ClipConfig::text_vocabulary},
                                                              {"layers", &ClipConfig::layers},
                                                              {"heads", &ClipConfig::heads},
                                                              {"width", &ClipConfig::width}}};

constexpr double first_scale = 1 / 0.07;

}  // namespace

void check(const ClipConfig& config) {
  for (const auto& [name, size] : clip_sizes) check_size(name, config.*size);
  check_heads_and_dropout(config.heads, config.width, config.dropout);
}

std::vector<std::string> clip_names() { return names_of(named_clips); }

ClipConfig find_clip(std::string_view name, std::size_t side) {
  const NamedClip& named = find_named(named_clips, name, marked_field("net"));
  if (side < named.least_side) {
    fail_field(ErrorKind::usage, "side", "{}; expected at least {} pixels for the net '{}'", side, named.least_side,
               named.name);
  }
  ClipConfig config;
  config.image = image_net(named.image, named.embedding, {side, side, 3});
  config.text = named.text;
  config.layers = named.layers;
  config.heads = named.heads;
  config.width = named.width;
  return config;
}

Json to_json(const ClipConfig& config) {
  Json json{{"image", architecture_of(config.image)}, {"dropout", config.dropout}};
  write_sizes(json, clip_sizes, config);
  return json;
}

ClipConfig parse_clip_config(const std::string& text, const std::string& name) {
  const Json json = parse_description(text, name);
  ClipConfig config;
  read_sizes(json, clip_sizes, config, name);
  const auto dropout = json.find("dropout");
  const auto image = json.find("image");
  if (dropout == json.end() || !dropout->is_number() || image == json.end()) {
    fail(ErrorKind::data, "{}: 'dropout' or 'image' is missing or of another type", name);
  }
  config.dropout = dropout->get<double>();
  config.image = parse_cnn_model(image->dump(), name);
  check_read(config, name);
  return config;
}

std::vector<std::int32_t> clip_inputs(const ClipConfig& config, std::span<const std::vector<std::int32_t>> texts) {
  std::vector<std::int32_t> ids;
  for (const std::vector<std::int32_t>& text : texts) {
    ids.push_back(static_cast<std::int32_t>(config.first_id()));
    for (std::size_t t = 0; t + 1 < config.text; ++t) {
      const std::int32_t token = t < text.size() ? text[t] : static_cast<std::int32_t>(config.padding_id());
      if (t < text.size() && (token < 0 || static_cast<std::size_t>(token) >= config.text_vocabulary)) {
        fail(ErrorKind::data, "token {} of a text; expected 0 to {}", token, config.text_vocabulary - 1);
      }
      ids.push_back(token);
    }
  }
  return ids;
}

// --- ClipTowers ---

ClipTowers::ClipTowers(const ClipConfig& config)
    : config_(config),
      image_(config.image),
      projection_("projection", config.width, config.embedding(), {.bias = false}),
      log_scale_(nn::vector_parameter("log_scale", 1, std::log(first_scale))) {
  check(config_);
  BlockConfig blocks;
  blocks.layers = config_.layers;
  blocks.heads = config_.heads;
  blocks.width = config_.width;
  blocks.dropout = config_.dropout;
  blocks.activation_bits = config_.activation_bits;
  blocks.activation_quantiser = config_.activation_quantiser;
  BlockBuilder builder(blocks, nullptr);
  text_.add(builder.layers().make_embedding("embedding", config_.text_vocabulary + 2, config_.text, config_.width));
  builder.add_dropout(text_);
  const auto mask = std::make_shared<nn::AttentionMask>(nn::AttentionMask::full(config_.text, config_.text));
  builder.add_blocks(text_, [&](std::size_t) { return BlockBuilder::Mask{mask, nullptr}; });
  text_.emplace<nn::LayerNorm>("norm", config_.width);
}

nn::Tensor ClipTowers::first_rows(nn::Engine& engine, std::size_t texts) const {
  std::vector<std::int32_t> rows;
  for (std::size_t b = 0; b < texts; ++b) rows.push_back(static_cast<std::int32_t>(b * config_.text));
  return engine.from(std::span<const std::int32_t>(rows), {texts}, nn::Use::data);
}

nn::Tensor ClipTowers::embed(nn::Pass& pass, const nn::Tensor& ids) {
  const nn::Tensor states = text_.forward(pass, ids);
  const std::size_t texts = ids.shape()[0];
  nn::Tensor firsts = pass.engine.empty({texts, config_.width}, states.dtype(), nn::Use::activations);
  nn::gather(pass.engine, states.reshaped({texts * config_.text, config_.width}), first_rows(pass.engine, texts), firsts);
  return projection_.forward(pass, firsts);
}

nn::Tensor ClipTowers::embed_images(nn::Engine& engine, const nn::Tensor& images) {
  nn::Pass pass{engine};
  pass.training = false;
  return image_.layers->forward(pass, images);
}

nn::Tensor ClipTowers::embed_texts(nn::Engine& engine, const nn::Tensor& ids) {
  nn::Pass pass{engine};
  pass.training = false;
  return embed(pass, ids);
}

nn::Tensor ClipTowers::forward(nn::Pass& pass, const nn::Tensor& images) {
  const nn::Shape shape = output(images.shape());
  const nn::Tensor ids = std::exchange(texts_, {});
  const std::size_t count = images.shape()[0];
  if (!ids || ids.shape() != nn::Shape{count, config_.text}) {
    fail(ErrorKind::internal, "clip: texts {}; expected {} of {}", nn::to_text(ids), count, config_.text);
  }
  nn::Tensor y = pass.engine.empty(shape, images.dtype(), nn::Use::activations);
  nn::Tensor of_images = y.slice(0, count);
  nn::Tensor of_texts = y.slice(count, 2 * count);
  nn::scale_add(pass.engine, 1, image_.layers->forward(pass, images), 0, of_images);
  nn::scale_add(pass.engine, 1, embed(pass, ids), 0, of_texts);
  return y;
}

nn::Tensor ClipTowers::backward(nn::Pass& pass, const nn::Tensor& dy) {
  const std::size_t count = dy.shape()[0] / 2;
  const nn::Tensor dfirsts = projection_.backward(pass, dy.slice(count, 2 * count));
  // A row of zeros for all tokens but the first.
  nn::Tensor rows = pass.engine.empty({count + 1, config_.width}, dy.dtype(), nn::Use::activations);
  nn::Tensor own = rows.slice(0, count);
  nn::Tensor zeros = rows.slice(count, count + 1);
  nn::scale_add(pass.engine, 1, dfirsts, 0, own);
  nn::fill(pass.engine, zeros, 0);
  std::vector<std::int32_t> from(count * config_.text, static_cast<std::int32_t>(count));
  for (std::size_t b = 0; b < count; ++b) from[b * config_.text] = static_cast<std::int32_t>(b);
  nn::Tensor dstates = pass.engine.empty({count, config_.text, config_.width}, dy.dtype(), nn::Use::activations);
  nn::Tensor flat = dstates.reshaped({from.size(), config_.width});
  nn::gather(pass.engine, rows, pass.engine.from(std::span<const std::int32_t>(from), {from.size()}, nn::Use::data), flat);
  text_.backward(pass, dstates);
  image_.layers->backward(pass, dy.slice(0, count));
  pass.announce(log_scale_);
  return {};
}

void ClipTowers::add_parameters(std::vector<nn::Parameter*>& all) {
  image_.layers->add_parameters(all);
  text_.add_parameters(all);
  projection_.add_parameters(all);
  all.push_back(&log_scale_);
}

nn::Shape ClipTowers::output(const nn::Shape& images) const {
  const nn::Shape embeddings = image_.layers->output(images);
  return {2 * embeddings[0], embeddings[1]};
}

double ClipTowers::cost(const nn::Shape& images) const {
  const nn::Shape ids = {images[0], config_.text};
  return image_.layers->cost(images) + text_.cost(ids) + projection_.cost({images[0], config_.width});
}

std::uint64_t ClipTowers::stash_bytes(const nn::Shape& images, DType values) const {
  const nn::Shape ids = {images[0], config_.text};
  return image_.layers->stash_bytes(images, values) + text_.stash_bytes(ids, values) +
         projection_.stash_bytes({images[0], config_.width}, values);
}

}  // namespace bitloom::models
