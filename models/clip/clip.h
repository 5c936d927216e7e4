// A contrastive model of images and texts (Radford et al. 2021): a convolutional net and a transformer whose results are near
// for an image and its caption and far for others. It ranks the images that a text-to-image model draws (Ramesh et al. 2021,
// section 2.6).
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/cnn/cnn.h"
#include "nn/layers/basic.h"
#include "nn/layers/tokens.h"

namespace bitloom::models {

struct ClipConfig {
  CnnConfig image;        // its classes are the embedding's numbers
  std::size_t text = 32;  // positions; the first has a token of its own, whose state becomes the embedding
  std::size_t text_vocabulary = 0;
  std::size_t layers = 2, heads = 2, width = 64;  // of the transformer
  double dropout = 0;
  unsigned activation_bits = 0;
  nn::Quantiser activation_quantiser = nn::Quantiser::few_bit;

  std::size_t embedding() const { return image.classes; }
  // Inputs of the transformer: tokens of text, then the first token and padding.
  std::size_t first_id() const { return text_vocabulary; }
  std::size_t padding_id() const { return text_vocabulary + 1; }
};

// Throws Error(usage) that names the field, its value and what was expected.
void check(const ClipConfig& config);

// tiny and emoji. Images of `side` x `side`. Throws Error(usage) that names the field `net`, or `side` for images that are too
// small for the net.
std::vector<std::string> clip_names();
ClipConfig find_clip(std::string_view name, std::size_t side);

nlohmann::json to_json(const ClipConfig& config);
// Throws Error(data) that names `name` and what is missing or wrong in it.
ClipConfig parse_clip_config(const std::string& json, const std::string& name);

// Inputs (N,text) of the transformer for texts of any length, which are cut. Throws Error(data) for tokens that it has not.
std::vector<std::int32_t> clip_inputs(const ClipConfig& config, std::span<const std::vector<std::int32_t>> texts);

// images (N,Y,X,C) -> (2N,E): embeddings of the images, then of their texts; not normalised.
class ClipTowers final : public nn::Layer {
 public:
  explicit ClipTowers(const ClipConfig& config);
  const ClipConfig& config() const { return config_; }

  // Inputs (N,text) i32 of the next pass forward.
  void set_texts(nn::Tensor ids) { texts_ = std::move(ids); }
  // By one tower alone, not training: embeddings (N,E).
  nn::Tensor embed_images(nn::Engine& engine, const nn::Tensor& images);
  nn::Tensor embed_texts(nn::Engine& engine, const nn::Tensor& ids);
  // Logarithm of the factor on cosines of embeddings.
  nn::Parameter& log_scale() { return log_scale_; }

  nn::Tensor forward(nn::Pass& pass, const nn::Tensor& images) override;
  nn::Tensor backward(nn::Pass& pass, const nn::Tensor& dy) override;  // none
  void add_parameters(std::vector<nn::Parameter*>& all) override;
  void end_step(nn::Pass& pass, bool counts, std::size_t replicas) override { image_.layers->end_step(pass, counts, replicas); }
  void add_step_sums(std::vector<nn::Tensor*>& all) override { image_.layers->add_step_sums(all); }
  void add_buffers(nn::Engine& engine, DType values, std::vector<std::pair<std::string, nn::Tensor*>>& all) override {
    image_.layers->add_buffers(engine, values, all);
  }
  nn::Shape output(const nn::Shape& images) const override;
  double cost(const nn::Shape& images) const override;
  std::uint64_t stash_bytes(const nn::Shape& images, DType values) const override;

 private:
  nn::Tensor embed(nn::Pass& pass, const nn::Tensor& ids);
  // First tokens' states (N,C) of states (N,text,C), and where each goes in the gradient.
  nn::Tensor first_rows(nn::Engine& engine, std::size_t texts) const;

  ClipConfig config_;
  Cnn image_;
  nn::Sequence text_;  // ids (N,text) -> states (N,text,C)
  nn::Linear projection_;
  nn::Parameter log_scale_;
  nn::Tensor texts_;
};

}  // namespace bitloom::models
