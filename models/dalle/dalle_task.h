// Training task of a text-to-image transformer for the float trainer: the token that follows each token, of text and image.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "models/dalle/dalle.h"
#include "train/task.h"

namespace bitloom::models {

// Share of the text's mean loss in the loss; the rest is the image's (Ramesh et al. 2021, section 2.2).
inline constexpr double text_share = 1.0 / 8;

// Texts (B,text), -1 behind their ends, and codes (B,image).
struct DalleBatch {
  std::vector<std::int32_t> text, codes;
};

// Inputs (B,T) of a batch: text, padding, codes. Throws Error(internal) for other sizes, Error(data) for a token or code that
// the net has not, or text behind an end.
std::vector<std::int32_t> inputs_of(const DalleConfig& config, const DalleBatch& batch);

// Numbers of tokens that are asked for: of text those that follow another and are no padding.
struct DalleTokens {
  std::uint64_t text = 0, image = 0;
};

class DalleTask final : public train::Task {
 public:
  using Source = std::function<DalleBatch(std::uint64_t step, std::uint64_t micro_batch)>;
  // Those of all micro-batches of a step.
  using Tokens = std::function<DalleTokens(std::uint64_t step)>;

  // pairs: of a micro-batch. The mean of losses counts image tokens: a text token's is multiplied so that means of all text
  // tokens and all image tokens of a step have their shares.
  DalleTask(Dalle& net, std::size_t pairs, Source source, Tokens tokens);

  nn::Sequence& net() override { return net_.layers(); }
  nn::Shape input_shape() const override { return {pairs_, net_.config().tokens()}; }
  std::optional<DType> input_type() const override { return DType::i32; }
  double loss_cost() const override;
  std::uint64_t targets(std::uint64_t step, std::size_t micro_batches) override;
  nn::Tensor input(nn::Pass& pass) override;
  train::PartLoss loss(nn::Pass& pass, nn::Tensor hidden, double scale, nn::Tensor* dhidden) override;
  std::vector<nn::Parameter*> head_parameters() override { return {&net_.text_head().table(), &net_.code_head().table()}; }

 private:
  Dalle& net_;
  std::size_t pairs_;
  Source source_;
  Tokens tokens_;
  train::Awaited<DalleBatch> batch_;
};

// The same as ids (B,T), i32.
nn::Tensor dalle_input(nn::Engine& engine, const DalleConfig& config, const DalleBatch& batch);

// Number of text tokens that are asked for in texts (B,text).
std::uint64_t text_tokens_of(const DalleConfig& config, std::span<const std::int32_t> text);

// Losses (R) of type P of text, (B (text - 1)), and image, (B image), in nats, of hidden states (B,T,C) behind the last norm;
// 0 where nothing is asked for. With dhidden (B,T,C), that of hidden is written to it for `text_scale` and `image_scale` times
// the sums, and the tables' gradients are added to.
struct DallePartLosses {
  nn::Tensor text, image;
};
DallePartLosses dalle_losses(nn::Engine& engine, Dalle& net, const nn::Tensor& hidden, const DalleBatch& batch,
                             double text_scale, double image_scale, nn::Tensor* dhidden);

// Hidden states (B,T,C) by a pass that is not training.
nn::Tensor dalle_hidden(nn::Engine& engine, Dalle& net, const DalleBatch& batch);

// Logits by a pass that is not training: (B,text - 1,V) of all text tokens but the first, and (B,image,K) of codes.
struct DalleLogits {
  std::vector<float> text, image;
};
DalleLogits dalle_logits(nn::Engine& engine, Dalle& net, const DalleBatch& batch);

}  // namespace bitloom::models
