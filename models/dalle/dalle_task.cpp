#include "models/dalle/dalle_task.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "nn/floats.h"

namespace bitloom::models {

using nn::Tensor;
using nn::Use;

std::vector<std::int32_t> inputs_of(const DalleConfig& config, const DalleBatch& batch) {
  const std::size_t pairs = batch.codes.size() / config.image();
  if (batch.codes.size() != pairs * config.image() || batch.text.size() != pairs * config.text) {
    fail(ErrorKind::internal, "{} tokens of text and {} codes; expected {} and {} for each pair", batch.text.size(),
         batch.codes.size(), config.text, config.image());
  }
  std::vector<std::int32_t> ids;
  ids.reserve(pairs * config.tokens());
  const auto add = [&](std::size_t id) { ids.push_back(static_cast<std::int32_t>(id)); };
  for (std::size_t b = 0; b < pairs; ++b) {
    bool has_ended = false;
    for (std::size_t t = 0; t < config.text; ++t) {
      const std::int32_t token = batch.text[b * config.text + t];
      if (token >= 0 && (has_ended || static_cast<std::size_t>(token) >= config.text_vocabulary)) {
        fail(ErrorKind::data, "token {} at position {} of a text; expected {}", token, t,
             has_ended ? "none after its end" : fmt::format("less than {}", config.text_vocabulary));
      }
      has_ended = token < 0;
      add(has_ended ? config.padding_id(t) : static_cast<std::size_t>(token));
    }
    for (std::size_t i = 0; i < config.image(); ++i) {
      const std::int32_t code = batch.codes[b * config.image() + i];
      if (code < 0 || static_cast<std::size_t>(code) >= config.codes) {
        fail(ErrorKind::data, "code {} of an image; expected 0 to {}", code, config.codes - 1);
      }
      add(config.code_id(static_cast<std::size_t>(code)));
    }
  }
  return ids;
}

Tensor dalle_input(nn::Engine& engine, const DalleConfig& config, const DalleBatch& batch) {
  const std::vector<std::int32_t> ids = inputs_of(config, batch);
  return engine.from(std::span<const std::int32_t>(ids), {ids.size() / config.tokens(), config.tokens()}, Use::data);
}

std::uint64_t text_tokens_of(const DalleConfig& config, std::span<const std::int32_t> text) {
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < text.size(); ++i) count += i % config.text != 0 && text[i] >= 0 ? 1 : 0;
  return count;
}

namespace {

constexpr std::uint64_t logits_bytes = 256 << 20;  // at once, about

// Hidden states of one kind of rows, and their losses.
class Rows {
 public:
  // Rows `first` .. `first + count - 1` of every sequence of hidden (B,T,C).
  Rows(nn::Engine& engine, const Tensor& hidden, std::size_t first, std::size_t count)
      : engine_(engine), pairs_(hidden.shape()[0]), count_(count) {
    const std::size_t tokens = hidden.shape()[1];
    std::vector<std::int32_t> rows;
    for (std::size_t b = 0; b < pairs_; ++b) {
      for (std::size_t i = 0; i < count; ++i) rows.push_back(static_cast<std::int32_t>(b * tokens + first + i));
    }
    const Tensor ids = engine.from(std::span<const std::int32_t>(rows), {rows.size()}, Use::data);
    hidden_ = engine.empty({rows.size(), hidden.shape()[2]}, hidden.dtype(), Use::activations);
    nn::gather(engine, hidden.reshaped({pairs_ * tokens, hidden.shape()[2]}), ids, hidden_);
  }

  // Losses (R) by targets (R). dhidden (R,C), if any, becomes the gradient of hidden.
  Tensor losses(const train::VocabularyHead& head, std::span<const std::int32_t> targets, double scale, Tensor* dhidden) {
    const std::size_t rows = targets.size();
    const Tensor wanted = engine_.from(targets, {rows}, Use::data);
    Tensor losses = engine_.empty({rows}, nn::parameter_type(hidden_.dtype()), Use::activations);
    const std::size_t at_once = std::clamp<std::size_t>(logits_bytes / sizeof(float) / head.columns(), 64, rows + 64);
    for (std::size_t begin = 0; begin < rows; begin += at_once) {
      const std::size_t end = std::min(rows, begin + at_once);
      const Tensor part = hidden_.slice(begin, end);
      Tensor logits = head.logits(engine_, part);
      Tensor dlogits = logits;
      if (dhidden != nullptr && logits.dtype() != part.dtype()) {
        dlogits = engine_.empty(logits.shape(), part.dtype(), Use::activations);
      }
      Tensor loss = losses.slice(begin, end);
      head.cross_entropy(engine_, logits, wanted.slice(begin, end), scale, loss, dhidden == nullptr ? nullptr : &dlogits);
      if (dhidden == nullptr) continue;
      logits = {};
      Tensor dpart = dhidden->slice(begin, end);
      head.backward(engine_, part, dlogits, dpart);
    }
    return losses;
  }

  std::vector<float> logits(const train::VocabularyHead& head) const {
    return nn::to_floats(engine_, head.logits(engine_, hidden_));
  }

  std::size_t size() const { return pairs_ * count_; }

 private:
  nn::Engine& engine_;
  std::size_t pairs_, count_;
  Tensor hidden_;
};

}  // namespace

DallePartLosses dalle_losses(nn::Engine& engine, Dalle& net, const Tensor& hidden, const DalleBatch& batch, double text_scale,
                             double image_scale, Tensor* dhidden) {
  const DalleConfig& config = net.config();
  const std::size_t pairs = hidden.shape()[0];
  const std::size_t width = config.width;
  std::vector<std::int32_t> next;  // text tokens but the first
  for (std::size_t b = 0; b < pairs; ++b) {
    const auto begin = batch.text.begin() + static_cast<std::ptrdiff_t>(b * config.text);
    next.insert(next.end(), begin + 1, begin + static_cast<std::ptrdiff_t>(config.text));
  }
  Rows text(engine, hidden, 0, config.text - 1);
  Rows image(engine, hidden, config.text - 1, config.image());
  // The gradients of both, and a row of zeros for the last token, which nothing is asked of.
  Tensor gradients;
  Tensor dtext, dimage;
  if (dhidden != nullptr) {
    const std::size_t rows = text.size() + image.size();
    gradients = engine.empty({rows + 1, width}, hidden.dtype(), Use::activations);
    dtext = gradients.slice(0, text.size());
    dimage = gradients.slice(text.size(), rows);
    Tensor zeros = gradients.slice(rows, rows + 1);
    nn::fill(engine, zeros, 0);
  }
  DallePartLosses losses;
  losses.text = text.losses(net.text_head(), next, text_scale, dhidden == nullptr ? nullptr : &dtext);
  losses.image = image.losses(net.code_head(), batch.codes, image_scale, dhidden == nullptr ? nullptr : &dimage);
  if (dhidden == nullptr) return losses;
  std::vector<std::int32_t> back;  // to the order of tokens
  const auto add = [&](std::size_t row) { back.push_back(static_cast<std::int32_t>(row)); };
  for (std::size_t b = 0; b < pairs; ++b) {
    for (std::size_t i = 0; i + 1 < config.text; ++i) add(b * (config.text - 1) + i);
    for (std::size_t i = 0; i < config.image(); ++i) add(text.size() + b * config.image() + i);
    add(text.size() + image.size());
  }
  const Tensor ids = engine.from(std::span<const std::int32_t>(back), {back.size()}, Use::data);
  Tensor flat = dhidden->reshaped({back.size(), width});
  nn::gather(engine, gradients, ids, flat);
  return losses;
}

Tensor dalle_hidden(nn::Engine& engine, Dalle& net, const DalleBatch& batch) {
  nn::Pass pass{engine};
  pass.training = false;
  return net.layers().forward(pass, dalle_input(engine, net.config(), batch));
}

DalleLogits dalle_logits(nn::Engine& engine, Dalle& net, const DalleBatch& batch) {
  const DalleConfig& config = net.config();
  const Tensor hidden = dalle_hidden(engine, net, batch);
  return {Rows(engine, hidden, 0, config.text - 1).logits(net.text_head()),
          Rows(engine, hidden, config.text - 1, config.image()).logits(net.code_head())};
}

DalleTask::DalleTask(Dalle& net, std::size_t pairs, Source source, Tokens tokens)
    : net_(net), pairs_(pairs), source_(std::move(source)), tokens_(std::move(tokens)) {
  if (pairs == 0) fail_field(ErrorKind::usage, "micro_batch", "0; expected at least 1");
}

double DalleTask::loss_cost() const { return net_.cost(pairs_) - net_.layers().cost(input_shape()); }

std::uint64_t DalleTask::targets(std::uint64_t /*step*/, std::size_t micro_batches) {
  return static_cast<std::uint64_t>(pairs_ * net_.config().image()) * micro_batches;
}

Tensor DalleTask::input(nn::Pass& pass) {
  DalleBatch batch = source_(pass.step, pass.micro_batch);
  Tensor ids = dalle_input(pass.engine, net_.config(), batch);
  batch_.put(pass, std::move(batch));
  return ids;
}

train::PartLoss DalleTask::loss(nn::Pass& pass, Tensor hidden, double scale, Tensor* dhidden) {
  std::optional<DalleBatch> batch = batch_.take(pass);
  if (!batch) batch = source_(pass.step, pass.micro_batch);
  nn::Engine& engine = pass.engine;
  if (dhidden != nullptr) *dhidden = engine.empty(hidden.shape(), hidden.dtype(), Use::activations);
  const DalleConfig& config = net_.config();
  const DalleTokens tokens = tokens_(pass.step);
  const double of_text =
      tokens.text == 0 ? 0 : text_share * static_cast<double>(tokens.image) / static_cast<double>(tokens.text);
  const double of_image = 1 - text_share;
  const DallePartLosses parts = dalle_losses(engine, net_, hidden, *batch, of_text * scale, of_image * scale, dhidden);
  Tensor all = engine.empty({parts.text.size() + parts.image.size()}, parts.text.dtype(), Use::activations);
  Tensor text = all.slice(0, parts.text.size());
  Tensor image = all.slice(parts.text.size(), all.size());
  nn::scale_add(engine, of_text, parts.text, 0, text);
  nn::scale_add(engine, of_image, parts.image, 0, image);
  return {all, static_cast<std::uint64_t>(pairs_ * config.image())};
}

}  // namespace bitloom::models
