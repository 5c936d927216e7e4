// How a head is stored: integers for inference, of few bits once round_weights() made them so; with the training state also
// float masters and Adam moments.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "layerwise/head.h"
#include "layerwise/rounded_weights.h"

namespace bitloom::layerwise {
namespace {

template <typename T>
void read(const TensorFile& file, const std::string& name, std::vector<T>& values) {
  const auto stored = file.get(name, dtype_of<T>(), {values.size()}).template as<T>();
  values.assign(stored.begin(), stored.end());
}

void save_parameter(TensorFile& file, const std::string& name, const AdamParameter& parameter) {
  file.put(name + ".value", {parameter.value.size()}, parameter.value);
  file.put(name + ".first", {parameter.mean.size()}, parameter.mean);
  file.put(name + ".second", {parameter.variance.size()}, parameter.variance);
}

void load_parameter(const TensorFile& file, const std::string& name, AdamParameter& parameter) {
  read(file, name + ".value", parameter.value);
  read(file, name + ".first", parameter.mean);
  read(file, name + ".second", parameter.variance);
}

}  // namespace

void Head::round_weights(std::size_t bits) {
  if (bits == 16 || bits == weight_bits_) return;
  const auto round = [&](std::vector<std::int16_t>& weights, std::size_t rows, AdamParameter& parameter) {
    round_rows(weights, rows, bits);
    for (std::size_t k = 0; k < weights.size(); ++k) parameter.value[k] = static_cast<float>(weights[k]) / weight_steps;
  };
  if (!binary_) round(linear_q_, classes_, linear_);
  if (has_hidden_) {
    round(input_q_, hidden_, input_);
    round(output_q_, classes_, output_);
  }
  weight_bits_ = bits;
  quantise();
}

void Head::save(TensorFile& file, const std::string& prefix, bool training) const {
  const auto put_matrix = [&](const std::string& name, const std::vector<std::int16_t>& weights, std::size_t rows) {
    if (weight_bits_ != 16) return put_rounded(file, prefix + name, weights, rows, weight_bits_);
    file.put(prefix + name, {rows, weights.size() / rows}, weights);
  };
  file.put(prefix + ".centre", {features()}, centre_);
  file.put(prefix + ".scale", {1}, std::vector<float>{scale_});
  file.put(prefix + ".linear_bias", {classes_}, linear_bias_.value);
  if (binary_) {
    // The sign of each weight, one bit, and the size that all share.
    std::vector<std::uint64_t> signs(classes_ * words_for(features()), 0);
    for (std::size_t l = 0; l < classes_; ++l) {
      for (std::size_t k = 0; k < features(); ++k) {
        set_bit(signs.data() + l * words_for(features()), k, linear_.value[l * features() + k] < 0);
      }
    }
    file.put(prefix + ".class_conv", {classes_, words_for(features())}, signs);
    file.put(prefix + ".gain", {1}, gain_.value);
  } else {
    put_matrix(".linear", linear_q_, classes_);
  }
  if (has_hidden_) {
    put_matrix(".input", input_q_, hidden_);
    file.put(prefix + ".input_bias", {hidden_}, input_bias_.value);
    put_matrix(".output", output_q_, classes_);
  }
  if (!training) return;
  file.put(prefix + ".train.mean", {mean_.size()}, mean_);
  file.put(prefix + ".train.mean_square", {1}, std::vector<double>{mean_square_});
  file.put(prefix + ".train.steps", {2}, std::vector<std::uint64_t>{observations_, steps_});
  save_parameter(file, prefix + ".train.linear", linear_);
  save_parameter(file, prefix + ".train.linear_bias", linear_bias_);
  save_parameter(file, prefix + ".train.gain", gain_);
  save_parameter(file, prefix + ".train.input", input_);
  save_parameter(file, prefix + ".train.input_bias", input_bias_);
  save_parameter(file, prefix + ".train.output", output_);
}

void Head::load(const TensorFile& file, const std::string& prefix, bool training) {
  const auto read_matrix = [&](const std::string& name, std::size_t rows, std::size_t columns, std::vector<std::int16_t>& steps,
                               AdamParameter& parameter) {
    if (weight_bits_ != 16) {
      steps = get_rounded(file, prefix + name, rows, columns, weight_bits_);
    } else {
      const auto stored = file.get(prefix + name, DType::i16, {rows, columns}).as<std::int16_t>();
      steps.assign(stored.begin(), stored.end());
    }
    for (std::size_t k = 0; k < steps.size(); ++k) parameter.value[k] = static_cast<float>(steps[k]) / weight_steps;
  };
  weight_bits_ = stored_bits(file, prefix + ".linear");
  std::vector<float> scale(1);
  read(file, prefix + ".centre", centre_);
  read(file, prefix + ".scale", scale);
  read(file, prefix + ".linear_bias", linear_bias_.value);
  scale_ = scale[0];
  if (!std::isfinite(scale_)) fail(ErrorKind::data, "{}.scale: {} is not a finite number", prefix, scale_);
  if (binary_) {
    const std::size_t words = words_for(features());
    const auto signs = file.get(prefix + ".class_conv", DType::u64, {classes_, words}).as<std::uint64_t>();
    for (std::size_t l = 0; l < classes_; ++l) {
      for (std::size_t k = 0; k < features(); ++k) {
        linear_.value[l * features() + k] = get_bit(signs.data() + l * words, k) ? -1.0F : 1.0F;
      }
    }
    read(file, prefix + ".gain", gain_.value);
  } else {
    read_matrix(".linear", classes_, features(), linear_q_, linear_);
  }
  if (has_hidden_) {
    read_matrix(".input", hidden_, channels_, input_q_, input_);
    read(file, prefix + ".input_bias", input_bias_.value);
    read_matrix(".output", classes_, regions_ * hidden_, output_q_, output_);
  }
  if (training) {
    std::vector<double> mean_square(1);
    std::vector<std::uint64_t> steps(2);
    read(file, prefix + ".train.mean", mean_);
    read(file, prefix + ".train.mean_square", mean_square);
    read(file, prefix + ".train.steps", steps);
    mean_square_ = mean_square[0];
    observations_ = steps[0];
    steps_ = steps[1];
    load_parameter(file, prefix + ".train.linear", linear_);
    load_parameter(file, prefix + ".train.linear_bias", linear_bias_);
    load_parameter(file, prefix + ".train.gain", gain_);
    load_parameter(file, prefix + ".train.input", input_);
    load_parameter(file, prefix + ".train.input_bias", input_bias_);
    load_parameter(file, prefix + ".train.output", output_);
  }
  quantise();
}

// By way of the stored form: a head that comes from the cache and one that was just trained give the same.
void Head::start_from(const Head& trained) {
  TensorFile file;
  trained.save(file, "head", false);
  load(file, "head", false);
}

}  // namespace bitloom::layerwise
