// A discrete variational autoencoder as one sequence of layers: an encoder from images (N,side,side,3) to logits
// (N,grid,grid,K), a relaxed draw from these, and a decoder from that to maps (N,side,side,6) of the likelihood (Ramesh et al.
// 2021, appendix A.1). Parameters are called as in openai/DALL-E, but for weight and bias, which are w and b there, behind
// "encoder." or "decoder.".
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/dvae/config.h"
#include "nn/layer.h"

namespace bitloom::models {

// Temperature and weight of the divergence by optimiser step.
struct DvaeCourse {
  std::function<double(std::uint64_t step)> temperature = [](std::uint64_t) { return 1.0; };
  std::function<double(std::uint64_t step)> kl_weight = [](std::uint64_t) { return 0.0; };  // beta
};

struct Dvae {
  DvaeConfig config;
  std::shared_ptr<nn::Sequence> layers = std::make_shared<nn::Sequence>();
  std::size_t encoder_layers = 0;  // the layer behind them draws, all others are the decoder's

  explicit Dvae(const DvaeConfig& config, const DvaeCourse& course = {});
  Dvae(const Dvae&) = delete;
  Dvae& operator=(const Dvae&) = delete;

  nn::Shape input(std::size_t images) const { return {images, config.side, config.side, 3}; }
  nn::Shape tokens(std::size_t images) const { return {images, config.grid(), config.grid(), config.codes}; }

  // Logits of images, and maps of codes (N,grid,grid,K), not for training.
  nn::Tensor encode(nn::Engine& engine, const nn::Tensor& images);
  nn::Tensor decode(nn::Engine& engine, const nn::Tensor& codes);

  // Numbers that are learned, and multiplications and additions of a forward pass on one image, of all, or of the encoder or
  // the decoder alone.
  std::uint64_t encoder_parameters();
  std::uint64_t decoder_parameters();
  std::uint64_t parameters() { return encoder_parameters() + decoder_parameters(); }
  double cost() const { return layers->cost(input(1)); }
};

// Rows of a table of a net's layers, groups of blocks as one.
struct DvaeRow {
  std::string name;
  nn::Shape output;  // of one image
  std::uint64_t parameters = 0;
  double cost = 0;
};
std::vector<DvaeRow> describe(Dvae& net);

}  // namespace bitloom::models
