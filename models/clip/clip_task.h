// Training task of a contrastive model for the float trainer: to find each image's own text, and each text's own image, among
// those of a micro-batch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "models/clip/clip.h"
#include "train/task.h"

namespace bitloom::models {

// Factors on cosines above 100 make training unstable (Radford et al. 2021, section 2.5).
inline constexpr double largest_log_scale = 4.605170185988092;

struct ClipBatch {
  std::vector<float> images;        // (N,Y,X,C)
  std::vector<std::int32_t> texts;  // (N,text), as clip_inputs() gives them
};

// Symmetric cross-entropy of embeddings (N,E) of images and texts (Radford et al. 2021, figure 3): rows and columns of exp(log
// scale) times their cosines are logits of the pair that belongs together. Losses (N) in nats, the mean of both. Gradients of
// `scale` times their sum, if they are wanted.
struct ClipLoss {
  std::vector<double> losses;
  std::vector<double> dimages, dtexts;  // (N,E)
  double dlog_scale = 0;
};
ClipLoss clip_loss(const std::vector<double>& images, const std::vector<double>& texts, std::size_t embedding, double log_scale,
                   double scale, bool backward);

// The losses alone, of any number of pairs: with a few rows of logits in memory instead of all. alive: called now and then.
std::vector<double> clip_losses(const std::vector<double>& images, const std::vector<double>& texts, std::size_t embedding,
                                double log_scale, const std::function<void()>& alive = {});

// The factor on cosines that a net has learned, which is limited.
double clip_factor(nn::Engine& engine, ClipTowers& towers);

class ClipTask final : public train::Task {
 public:
  using Source = std::function<ClipBatch(std::uint64_t step, std::uint64_t micro_batch)>;
  // towers: the net's only layer. pairs: of a micro-batch, at least 2. values: V.
  ClipTask(nn::Engine& engine, std::shared_ptr<nn::Sequence> net, ClipTowers& towers, std::size_t pairs, DType values,
           Source source);

  nn::Sequence& net() override { return *net_; }
  nn::Shape input_shape() const override;
  std::uint64_t targets(std::uint64_t step, std::size_t micro_batches) override;
  nn::Tensor input(nn::Pass& pass) override;
  train::PartLoss loss(nn::Pass& pass, nn::Tensor y, double scale, nn::Tensor* dy) override;
  std::vector<nn::Parameter*> head_parameters() override { return {&towers_.log_scale()}; }

 private:
  nn::Engine& engine_;
  std::shared_ptr<nn::Sequence> net_;
  ClipTowers& towers_;
  std::size_t pairs_;
  DType values_;
  Source source_;
};

}  // namespace bitloom::models
