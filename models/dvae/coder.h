// Images to tokens and back by a trained discrete VAE, without noise; and how good it is on a set of images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/pairs/pairs.h"
#include "models/dvae/dvae.h"
#include "mpi/comm.h"

namespace bitloom::models {

// Quality on a set of images. "Hard" is with one code per token, as the tokens are used afterwards; "relaxed" is with the
// mixtures of codes that training sees.
struct DvaeEvaluation {
  std::size_t images = 0, values = 0;    // numbers of an image
  double relaxed_nll = 0, hard_nll = 0;  // of an image, nats; the same draws with and without relaxation
  double kl = 0;                         // of an image's tokens together, nats
  double squared_error = 0;              // mean over all numbers of reconstructions without noise, in [0,1]^2
  std::vector<std::int64_t> counts;      // of each code, without noise

  // Evidence lower bounds, nats per number.
  double relaxed_elb() const { return -(relaxed_nll + kl) / static_cast<double>(values); }
  double hard_elb() const { return -(hard_nll + kl) / static_cast<double>(values); }
  double psnr() const;  // dB
  std::size_t codes_in_use() const;
  // Number of codes that would be as uncertain if all were equally frequent: exp of the entropy of counts.
  double perplexity() const;
  // Fewer than a 32nd part of the codes, by perplexity, stand for everything.
  bool has_collapsed() const { return perplexity() < static_cast<double>(counts.size()) / 32; }
};

// How many images have a gigabyte of maps, at most 32.
std::size_t images_at_once(const DvaeConfig& config, DType values);

class DvaeCoder {
 public:
  // values: V of the net, which has its numbers and outlives this. at_once: images of a pass at most; without it 32, or as many
  // as have a gigabyte of maps.
  DvaeCoder(nn::Engine& engine, Dvae& net, DType values);
  DvaeCoder(nn::Engine& engine, Dvae& net, DType values, std::size_t at_once);

  // Codes (N,grid,grid) of images (N,side,side,3), and the logits (N,grid,grid,K) that they are the largest of. encode() throws
  // Error(data) for logits that are infinite or no numbers.
  std::vector<std::int32_t> encode(std::span<const std::uint8_t> images);
  std::vector<float> logits(std::span<const std::uint8_t> images);
  // Images (N,side,side,3) of codes, rounded. Throws Error(data) for a number that is no code, and for pixels that are no
  // numbers.
  std::vector<std::uint8_t> decode(std::span<const std::int32_t> codes);
  // The maps (N,side,side,6) that these are made of: three of mu, three of ln b. Throws as decode() does for codes.
  std::vector<float> maps(std::span<const std::int32_t> codes);

  // Collective: each rank takes a part of the pairs' images, cut in the centre. The noise of draws follows from the number of
  // an image alone. `watch` is called between batches; false ends the evaluation by Error(interrupted). All ranks throw what
  // one of them throws.
  struct Measure {
    double temperature = 1, least_log_b = -100;
  };
  using Watch = std::function<bool()>;
  DvaeEvaluation evaluate(mpi::Comm& comm, const data::Pairs& pairs, const Measure& measure, const Watch& watch = {});

 private:
  struct Sums;
  // visit(logits) for images, at_once_ of them at a time; for codes visit(maps).
  template <typename Visit>
  void encode_parts(std::span<const std::uint8_t> images, Visit&& visit);
  template <typename Visit>
  void decode_parts(std::span<const std::int32_t> codes, Visit&& visit);
  nn::Tensor logits_of(std::span<const float> images, std::size_t count);
  nn::Tensor one_hot(std::span<const std::int32_t> codes, std::size_t count);
  std::vector<std::int32_t> largest(const nn::Tensor& rows);
  // Divergences (N) from the uniform distribution of logits (N,K).
  std::vector<float> divergences(const nn::Tensor& logits);
  std::vector<double> likelihoods(const nn::Tensor& codes, const nn::Tensor& pixels, double least_log_b);
  void add(std::span<const std::uint8_t> images, std::size_t number, const Measure& measure, Sums& sums);

  nn::Engine& engine_;
  Dvae& net_;
  DType values_;
  std::size_t at_once_;
};

}  // namespace bitloom::models
