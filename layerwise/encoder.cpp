#include "layerwise/encoder.h"

// Products of matrices are sums of floats: how they are divided among threads must not show.
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/random.h"

namespace bitloom::layerwise {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr std::size_t feature_multiple = 32;  // so that two bits per feature fill words
constexpr std::size_t fit_patches = 60000;
constexpr int fit_rounds = 12;
constexpr float filter_scale = 2047;  // largest integer tap; sums over 255 x 15 x 15 x 3 of them stay within 32 bits

std::size_t clamp_index(std::ptrdiff_t i, std::size_t size) {
  return static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(i, 0, static_cast<std::ptrdiff_t>(size) - 1));
}

// The patch around pixel (y, x), taps in the order row, column, colour.
template <typename T>
void read_patch(const std::uint8_t* image, const data::ImageShape& shape, std::size_t patch, std::size_t y, std::size_t x,
                T* out) {
  const auto half = static_cast<std::ptrdiff_t>(patch / 2);
  for (std::ptrdiff_t dy = -half; dy <= half; ++dy) {
    const std::size_t row = clamp_index(static_cast<std::ptrdiff_t>(y) + dy, shape.height);
    for (std::ptrdiff_t dx = -half; dx <= half; ++dx) {
      const std::size_t column = clamp_index(static_cast<std::ptrdiff_t>(x) + dx, shape.width);
      for (std::size_t c = 0; c < shape.channels; ++c) {
        *out++ = static_cast<T>(image[(c * shape.height + row) * shape.width + column]);
      }
    }
  }
}

// By what the responses of a patch are multiplied (encoder.h); `sum` and `squares` are over its taps.
float patch_gain(std::int32_t sum, std::int64_t squares, std::size_t taps, float contrast) {
  const auto n = static_cast<double>(taps);
  const double mean = static_cast<double>(sum) / n;
  const double variance = static_cast<double>(squares) / n - mean * mean;
  const double floor = static_cast<double>(contrast) * static_cast<double>(contrast);
  return static_cast<float>(static_cast<double>(contrast) / std::sqrt(std::max(variance, 0.0) + floor));
}

Matrix sample_patches(const data::Dataset& train, std::size_t patch, std::uint64_t seed) {
  const std::size_t taps = patch * patch * train.shape.channels;
  Matrix patches(static_cast<Eigen::Index>(fit_patches), static_cast<Eigen::Index>(taps));
  std::vector<std::uint8_t> room;
  for (std::size_t i = 0; i < fit_patches; ++i) {
    Random random(seed, Stream::encoder_fit, i);
    const std::size_t image = random.below(static_cast<std::uint32_t>(train.size()));
    const std::size_t y = random.below(static_cast<std::uint32_t>(train.shape.height));
    const std::size_t x = random.below(static_cast<std::uint32_t>(train.shape.width));
    read_patch(train.image(image, room).data(), train.shape, patch, y, x, patches.data() + i * taps);
  }
  train.check_reads();
  return patches;
}

// Rows of length 1; rows that are nearly 0 stay 0.
void normalise_rows(Matrix& rows) {
  for (Eigen::Index i = 0; i < rows.rows(); ++i) {
    const float norm = rows.row(i).norm();
    rows.row(i) *= norm > 1e-6F ? 1.0F / norm : 0.0F;
  }
}

// Nor how large this machine's caches are, by which Eigen divides them otherwise.
void fix_blocking() { Eigen::setCpuCacheSizes(32 * 1024, 512 * 1024, 4 * 1024 * 1024); }

// Filters in pixel space: k-means directions times the whitening matrix.
Matrix fit_whitened(const Matrix& patches, std::size_t filters, double epsilon, std::uint64_t seed) {
  fix_blocking();
  const Eigen::RowVectorXf mean = patches.colwise().mean();
  const Matrix centred = (patches.rowwise() - mean) / 64.0F;
  const Eigen::MatrixXf covariance = centred.transpose() * centred / static_cast<float>(centred.rows());
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXf> solver(covariance);
  // One by one: Eigen's rsqrt() begins with an instruction of which every maker's processors have another result.
  Eigen::VectorXf gains(solver.eigenvalues().size());
  for (Eigen::Index i = 0; i < gains.size(); ++i) {
    // An eigenvalue of 0 may come out a little below.
    const double variance = std::max(static_cast<double>(solver.eigenvalues()[i]) + epsilon, 0.5 * epsilon);
    gains[i] = static_cast<float>(1 / std::sqrt(variance));
  }
  const Eigen::MatrixXf whitening = solver.eigenvectors() * gains.asDiagonal() * solver.eigenvectors().transpose();
  Matrix points = centred * whitening;
  normalise_rows(points);

  Matrix centres(static_cast<Eigen::Index>(filters), points.cols());
  Random random(seed, Stream::encoder_fit, fit_patches + 1);
  for (Eigen::Index k = 0; k < centres.rows(); ++k)
    centres.row(k) = points.row(random.below(static_cast<std::uint32_t>(points.rows())));
  for (int round = 0; round < fit_rounds; ++round) {
    const Matrix similarity = points * centres.transpose();
    Matrix sums = Matrix::Zero(centres.rows(), centres.cols());
    for (Eigen::Index i = 0; i < points.rows(); ++i) {
      Eigen::Index best = 0;
      similarity.row(i).maxCoeff(&best);
      sums.row(best) += similarity(i, best) * points.row(i);
    }
    for (Eigen::Index k = 0; k < centres.rows(); ++k) {
      // An empty cluster starts again from a patch.
      if (sums.row(k).squaredNorm() == 0) sums.row(k) = points.row(random.below(static_cast<std::uint32_t>(points.rows())));
    }
    normalise_rows(sums);
    centres = sums;
  }
  return centres * whitening;
}

}  // namespace

Encoder Encoder::fit(const EncoderSpec& spec, const data::Dataset& train, std::uint64_t seed) {
  if (train.size() == 0) fail(ErrorKind::data, "data set '{}' has no training images to fit the encoder on", train.name);
  Encoder encoder;
  encoder.shape_ = train.shape;
  encoder.patch_ = spec.kind == "thermometer" ? 1 : spec.patch;
  if (encoder.patch_ > std::min(train.shape.height, train.shape.width)) {
    fail(ErrorKind::usage, "encoder.patch: {} is larger than the images of {}x{} pixels", spec.patch, train.shape.height,
         train.shape.width);
  }
  const std::size_t used = spec.kind == "thermometer" ? train.shape.channels * ((spec.levels + 1) / 2) : spec.filters;
  encoder.features_ = (used + feature_multiple - 1) / feature_multiple * feature_multiple;
  const std::size_t taps = encoder.taps();
  encoder.filters_.assign(encoder.features_ * taps, 0);
  encoder.thresholds_.assign(encoder.features_ * 2, 0);
  for (std::size_t f = used; f < encoder.features_; ++f) {
    encoder.thresholds_[2 * f] = std::numeric_limits<std::int32_t>::max();
    encoder.thresholds_[2 * f + 1] = std::numeric_limits<std::int32_t>::min();
  }
  if (spec.kind == "thermometer") {
    // Level l of n stands at 256 (l + 1) / (n + 1); a feature holds two of them: "at or above" the upper, "at or below" the
    // one under it.
    for (std::size_t f = 0; f < used; ++f) {
      const std::size_t level = f / train.shape.channels * 2;
      encoder.filters_[f * taps + f % train.shape.channels] = 1;
      encoder.thresholds_[2 * f] = static_cast<std::int32_t>(256 * (level + 1) / (spec.levels + 1));
      const bool second = level + 1 < spec.levels;
      encoder.thresholds_[2 * f + 1] = second ? static_cast<std::int32_t>(256 * (level + 2) / (spec.levels + 1)) : -1;
    }
    encoder.pack();
    return encoder;
  }

  const Matrix patches = sample_patches(train, spec.patch, seed);
  encoder.contrast_ = taps > 1 ? static_cast<float>(spec.contrast) : 0.0F;
  std::vector<float> gains(fit_patches, 1.0F);
  Matrix points = patches;
  if (encoder.contrast_ > 0) {
    for (std::size_t i = 0; i < fit_patches; ++i) {
      auto row = points.row(static_cast<Eigen::Index>(i));
      const double sum = row.cast<double>().sum();
      const double squares = row.cast<double>().squaredNorm();
      gains[i] = patch_gain(static_cast<std::int32_t>(sum), static_cast<std::int64_t>(squares), taps, encoder.contrast_);
      // On the scale of fit_whitened's pixels / 64.
      row = (row.array() - static_cast<float>(sum / static_cast<double>(taps))) * (gains[i] * 64.0F / encoder.contrast_);
    }
  }
  const Matrix filters = fit_whitened(points, spec.filters, spec.epsilon, seed);
  std::vector<std::int16_t> pixels(fit_patches * taps);
  std::transform(patches.data(), patches.data() + pixels.size(), pixels.begin(),
                 [](float pixel) { return static_cast<std::int16_t>(pixel); });
  std::vector<std::int32_t> responses(fit_patches);
  for (std::size_t f = 0; f < used; ++f) {
    const auto row = filters.row(static_cast<Eigen::Index>(f));
    const float scale = filter_scale / std::max(row.cwiseAbs().maxCoeff(), 1e-6F);
    std::int16_t* taps_f = encoder.filters_.data() + f * taps;
    for (std::size_t t = 0; t < taps; ++t)
      taps_f[t] = static_cast<std::int16_t>(std::lround(row(static_cast<Eigen::Index>(t)) * scale));
    for (std::size_t i = 0; i < fit_patches; ++i) {
      const std::int16_t* const patch = pixels.data() + i * taps;
      std::int32_t sum = 0;
      for (std::size_t t = 0; t < taps; ++t) sum += taps_f[t] * patch[t];
      responses[i] = encoder.contrast_ > 0 ? static_cast<std::int32_t>(static_cast<float>(sum) * gains[i]) : sum;
    }
    const auto quarter = static_cast<std::ptrdiff_t>(fit_patches / 4);
    std::nth_element(responses.begin(), responses.begin() + quarter, responses.end());
    encoder.thresholds_[2 * f + 1] = responses[fit_patches / 4];
    std::nth_element(responses.begin(), responses.end() - quarter, responses.end());
    encoder.thresholds_[2 * f] = responses[fit_patches - fit_patches / 4];
  }
  encoder.pack();
  return encoder;
}

// As gemm_s16 reads them.
void Encoder::pack() {
  pairs_ = Buffer<std::int16_t>(depth() * features_);
  for (std::size_t t = 0; t < taps(); ++t) {
    for (std::size_t f = 0; f < features_; ++f) pairs_[t / 2 * 2 * features_ + 2 * f + t % 2] = filters_[f * taps() + t];
  }
}

// The image with its edge repeated, colours interleaved.
void Encoder::pad(const std::uint8_t* image, EncodeScratch& scratch) const {
  const std::size_t half = patch_ / 2;
  const std::size_t colours = shape_.channels;
  const std::size_t pitch = padded_width() * colours;
  scratch.pixels.resize(padded_height() * pitch);
  for (std::size_t y = 0; y < padded_height(); ++y) {
    const std::size_t row = clamp_index(static_cast<std::ptrdiff_t>(y) - static_cast<std::ptrdiff_t>(half), shape_.height);
    for (std::size_t c = 0; c < colours; ++c) {
      const std::uint8_t* source = image + (c * shape_.height + row) * shape_.width;
      std::int16_t* out = scratch.pixels.data() + y * pitch + c;
      for (std::size_t x = 0; x < half; ++x) out[x * colours] = source[0];
      for (std::size_t x = 0; x < shape_.width; ++x) out[(half + x) * colours] = source[x];
      for (std::size_t x = half + shape_.width; x < padded_width(); ++x) out[x * colours] = source[shape_.width - 1];
    }
  }
}

// Sums over colours, and of squares, per pixel of the padded image: patches share them.
void Encoder::sum_colours(EncodeScratch& scratch) const {
  const std::size_t colours = shape_.channels;
  const std::size_t pixels = padded_height() * padded_width();
  scratch.sums.assign(pixels, 0);
  scratch.squares.assign(pixels, 0);
  for (std::size_t p = 0; p < pixels; ++p) {
    for (std::size_t c = 0; c < colours; ++c) {
      const std::int32_t value = scratch.pixels[p * colours + c];
      scratch.sums[p] += value;
      scratch.squares[p] += value * value;
    }
  }
}

// Multiplies the responses at these pixels of image row y by the gains of their patches.
void Encoder::normalise(std::size_t y, Range columns, EncodeScratch& scratch) const {
  const std::size_t width = padded_width();
  scratch.column_sums.assign(width, 0);
  scratch.column_squares.assign(width, 0);
  for (std::size_t r = 0; r < patch_; ++r) {
    for (std::size_t x = columns.begin; x + 1 < columns.end + patch_; ++x) {
      scratch.column_sums[x] += scratch.sums[(y + r) * width + x];
      scratch.column_squares[x] += scratch.squares[(y + r) * width + x];
    }
  }
  std::int32_t* values = scratch.values.data();
  for (std::size_t x = columns.begin; x < columns.end; ++x, values += features_) {
    std::int32_t sum = 0;
    std::int32_t squares = 0;
    for (std::size_t d = 0; d < patch_; ++d) {
      sum += scratch.column_sums[x + d];
      squares += scratch.column_squares[x + d];
    }
    const float gain = patch_gain(sum, squares, taps(), contrast_);
    for (std::size_t f = 0; f < features_; ++f) values[f] = static_cast<std::int32_t>(static_cast<float>(values[f]) * gain);
  }
}

void Encoder::read_image(const std::uint8_t* image, EncodeScratch& scratch) const {
  pad(image, scratch);
  if (contrast_ > 0) sum_colours(scratch);
}

// These pixels of image row y, of the image that was read. One row at a time, so that its responses stay in the first-level
// cache.
void Encoder::encode_row(const simd::Kernels& kernels, std::size_t y, Range columns, std::uint64_t* bits,
                         EncodeScratch& scratch) const {
  const std::size_t count = columns.size();
  if (count == 0) return;
  const std::size_t colours = shape_.channels;
  const std::size_t pitch = padded_width() * colours;
  const std::size_t run = patch_ * colours;
  scratch.patches.resize(count * depth());
  std::int16_t* patch = scratch.patches.data();
  for (std::size_t x = columns.begin; x < columns.end; ++x) {
    for (std::size_t r = 0; r < patch_; ++r)
      patch = std::copy_n(scratch.pixels.data() + (y + r) * pitch + x * colours, run, patch);
    patch = std::fill_n(patch, depth() - taps(), std::int16_t{0});
  }
  scratch.values.assign(count * features_, 0);
  kernels.gemm_s16(count, features_, depth(), scratch.patches.data(), depth(), pairs_.data(), scratch.values.data(), features_);
  if (contrast_ > 0) normalise(y, columns, scratch);
  kernels.threshold_pack(scratch.values.data(), count, features_, thresholds_.data(),
                         bits + y * output().pitch() + columns.begin * output().words());
}

void Encoder::encode(const simd::Kernels& kernels, const std::uint8_t* image, std::uint64_t* bits,
                     EncodeScratch& scratch) const {
  read_image(image, scratch);
  for (std::size_t y = 0; y < shape_.height; ++y) encode_row(kernels, y, {0, shape_.width}, bits, scratch);
}

Encoder::Range Encoder::inner(std::size_t size, int move) const {
  const auto n = static_cast<std::ptrdiff_t>(size);
  const auto half = static_cast<std::ptrdiff_t>(patch_ / 2);
  const std::ptrdiff_t begin = std::min(n, half + std::max(0, -move));
  const std::ptrdiff_t end = std::max(begin, n - half - std::max(0, move));
  return {static_cast<std::size_t>(begin), static_cast<std::size_t>(end)};
}

void Encoder::encode_moved(const simd::Kernels& kernels, const std::uint8_t* image, const std::uint64_t* unmoved, int down,
                           int across, std::uint64_t* bits, EncodeScratch& scratch) const {
  read_image(image, scratch);
  const MapShape map = output();
  const Range rows = inner(shape_.height, down);
  const Range columns = inner(shape_.width, across);
  for (std::size_t y = 0; y < shape_.height; ++y) {
    if (y < rows.begin || y >= rows.end) {
      encode_row(kernels, y, {0, shape_.width}, bits, scratch);
      continue;
    }
    encode_row(kernels, y, {0, columns.begin}, bits, scratch);
    const std::ptrdiff_t from =
        (static_cast<std::ptrdiff_t>(y) + down) * static_cast<std::ptrdiff_t>(map.pitch()) +
        (static_cast<std::ptrdiff_t>(columns.begin) + across) * static_cast<std::ptrdiff_t>(map.words());
    std::copy_n(unmoved + from, columns.size() * map.words(), bits + y * map.pitch() + columns.begin * map.words());
    encode_row(kernels, y, {columns.end, shape_.width}, bits, scratch);
  }
}

void Encoder::save(TensorFile& file) const {
  file.put("encoder.filters", {features_, patch_, patch_, shape_.channels}, filters_);
  file.put("encoder.thresholds", {features_, 2}, thresholds_);
  const std::vector<std::uint32_t> shape = {static_cast<std::uint32_t>(shape_.height), static_cast<std::uint32_t>(shape_.width),
                                            static_cast<std::uint32_t>(shape_.channels)};
  file.put("encoder.image_shape", {3}, shape);
  if (contrast_ > 0) file.put("encoder.contrast", {1}, std::vector<float>{contrast_});
}

Encoder Encoder::load(const TensorFile& file) {
  Encoder encoder;
  const auto shape = file.get("encoder.image_shape", DType::u32, {3}).as<std::uint32_t>();
  encoder.shape_ = {shape[0], shape[1], shape[2]};
  if (encoder.shape_.size() == 0) fail(ErrorKind::data, "encoder.image_shape: {} x {} x {}", shape[0], shape[1], shape[2]);
  const Tensor& filters = file.get("encoder.filters");
  if (filters.shape.size() != 4 || filters.shape[0] % feature_multiple != 0 || filters.shape[1] != filters.shape[2] ||
      filters.shape[1] % 2 == 0 || filters.shape[3] != encoder.shape_.channels || filters.shape[0] == 0) {
    fail(ErrorKind::data, "encoder.filters: expected (32 n, odd p, p, {}) elements", encoder.shape_.channels);
  }
  encoder.features_ = filters.shape[0];
  encoder.patch_ = filters.shape[1];
  const auto taps = filters.as<std::int16_t>();
  encoder.filters_.assign(taps.begin(), taps.end());
  const auto thresholds = file.get("encoder.thresholds", DType::i32, {encoder.features_, 2}).as<std::int32_t>();
  encoder.thresholds_.assign(thresholds.begin(), thresholds.end());
  if (file.tensors.contains("encoder.contrast")) {
    encoder.contrast_ = file.get("encoder.contrast", DType::f32, {1}).as<float>()[0];
    if (!(encoder.contrast_ > 0 && std::isfinite(encoder.contrast_))) {
      fail(ErrorKind::data, "encoder.contrast: {}; expected a finite number above 0", encoder.contrast_);
    }
  }
  encoder.pack();
  return encoder;
}

}  // namespace bitloom::layerwise
