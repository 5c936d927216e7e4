// Training of a discrete VAE: minus the evidence lower bound, per number of an image.
//
// For an image with D = 3 side^2 numbers and G = grid^2 tokens the loss is (sum of D terms -ln p(pixel) + beta sum of G terms
// KL) / D: the mean over pixels plus beta G / D times the mean over tokens. With tokens that stand for f x f pixels each, G / D
// = 1 / (3 f^2): 1/192 for f = 8, at 256 x 256 (Ramesh et al. 2021, appendix A.2) as at 64 x 64 pixels, and 1/48 for f = 4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "models/dvae/dvae.h"
#include "train/task.h"

namespace bitloom::models {

// Courses of a training along half cosines. Lengths in steps.
struct DvaeSchedule {
  double kl_weight = 6.6;  // beta, from 0
  std::uint64_t kl_steps = 5000;
  double temperature = 0.0625;  // from first_temperature
  double first_temperature = 1;
  std::uint64_t temperature_steps = 150000;
  double rate = 1e-4, last_rate = 1.25e-6;
  std::uint64_t rate_steps = 1200000;

  double temperature_at(std::uint64_t step) const;
  double kl_weight_at(std::uint64_t step) const;
  DvaeCourse course() const;
};
// Throws Error(usage) that names the field.
void check(const DvaeSchedule& schedule);

class DvaeTask final : public train::Task {
 public:
  // Pixels (N,side,side,3) of a micro-batch, bytes.
  using Source = std::function<std::vector<std::uint8_t>(std::uint64_t step, std::uint64_t micro_batch)>;
  // values: V. images: of a micro-batch. The net and the engine outlive this.
  DvaeTask(nn::Engine& engine, Dvae& net, DType values, std::size_t images, double least_log_b, Source source);

  nn::Sequence& net() override { return *net_.layers; }
  nn::Shape input_shape() const override { return net_.input(images_); }
  bool has_layer_losses() const override { return true; }
  std::uint64_t targets(std::uint64_t /*step*/, std::size_t micro_batches) override { return images_ * micro_batches; }
  nn::Tensor input(nn::Pass& pass) override;
  train::PartLoss loss(nn::Pass& pass, nn::Tensor maps, double scale, nn::Tensor* dy) override;

 private:
  std::vector<float> fetch(const nn::Pass& pass) const;

  nn::Engine& engine_;
  Dvae& net_;
  DType values_;
  std::size_t images_;
  double least_log_b_;
  Source source_;
  train::Awaited<std::vector<float>> pixels_;
};

}  // namespace bitloom::models
