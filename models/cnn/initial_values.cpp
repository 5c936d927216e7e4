#include "models/cnn/initial_values.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "models/cnn/model_file.h"
#include "nn/floats.h"

namespace bitloom::models {
namespace {

constexpr std::size_t most_images = 5000;
constexpr double whitening_epsilon = 5e-4;

}  // namespace

std::vector<float> whitening_kernels(const data::Dataset& images, const PixelScale& scale, std::size_t k) {
  const data::ImageShape& shape = images.shape;
  if (shape.height < k || shape.width < k) {
    fail(ErrorKind::usage, "whitening: patches of {} x {} in images of {} x {} pixels", k, k, shape.height, shape.width);
  }
  const std::size_t patch = shape.channels * k * k;
  const auto taps = static_cast<Eigen::Index>(patch);
  const std::size_t patches_per_image = (shape.height - k + 1) * (shape.width - k + 1);
  Eigen::MatrixXd products = Eigen::MatrixXd::Zero(taps, taps);
  Eigen::VectorXd sums = Eigen::VectorXd::Zero(taps);
  Eigen::MatrixXd rows(taps, static_cast<Eigen::Index>(patches_per_image));
  std::vector<std::uint8_t> room;
  const std::size_t count = std::min(most_images, images.size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::span<const std::uint8_t> image = images.image(i, room);
    Eigen::Index column = 0;
    for (std::size_t y = 0; y + k <= shape.height; ++y) {
      for (std::size_t x = 0; x + k <= shape.width; ++x, ++column) {
        for (std::size_t tap = 0; tap < patch; ++tap) {
          const std::size_t c = tap / (k * k);
          const std::size_t at = (c * shape.height + y + tap / k % k) * shape.width + x + tap % k;
          rows(static_cast<Eigen::Index>(tap), column) =
              (static_cast<double>(image[at]) - static_cast<double>(scale.mean[c])) / static_cast<double>(scale.deviation[c]);
        }
      }
    }
    products += rows * rows.transpose();
    sums += rows.rowwise().sum();
  }
  images.check_reads();
  const auto samples = static_cast<double>(std::max<std::size_t>(2, count * patches_per_image));
  const Eigen::MatrixXd covariance = (products - sums * sums.transpose() / samples) / (samples - 1);
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(covariance);
  std::vector<float> kernels(2 * patch * patch);
  for (Eigen::Index i = 0; i < taps; ++i) {  // eigenvalues ascend
    Eigen::VectorXd vector = solver.eigenvectors().col(taps - 1 - i);
    Eigen::Index largest = 0;
    vector.cwiseAbs().maxCoeff(&largest);
    if (vector(largest) < 0) vector = -vector;
    vector /= std::sqrt(std::max(0.0, solver.eigenvalues()(taps - 1 - i)) + whitening_epsilon);
    for (Eigen::Index tap = 0; tap < taps; ++tap) {
      const auto value = static_cast<float>(vector(tap));
      kernels[static_cast<std::size_t>(i * taps + tap)] = value;
      kernels[static_cast<std::size_t>((taps + i) * taps + tap)] = -value;
    }
  }
  return kernels;
}

TensorFile initial_values(nn::Engine& engine, const CnnConfig& config, const data::Dataset& images, const PixelScale& scale,
                          std::uint64_t seed) {
  Cnn net(config);
  nn::initialise(engine, nn::parameters_of(*net.layers), DType::f32, seed);
  write_initial_values(engine, net, images, scale);
  return save_cnn(engine, net, DType::f32, {config, scale, {}});
}

void write_initial_values(nn::Engine& engine, Cnn& net, const data::Dataset& images, const PixelScale& scale) {
  if (net.whitening != nullptr) {
    nn::write_floats(engine, net.whitening->value, whitening_kernels(images, scale, net.whitening->shape[3]));
  }
  for (nn::Parameter* parameter : net.identities) {
    const nn::Shape& shape = parameter->shape;  // (O,I,KY,KX)
    const std::size_t pixels = shape[2] * shape[3];
    std::vector<float> values = nn::to_floats(engine, parameter->value);
    for (std::size_t o = 0; o < std::min(shape[0], shape[1]); ++o) {
      float* kernel = values.data() + o * shape[1] * pixels;
      std::fill_n(kernel, shape[1] * pixels, 0.0F);
      kernel[o * pixels + shape[2] / 2 * shape[3] + shape[3] / 2] = 1;
    }
    nn::write_floats(engine, parameter->value, values);
  }
  nn::refresh_copies(engine, nn::parameters_of(*net.layers));
}

}  // namespace bitloom::models
