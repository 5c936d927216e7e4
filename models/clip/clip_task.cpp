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

// Softmax of rows of logits, from row `first` of all on; adds the losses of the diagonal, halved.
Matrix softmax(const Matrix& logits, Eigen::Index first, std::vector<double>& losses) {
  Matrix result = (logits.colwise() - logits.rowwise().maxCoeff()).array().exp().matrix();
  const Eigen::VectorXd sums = result.rowwise().sum();
  result = sums.cwiseInverse().asDiagonal() * result;
  for (Eigen::Index i = 0; i < logits.rows(); ++i) {
    losses[static_cast<std::size_t>(first + i)] += 0.5 * (std::log(sums(i)) + logits.row(i).maxCoeff() - logits(i, first + i));
  }
  return result;
}

// Adds half the losses of rows, each to be told from all others by its own column; of a block of rows at a time.
void add_half_losses(const Matrix& rows, const Matrix& columns, double factor, const std::function<void()>& alive,
                     std::vector<double>& losses) {
  constexpr Eigen::Index at_once = 64;
  for (Eigen::Index first = 0; first < rows.rows(); first += at_once) {
    const Eigen::Index count = std::min(at_once, rows.rows() - first);
    const Matrix logits = factor * (rows.middleRows(first, count) * columns.transpose());
    softmax(logits, first, losses);
    if (alive) alive();
  }
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
  const Matrix of_images = softmax(logits, 0, loss.losses);
  const Matrix of_texts = softmax(Matrix(logits.transpose()), 0, loss.losses);
  if (!backward) return loss;
  Matrix dlogits = 0.5 * scale * (of_images + of_texts.transpose());
  dlogits.diagonal().array() -= scale;
  loss.dlog_scale = dlogits.cwiseProduct(logits).sum();
  loss.dimages = through_norm(u, image_lengths, factor * dlogits * w);
  loss.dtexts = through_norm(w, text_lengths, factor * dlogits.transpose() * u);
  return loss;
}

std::vector<double> clip_losses(const std::vector<double>& images, const std::vector<double>& texts, std::size_t embedding,
                                double log_scale, const std::function<void()>& alive) {
  Eigen::VectorXd lengths;
  const Matrix u = normalised(images, embedding, lengths);
  const Matrix w = normalised(texts, embedding, lengths);
  std::vector<double> losses(images.size() / embedding);
  add_half_losses(u, w, std::exp(log_scale), alive, losses);
  add_half_losses(w, u, std::exp(log_scale), alive, losses);
  return losses;
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
