// Images from texts, code by code, and how likely a text makes an image.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "models/dalle/dalle_task.h"
#include "models/transformer/draw.h"

namespace bitloom::models {

struct ImageOptions : DrawOptions {
  std::size_t count = 1;              // images of each text
  std::size_t at_once = 32;           // of them, in a batch
  std::uint64_t seed = 1, first = 0;  // image i draws with the random numbers of image first + i
  bool cache = true;                  // keep keys and values; without it every code takes a pass over all tokens
};

// Codes (image) of options.count images for each of some texts (T,text), -1 behind their ends: those of the first text, then
// those of the next. All begin with the codes of `given`, fewer than an image has, in raster order. Image i of all draws code n
// with the same random number whatever the others do. on_code(images done, codes drawn of those under way) is called after
// every code of a batch; false ends it all, with the images that are done. Throws Error(usage) that names the field,
// Error(data) for tokens and codes that the net has not.
std::vector<std::vector<std::int32_t>> sample_images(nn::Engine& engine, Dalle& net, std::span<const std::int32_t> texts,
                                                     std::span<const std::int32_t> given, const ImageOptions& options,
                                                     const std::function<bool(std::size_t, std::size_t)>& on_code = {});

// Nats of pairs by a pass that is not training, a sum for each: of the text's tokens that are asked for, and of the image's.
struct PairNats {
  std::vector<double> text, image;
};
PairNats pair_nats(nn::Engine& engine, Dalle& net, const DalleBatch& pairs);
// The same by the pairs' hidden states (B,T,C), where other processes have parts of the net.
PairNats pair_nats(nn::Engine& engine, Dalle& net, const nn::Tensor& hidden, const DalleBatch& pairs);

}  // namespace bitloom::models
