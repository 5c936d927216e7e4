#include "models/clip/clip_task.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "nn/floats.h"

namespace bitloom::models {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Rows are divided by their lengths, which are given; a row of zeros stays.
Matrix normalised(const std::vector<double>& rows, std::size_t columns, Eigen::VectorXd& lengths) {
  const auto count = static_cast<Eigen::Index>(rows.size() / columns);
  Matrix matrix = Eigen::Map<const Matrix>(rows.data(), count, static_cast<Eigen::Index>(columns));
  lengths = matrix.rowwise().norm().cwiseMax(1e-12);
  matrix = lengths.cwiseInverse().asDiagonal() * matrix;
  return matrix;
}

// The gradient by rows of that by their directions.
std::vector<double> through_norm(const Matrix& directions, const Eigen::VectorXd& lengths, const Matrix& gradient) {
  const Eigen::VectorXd along = directions.cwiseProduct(gradient).rowwise().sum();
  const Matrix result = lengths.cwiseInverse().asDiagonal() * (gradient - along.asDiagonal() * directions);
  return {result.data(), result.data() + result.size()};
}

// Softmax of each row; adds the loss of the diagonal, halved.
Matrix softmax(const Matrix& logits, std::vector<double>& losses) {
  Matrix result = (logits.colwise() - logits.rowwise().maxCoeff()).array().exp().matrix();
  const Eigen::VectorXd sums = result.rowwise().sum();
  result = sums.cwiseInverse().asDiagonal() * result;
  for (Eigen::Index i = 0; i < logits.rows(); ++i) {
    losses[static_cast<std::size_t>(i)] += 0.5 * (std::log(sums(i)) + logits.row(i).maxCoeff() - logits(i, i));
  }
  return result;
}

void write(nn::Engine& engine, nn::Tensor& tensor, const std::vector<double>& values) {
  if (tensor.dtype() == DType::f64) return engine.write(tensor, std::as_bytes(std::span(values)));
  nn::write_floats(engine, tensor, std::vector<float>(values.begin(), values.end()));
}

}  // namespace

ClipLoss clip_loss(const std::vector<double>& images, const std::vector<double>& texts, std::size_t embedding, double log_scale,
                   double scale, bool backward) {
  const std::size_t pairs = images.size() / embedding;
  Eigen::VectorXd image_lengths;
  Eigen::VectorXd text_lengths;
  const Matrix u = normalised(images, embedding, image_lengths);
  const Matrix w = normalised(texts, embedding, text_lengths);
  const double factor = std::exp(log_scale);
  const Matrix logits = factor * (u * w.transpose());
  ClipLoss loss;
  loss.losses.resize(pairs);
  const Matrix of_images = softmax(logits, loss.losses);
  const Matrix of_texts = softmax(Matrix(logits.transpose()), loss.losses);
  if (!backward) return loss;
  Matrix dlogits = 0.5 * scale * (of_images + of_texts.transpose());
  dlogits.diagonal().array() -= scale;
  loss.dlog_scale = dlogits.cwiseProduct(logits).sum();
  loss.dimages = through_norm(u, image_lengths, factor * dlogits * w);
  loss.dtexts = through_norm(w, text_lengths, factor * dlogits.transpose() * u);
  return loss;
}

double clip_factor(nn::Engine& engine, ClipTowers& towers) {
  return std::exp(std::min(nn::to_doubles(engine, towers.log_scale().value).front(), largest_log_scale));
}

ClipTask::ClipTask(nn::Engine& engine, std::shared_ptr<nn::Sequence> net, ClipTowers& towers, std::size_t pairs, DType values,
                   Source source)
    : engine_(engine), net_(std::move(net)), towers_(towers), pairs_(pairs), values_(values), source_(std::move(source)) {
  if (pairs < 2) fail_field(ErrorKind::usage, "micro_batch", "{}; expected at least 2 pairs, one to tell from another", pairs);
}

nn::Shape ClipTask::input_shape() const {
  const data::ImageShape& image = towers_.config().image.image;
  return {pairs_, image.height, image.width, image.channels};
}

std::uint64_t ClipTask::targets(std::uint64_t /*step*/, std::size_t micro_batches) { return pairs_ * micro_batches; }

nn::Tensor ClipTask::input(nn::Pass& pass) {
  const ClipBatch batch = source_(pass.step, pass.micro_batch);
  towers_.set_texts(engine_.from(std::span<const std::int32_t>(batch.texts), {pairs_, towers_.config().text}, nn::Use::data));
  return nn::from_floats(engine_, batch.images, input_shape(), values_, nn::Use::data);
}

train::PartLoss ClipTask::loss(nn::Pass& /*pass*/, nn::Tensor y, double scale, nn::Tensor* dy) {
  nn::Parameter& parameter = towers_.log_scale();
  const double log_scale = nn::to_doubles(engine_, parameter.value).front();
  const std::vector<double> all = nn::to_doubles(engine_, y);
  const auto half = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  const ClipLoss loss = clip_loss({all.begin(), half}, {half, all.end()}, towers_.config().embedding(),
                                  std::min(log_scale, largest_log_scale), scale, dy != nullptr);
  if (dy != nullptr) {
    std::vector<double> gradient = loss.dimages;
    gradient.insert(gradient.end(), loss.dtexts.begin(), loss.dtexts.end());
    *dy = engine_.empty(y.shape(), y.dtype(), nn::Use::activations);
    write(engine_, *dy, gradient);
    const double before = nn::to_doubles(engine_, parameter.gradient).front();
    // At the limit it may only fall.
    const double change = log_scale < largest_log_scale ? loss.dlog_scale : std::max(loss.dlog_scale, 0.0);
    write(engine_, parameter.gradient, {before + change});
  }
  nn::Tensor losses = engine_.empty({pairs_}, nn::parameter_type(y.dtype()), nn::Use::activations);
  write(engine_, losses, loss.losses);
  return {losses, pairs_};
}

}  // namespace bitloom::models
