// Images from texts, code by code, and how likely a text makes an image.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "models/dalle/dalle.h"
#include "models/transformer/draw.h"

namespace bitloom::models {

struct ImageOptions : DrawOptions {
  std::size_t count = 1;     // images
  std::size_t at_once = 32;  // of them, in a batch
  std::uint64_t seed = 1;
  bool cache = true;  // keep keys and values; without it every code takes a pass over all tokens
};

// Codes (image) of options.count images for a text (text), -1 behind its end, that begin with those of `given`, fewer than an
// image has, in raster order. Image i draws code n with the same random number whatever the others do. on_code(images done,
// codes drawn of those under way) is called after every code of a batch; false ends it all, with the images that are done.
// Throws Error(usage) that names the field, Error(data) for tokens and codes that the net has not.
std::vector<std::vector<std::int32_t>> sample_images(nn::Engine& engine, Dalle& net, std::span<const std::int32_t> text,
                                                     std::span<const std::int32_t> given, const ImageOptions& options,
                                                     const std::function<bool(std::size_t, std::size_t)>& on_code = {});

// Nats of images' codes under their texts, a sum for each pair; texts and codes as DalleBatch has them.
std::vector<double> image_nats(nn::Engine& engine, Dalle& net, std::span<const std::int32_t> texts,
                               std::span<const std::int32_t> codes, std::size_t at_once = 32);

}  // namespace bitloom::models
