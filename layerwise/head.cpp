#include "layerwise/head.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/random.h"
#include "core/softmax.h"
#include "data/soft_labels.h"
#include "layerwise/bit_counts.h"
#include "layerwise/gemm_pairs.h"

namespace bitloom::layerwise {
namespace {

constexpr int hidden_limit = 2047;
constexpr int hidden_error_limit = 8191;
constexpr std::size_t lanes = simd::weight_lanes;

// How many images are taken at once, so that sums of products over them stay within 32 bits: |error| <= 2^12, hidden < 2^11,
// |hidden error| < 2^13; the counts of a cell are below 2^15, those of all cells together are the pixels of the map.
std::size_t images_at_once(const MapShape& map) {
  constexpr std::size_t most_images = 16;
  return std::clamp<std::size_t>((std::size_t{1} << 18U) / (map.height * map.width), 1, most_images);
}

std::int16_t to_fixed(float value, float steps, int limit) {
  // In this order a NaN, which no integer can be made of, becomes the limit.
  const float scaled = std::max(static_cast<float>(-limit), std::min(static_cast<float>(limit), value * steps));
  // Half away from zero, by truncation: unlike nearbyint this vectorises on the baseline.
  return static_cast<std::int16_t>(static_cast<std::int32_t>(scaled + (scaled < 0 ? -0.5F : 0.5F)));
}

// Sets the features that are left out of image i to their mean, 0.
void drop(const Head::Objective& objective, std::size_t i, std::int16_t* centred, std::size_t features) {
  const auto below = static_cast<std::uint32_t>(objective.dropout * 65536.0);
  for (std::size_t k = 0; k < features; k += 4) {
    const std::uint64_t random = mix64(objective.keys[i] + k);
    for (std::size_t j = 0; j < 4 && k + j < features; ++j) {
      if (((random >> (16 * j)) & 0xFFFFU) < below) centred[k + j] = 0;
    }
  }
}

}  // namespace

// Scratch of one thread, for heads of any size: it only grows.
struct Head::Workspace {
  Buffer<std::int16_t> centred, hidden, pairs, error, error_t, hidden_error, hidden_error_t;
  Buffer<std::int32_t> pre, logits, feature_gradient, hidden_gradient, products;
  std::vector<float> scores, p;

  static Workspace& of_thread() {
    thread_local Workspace work;
    return work;
  }
  template <typename T>
  static T* room(Buffer<T>& buffer, std::size_t size) {
    if (buffer.size() < size) buffer = Buffer<T>(size);
    return buffer.data();
  }
  template <typename T>
  static T* zeros(Buffer<T>& buffer, std::size_t size) {
    T* const data = room(buffer, size);
    std::fill(data, data + size, T{0});
    return data;
  }
};

void check_head(const HeadSpec& spec, const MapShape& map) {
  const bool binary = spec.kind == "class_conv";
  const std::size_t cells = binary ? 1 : spec.grid;
  const std::size_t cell = round_up(map.height, cells) / cells * (round_up(map.width, cells) / cells);
  if (!binary && (spec.grid > map.height || spec.grid > map.width)) {
    fail(ErrorKind::usage, "head.grid: {} cells do not fit a map of {}x{} pixels", spec.grid, map.height, map.width);
  }
  if (spec.kind == "hidden" && spec.hidden % lanes != 0)
    fail(ErrorKind::usage, "head.hidden: {} is not a multiple of {}", spec.hidden, lanes);
  if (binary && (spec.kernel > map.height || spec.kernel > map.width || spec.kernel % 2 == 0)) {
    fail(ErrorKind::usage, "head.kernel: {} does not fit a map of {}x{} pixels; expected an odd size", spec.kernel, map.height,
         map.width);
  }
  if (cell > most_counted_pixels) {
    fail(ErrorKind::usage, "head{}: {} pixels of a map of {}x{} are counted together; expected at most {}: {}",
         binary ? "" : ".grid", cell, map.height, map.width, most_counted_pixels,
         binary ? "another kind of head, or a smaller map" : "a larger grid, or a smaller map");
  }
}

Head::Head(const HeadSpec& spec, const MapShape& map, std::size_t classes, std::uint64_t seed, std::uint64_t stream)
    : spec_(spec),
      map_(map),
      classes_(classes),
      padded_classes_(round_up(classes, lanes)),
      channels_(map.words() * word_bits),
      images_at_once_(images_at_once(map)) {
  check_head(spec, map);
  binary_ = spec.kind == "class_conv";
  has_hidden_ = spec.kind == "hidden";
  regions_ = binary_ ? spec.kernel * spec.kernel : spec.grid * spec.grid;
  hidden_ = has_hidden_ ? spec.hidden : 0;
  mean_.assign(features(), 0.0);
  centre_.assign(features(), 0);
  linear_.resize(classes * features());
  linear_bias_.resize(classes);
  input_.resize(hidden_ * channels_);
  input_bias_.resize(hidden_);
  output_.resize(classes * regions_ * hidden_);
  gain_.resize(1);
  Random random(seed, Stream::head_init, stream);
  // Hidden units start with the usual 1/sqrt(fan-in); everything that feeds the logits starts at 0, but for class_conv,
  // whose weights have no zero.
  for (float& v : input_.value) v = static_cast<float>(random.normal() / std::sqrt(static_cast<double>(map.channels)));
  if (binary_) {
    for (float& v : linear_.value) v = static_cast<float>(0.1 * (2 * random.uniform() - 1));
    gain_.value[0] = static_cast<float>(0.3 / std::sqrt(static_cast<double>(features())));
  }
  quantise();
}

std::size_t Head::bytes() const {
  const auto matrix = [&](std::size_t rows, std::size_t columns) {
    if (weight_bits_ == 16) return rows * columns * sizeof(std::int16_t);
    return rows * (weight_bits_ * words_for(columns) * sizeof(std::uint64_t) + sizeof(std::int16_t));
  };
  const std::size_t linear = binary_ ? linear_.value.size() / 8 : matrix(classes_, features());
  const std::size_t hidden = has_hidden_ ? matrix(hidden_, channels_) + matrix(classes_, regions_ * hidden_) : 0;
  return linear + hidden + 2 * centre_.size() + 4 * (linear_bias_.value.size() + input_bias_.value.size() + (binary_ ? 2 : 1));
}

std::size_t Head::macs() const { return linear_.value.size() + input_.value.size() * regions_ + output_.value.size(); }

void Head::quantise() {
  linear_q_.resize(linear_.value.size());
  for (std::size_t i = 0; i < linear_q_.size(); ++i) {
    const float value = binary_ ? (linear_.value[i] < 0 ? -gain_.value[0] : gain_.value[0]) : linear_.value[i];
    linear_q_[i] = to_fixed(value, binary_ ? 4 * weight_steps : weight_steps, 32767);
  }
  input_q_.resize(input_.value.size());
  for (std::size_t i = 0; i < input_q_.size(); ++i) input_q_[i] = to_fixed(input_.value[i], weight_steps, 32767);
  output_q_.resize(output_.value.size());
  for (std::size_t i = 0; i < output_q_.size(); ++i) output_q_[i] = to_fixed(output_.value[i], weight_steps, 32767);

  const auto ensure = [](Buffer<std::int16_t>& buffer, std::size_t size) {
    if (buffer.size() != size) buffer = Buffer<std::int16_t>(size);
  };
  const std::size_t units = regions_ * hidden_;
  ensure(linear_forward_, features() * padded_classes_);
  ensure(linear_backward_, padded_classes_ * features());
  pack_transposed(linear_q_.data(), classes_, features(), padded_classes_, linear_forward_.data());
  pack_pairs(linear_q_.data(), classes_, features(), features(), linear_backward_.data());
  if (!has_hidden_) return;
  ensure(input_forward_, channels_ * hidden_);
  ensure(input_backward_, hidden_ * channels_);
  ensure(output_forward_, units * padded_classes_);
  ensure(output_backward_, padded_classes_ * units);
  pack_transposed(input_q_.data(), hidden_, channels_, hidden_, input_forward_.data());
  pack_pairs(input_q_.data(), hidden_, channels_, channels_, input_backward_.data());
  pack_transposed(output_q_.data(), classes_, units, padded_classes_, output_forward_.data());
  pack_pairs(output_q_.data(), classes_, units, units, output_backward_.data());
}

void Head::count(const simd::Kernels& kernels, const std::uint64_t* bits, std::int16_t* counts) const {
  if (!binary_) {
    kernels.pool_counts(bits, map_.height, map_.width, map_.words(), map_.pitch(), spec_.grid, counts);
    return;
  }
  // Summed over the image, a kernel's tap at (dy, dx) sees the map without the rows and columns that the shift moves out.
  const auto half = static_cast<std::ptrdiff_t>(spec_.kernel / 2);
  for (std::ptrdiff_t dy = -half; dy <= half; ++dy) {
    for (std::ptrdiff_t dx = -half; dx <= half; ++dx) {
      const auto top = static_cast<std::size_t>(std::max<std::ptrdiff_t>(dy, 0));
      const auto left = static_cast<std::size_t>(std::max<std::ptrdiff_t>(dx, 0));
      const std::size_t height = map_.height - static_cast<std::size_t>(std::abs(dy));
      const std::size_t width = map_.width - static_cast<std::size_t>(std::abs(dx));
      kernels.pool_counts(bits + top * map_.pitch() + left * map_.words(), height, width, map_.words(), map_.pitch(), 1,
                          counts);
      counts += channels_;
    }
  }
}

Head::Integers Head::integers() const {
  return {linear_q_,
          input_q_,
          output_q_,
          centre_,
          linear_bias_.value,
          input_bias_.value,
          scale_ / (binary_ ? 4 * weight_steps : weight_steps),
          scale_ / weight_steps,
          1.0F / (hidden_steps * weight_steps)};
}

std::size_t Head::region_of(std::size_t y, std::size_t x) const {
  if (binary_) return regions_;
  // The cell a with a*H/G <= y < (a+1)*H/G.
  const std::size_t grid = spec_.grid;
  const std::size_t a = ((y + 1) * grid - 1) / map_.height;
  const std::size_t b = ((x + 1) * grid - 1) / map_.width;
  return a * grid + b;
}

void Head::add_pixel_gradient(const float* region_gradient, std::size_t y, std::size_t x, float* gradient) const {
  if (!binary_) {
    const float* cell = region_gradient + region_of(y, x) * channels_;
    for (std::size_t c = 0; c < channels_; ++c) gradient[c] += cell[c];
    return;
  }
  const auto half = static_cast<std::ptrdiff_t>(spec_.kernel / 2);
  for (std::ptrdiff_t dy = -half; dy <= half; ++dy) {
    for (std::ptrdiff_t dx = -half; dx <= half; ++dx, region_gradient += channels_) {
      const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(y) - dy;
      const std::ptrdiff_t column = static_cast<std::ptrdiff_t>(x) - dx;
      if (row < 0 || column < 0 || row >= static_cast<std::ptrdiff_t>(map_.height) ||
          column >= static_cast<std::ptrdiff_t>(map_.width)) {
        continue;
      }
      for (std::size_t c = 0; c < channels_; ++c) gradient[c] += region_gradient[c];
    }
  }
}

// One row more, so that backward() can pad to an even number.
void Head::centre(const std::int16_t* counts, std::size_t n, Workspace& work) const {
  const std::size_t f = features();
  std::int16_t* const centred = Workspace::room(work.centred, (n + 1) * f);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < f; ++k) centred[i * f + k] = static_cast<std::int16_t>(counts[i * f + k] - centre_[k]);
  }
}

// From the centred counts in `work`, multiplied by `gain`.
void Head::forward(const simd::Kernels& kernels, std::size_t n, float gain, Workspace& work, float* logits) const {
  const std::size_t f = features();
  const std::size_t units = regions_ * hidden_;
  const std::int16_t* const centred = work.centred.data();
  std::int32_t* const linear = Workspace::zeros(work.logits, 2 * n * padded_classes_);
  std::int32_t* const from_hidden = linear + n * padded_classes_;
  kernels.gemm_s16(n, padded_classes_, f, centred, f, linear_forward_.data(), linear, padded_classes_);
  if (has_hidden_) {
    std::int16_t* const hidden = Workspace::room(work.hidden, (n + 1) * units);
    std::int32_t* const pre = Workspace::zeros(work.pre, n * units);
    kernels.gemm_s16(n * regions_, hidden_, channels_, centred, channels_, input_forward_.data(), pre, hidden_);
    const float step = gain * scale_ / weight_steps;
    for (std::size_t i = 0; i < n * regions_; ++i) {
      for (std::size_t j = 0; j < hidden_; ++j) {
        const float h = static_cast<float>(pre[i * hidden_ + j]) * step + input_bias_.value[j];
        hidden[i * hidden_ + j] = to_fixed(std::max(h, 0.0F), hidden_steps, hidden_limit);
      }
    }
    kernels.gemm_s16(n, padded_classes_, units, hidden, units, output_forward_.data(), from_hidden, padded_classes_);
  }
  const float linear_step = gain * scale_ / (binary_ ? 4 * weight_steps : weight_steps);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t l = 0; l < classes_; ++l) {
      logits[i * classes_ + l] =
          static_cast<float>(linear[i * padded_classes_ + l]) * linear_step +
          static_cast<float>(from_hidden[i * padded_classes_ + l]) * (1.0F / (hidden_steps * weight_steps)) +
          linear_bias_.value[l];
    }
  }
}

void Head::predict(const simd::Kernels& kernels, const std::int16_t* counts, std::size_t n, float* logits) const {
  Workspace& work = Workspace::of_thread();
  for (std::size_t i = 0; i < n; i += images_at_once_) {
    const std::size_t m = std::min(images_at_once_, n - i);
    centre(counts + i * features(), m, work);
    forward(kernels, m, 1.0F, work, logits + i * classes_);
  }
}

Head::Loss Head::backward(const simd::Kernels& kernels, const std::int16_t* counts, const std::uint16_t* labels, std::size_t n,
                          const Objective& objective, Sums& sums, float* gradient) const {
  const std::size_t f = features();
  const std::size_t units = regions_ * hidden_;
  const std::size_t even_at_once = round_up(images_at_once_, 2);
  Workspace& work = Workspace::of_thread();
  std::int16_t* const pairs = Workspace::room(work.pairs, (images_at_once_ + 1) * std::max(f, units));
  std::int16_t* const hidden_error = Workspace::room(work.hidden_error, (images_at_once_ + 1) * units);
  std::int32_t* const products =
      Workspace::zeros(work.products, std::max({classes_ * f, hidden_ * channels_, classes_ * units}));
  work.scores.resize(images_at_once_ * classes_);
  work.p.resize(classes_);
  std::vector<float>& logits = work.scores;
  std::vector<float>& p = work.p;
  const double own_share = 1.0 - objective.teacher_share;  // of the label
  const auto target_off = static_cast<float>(own_share * objective.smoothing / static_cast<double>(classes_));
  const auto target_on = static_cast<float>(own_share * (1.0 - objective.smoothing)) + target_off;
  const auto soft_step = static_cast<float>(objective.teacher_share / data::soft_label_sum);
  const auto add = [&](std::vector<std::int64_t>& sum) {
    for (std::size_t k = 0; k < sum.size(); ++k) {
      sum[k] += products[k];
      products[k] = 0;
    }
  };

  const auto gain = static_cast<float>(1.0 / (1.0 - objective.dropout));
  Loss loss;
  for (std::size_t begin = 0; begin < n; begin += images_at_once_) {
    const std::size_t m = std::min(images_at_once_, n - begin);
    const std::size_t even = round_up(m, 2);
    centre(counts + begin * f, m, work);
    std::int16_t* const centred = work.centred.data();
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t k = 0; k < f; ++k) sums.count[k] += counts[(begin + i) * f + k];
      std::int64_t squares = 0;
      for (std::size_t k = 0; k < f; ++k) squares += std::int32_t{centred[i * f + k]} * centred[i * f + k];
      sums.count_squared[0] += squares;
      if (objective.dropout > 0) drop(objective, begin + i, centred + i * f, f);
    }
    forward(kernels, m, gain, work, logits.data());
    // p - y, in fixed point.
    std::int16_t* const error = Workspace::zeros(work.error, images_at_once_ * padded_classes_);
    std::int16_t* const error_t = Workspace::zeros(work.error_t, padded_classes_ * even_at_once);
    for (std::size_t i = 0; i < m; ++i) {
      const std::span<const float> row(logits.data() + i * classes_, classes_);
      softmax(row, p);
      const std::size_t label = labels[begin + i];
      loss.micro_nats += micro_nats(cross_entropy(row, label)).value_or(largest_micro_nats);
      loss.correct += static_cast<std::size_t>(std::max_element(row.begin(), row.end()) - row.begin()) == label ? 1 : 0;
      for (std::size_t l = 0; l < classes_; ++l) {
        float target = l == label ? target_on : target_off;
        if (soft_step > 0) target += soft_step * static_cast<float>(objective.soft_labels[(begin + i) * classes_ + l]);
        const std::int16_t e = to_fixed(p[l] - target, error_steps, 4096);
        error[i * padded_classes_ + l] = e;
        error_t[l * even_at_once + i] = e;
        sums.linear_bias[l] += e;
      }
    }
    // Gradients of the linear weights and of the counts through them.
    std::fill(centred + m * f, centred + even * f, std::int16_t{0});
    pack_pairs(centred, even, f, f, pairs);
    kernels.gemm_s16(classes_, f, even, error_t, even_at_once, pairs, products, f);
    add(sums.linear);
    std::int32_t* through_linear = Workspace::zeros(work.feature_gradient, 2 * images_at_once_ * f);
    std::int32_t* through_hidden = through_linear + images_at_once_ * f;
    kernels.gemm_s16(m, f, padded_classes_, error, padded_classes_, linear_backward_.data(), through_linear, f);
    if (has_hidden_) {
      std::int16_t* const hidden = work.hidden.data();
      std::fill(hidden + m * units, hidden + even * units, std::int16_t{0});
      pack_pairs(hidden, even, units, units, pairs);
      kernels.gemm_s16(classes_, units, even, error_t, even_at_once, pairs, products, units);
      add(sums.output);
      std::int32_t* const hidden_gradient = Workspace::zeros(work.hidden_gradient, m * units);
      kernels.gemm_s16(m, units, padded_classes_, error, padded_classes_, output_backward_.data(), hidden_gradient, units);
      const std::size_t rows = m * regions_;
      const std::size_t even_rows = round_up(rows, 2);
      std::int16_t* const hidden_error_t = Workspace::zeros(work.hidden_error_t, hidden_ * even_rows);
      for (std::size_t i = 0; i < rows; ++i) {
        for (std::size_t j = 0; j < hidden_; ++j) {
          const std::size_t k = i * hidden_ + j;
          const float g = static_cast<float>(hidden_gradient[k]) * (1.0F / 256.0F);
          const std::int16_t e = hidden[k] > 0 ? to_fixed(g, 1.0F, hidden_error_limit) : std::int16_t{0};
          hidden_error[k] = e;
          hidden_error_t[j * even_rows + i] = e;
          sums.hidden_bias[j] += e;
        }
      }
      std::fill(centred + rows * channels_, centred + even_rows * channels_, std::int16_t{0});
      pack_pairs(centred, even_rows, channels_, channels_, pairs);
      kernels.gemm_s16(hidden_, channels_, even_rows, hidden_error_t, even_rows, pairs, products, channels_);
      add(sums.hidden);
      kernels.gemm_s16(rows, channels_, hidden_, hidden_error, hidden_, input_backward_.data(), through_hidden, channels_);
    }
    const float linear_step = gain * scale_ / (error_steps * (binary_ ? 4 * weight_steps : weight_steps));
    const float hidden_step = gain * scale_ / (hidden_error_steps * weight_steps);
    for (std::size_t k = 0; k < m * f; ++k) {
      gradient[begin * f + k] =
          static_cast<float>(through_linear[k]) * linear_step + static_cast<float>(through_hidden[k]) * hidden_step;
    }
  }
  return loss;
}

}  // namespace bitloom::layerwise
