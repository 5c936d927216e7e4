#include "layerwise/layer_trainer.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/field.h"
#include "core/random.h"
#include "core/softmax.h"
#include "optim/schedule.h"

namespace bitloom::layerwise {
namespace {

constexpr double statistics_decay = 0.95;
constexpr double window_speed = 0.05;          // how far a step moves the logarithm of a window at most
constexpr std::size_t most_window_steps = 16;  // largest number of steps made good for at once
constexpr double smallest_window = 0.02;
constexpr double threshold_spacing = 0.9;  // standard deviations between the thresholds of a row at the start
constexpr float smallest_unit = 1e-20F;    // without gradient it shrinks, but must be able to grow again

std::uint64_t row_key(std::uint64_t seed, Stream stream, std::uint64_t a, std::uint64_t b) {
  return Random(seed, stream, a, b).next();
}

}  // namespace

void LayerSums::clear() {
  std::fill(exact.begin(), exact.end(), 0);
  std::fill(statistics.begin(), statistics.end(), 0);
}

void check_rule(const RuleOptions& options, const BinaryLayer& layer) {
  const UpdateRule& rule = find_rule(options.name);
  const bool ternary = layer.spec().ternary && !rule.ternary;
  if (ternary || (layer.ties().any() && !rule.tied)) {
    fail_field(ErrorKind::usage, "rule", "'{}' cannot train the {} weights of layer '{}'; expected 'accumulate'", rule.name,
               ternary ? "ternary" : "tied", layer.spec().name);
  }
}

LayerTrainer::LayerTrainer(BinaryLayer& layer, const LayerOptions& options, std::uint64_t seed, std::uint64_t stream,
                           bool again, std::span<const std::int16_t> before)
    : layer_(layer),
      options_(options),
      rule_(find_rule(options.rule.name)),
      again_(again),
      flip_key_(row_key(seed, Stream::flips, stream, 0)) {
  check_rule(options.rule, layer);
  const std::size_t o = layer.channels();
  const LayerGeometry& geometry = layer.geometry();
  state_.assign(o * layer.patch_bits(), 0);
  mean_.assign(o, 0);
  variance_.assign(o, 1);
  unseen_.assign(o, 0);
  window_.assign(o, options.initial_window);
  offset_.assign(o, Offset{options.initial_offset, 0, 0});
  for (std::size_t channel = 0; channel < o && layer.spec().thresholds > 1; ++channel) {
    const double middle = static_cast<double>(layer.spec().thresholds - 1) / 2;
    const double place = static_cast<double>(channel / layer.ties().rows()) - middle;
    offset_[channel].value =
        std::clamp(options.initial_offset + place * threshold_spacing, options.smallest_offset, options.largest_offset);
  }
  density_.assign(geometry.input.words() * word_bits, 0);
  density_of_bit_.assign(layer.patch_bits(), 0);
  row_squares_.assign(layer.ties().rows(), 0);
  if (options.second_moment_decay != 0) {
    row_moment_.assign(layer.ties().rows(), 1);
    column_moment_.assign(layer.patch_bits(), 1);
    row_scale_.assign(layer.ties().rows(), 0);
    column_scale_.assign(layer.patch_bits(), 0);
  }
  if (options.muon_momentum != 0) muon_.emplace(layer, options.muon_momentum);
  new_sign_.assign(o * layer.patch_words(), 0);
  new_nonzero_.assign(layer.spec().ternary ? new_sign_.size() : 0, 0);
  low_ = Buffer<std::int32_t>(layer.padded_channels());
  high_ = Buffer<std::int32_t>(layer.padded_channels());
  slope_.assign(layer.padded_channels(), 0);

  const LayerSpec& spec = layer.spec();
  const auto share = [&](std::size_t tap, std::size_t outputs, std::size_t inputs) {
    std::size_t inside = 0;
    for (std::size_t i = 0; i < outputs; ++i) {
      const std::size_t position = i * spec.stride + tap;
      inside += position >= spec.padding && position < inputs + spec.padding ? 1 : 0;
    }
    return static_cast<float>(inside) / static_cast<float>(outputs);
  };
  for (std::size_t ky = 0; ky < spec.kernel; ++ky) {
    for (std::size_t kx = 0; kx < spec.kernel; ++kx) {
      inside_.push_back(share(ky, geometry.output.height, geometry.input.height) *
                        share(kx, geometry.output.width, geometry.input.width));
    }
  }

  if (!before.empty()) {
    if (before.size() != state_.size()) {
      fail(ErrorKind::internal, "layer '{}': states of {} weights; expected {}", spec.name, before.size(), state_.size());
    }
    std::ranges::copy(before, state_.begin());
    return;
  }
  std::vector<std::uint64_t> sign(layer.patch_words());
  std::vector<std::uint64_t> nonzero(layer.patch_words());
  // Tied weights begin as the first of them is drawn.
  const Ties& ties = layer.ties();
  for (std::size_t row = 0; row < ties.rows(); ++row) {
    std::int16_t* const state = state_.data() + row * layer.patch_bits();
    const RuleRow view = {
        state, nullptr, layer.valid_bits().data(), sign.data(), spec.ternary ? nonzero.data() : nullptr, layer.patch_bits()};
    const std::uint64_t key = row_key(seed, Stream::weight_init, stream, row);
    if (again) {
      std::copy_n(layer.rows().data() + row * layer.patch_words(), sign.size(), sign.data());
      if (spec.ternary) std::copy_n(layer.nonzero_rows().data() + row * layer.patch_words(), nonzero.size(), nonzero.data());
      rule_.adopt(options.rule, key, view);
    } else {
      rule_.initialise(options.rule, key, view);
      ties.spread(sign.data());
      if (spec.ternary) ties.spread(nonzero.data());
    }
    ties.spread({state, layer.patch_bits()});
    for (std::size_t same = row; same < o; same += ties.rows()) {
      if (same != row) std::copy_n(state, layer.patch_bits(), state_.data() + same * layer.patch_bits());
      if (!again) layer_.set_row(same, sign.data(), view.nonzero);
    }
  }
  if (!again) place_thresholds();
}

LayerSums LayerTrainer::make_sums() const {
  LayerSums sums;
  sums.channels = layer_.padded_channels();
  sums.in_channels = density_.size();
  sums.weight.assign(state_.size(), 0);
  sums.statistics.assign(4 * sums.channels + sums.in_channels + 1, 0);
  return sums;
}

void LayerTrainer::place_thresholds() {
  const auto most = static_cast<double>(layer_.patch_bits());
  for (std::size_t o = 0; o < layer_.channels(); ++o) {
    const double sigma = std::sqrt(variance_[o]);
    const double centre = std::clamp(mean_[o] + offset_[o].value * sigma, 0.0, most);
    const double half = window_[o] * sigma;
    layer_.thresholds()[o] = static_cast<std::int32_t>(std::ceil(centre)) - 1;
    // Never empty: the two counts next to the threshold are always in.
    low_[o] = static_cast<std::int32_t>(std::min(std::ceil(centre - half), std::ceil(centre) - 1));
    high_[o] = static_cast<std::int32_t>(std::max(std::floor(centre + half), std::ceil(centre)));
    slope_[o] = static_cast<float>(1.0 / std::max(2 * half, 1.0));
    if (options_.exact) {
      // Only the counts that one flip moves across the threshold.
      low_[o] = layer_.thresholds()[o];
      high_[o] = low_[o] + 1;
      slope_[o] = 0.5F;
    }
  }
  for (std::size_t o = layer_.channels(); o < low_.size(); ++o) {
    low_[o] = 1;
    high_[o] = 0;
  }
}

void LayerTrainer::set_statistics(const LayerSums& sums, std::size_t images) {
  const MapShape& map = layer_.geometry().output;
  const auto n = static_cast<double>(images * map.height * map.width);
  const double half = 0.5 * static_cast<double>(layer_.patch_bits());
  for (std::size_t o = 0; o < layer_.channels(); ++o) {
    const double mean = static_cast<double>(sums.count()[o]) / n;
    mean_[o] = mean + half;
    variance_[o] = std::max(static_cast<double>(sums.count_squared()[o]) / n - mean * mean, 0.25);
    // place_thresholds() rounds up and takes 1 off: the middle of the range that gives the present threshold.
    if (again_) offset_[o].value = (layer_.thresholds()[o] + 0.5 - mean_[o]) / std::sqrt(variance_[o]);
  }
  const MapShape& input = layer_.geometry().input;
  const auto inputs = static_cast<double>(images * input.height * input.width);
  for (std::size_t c = 0; c < density_.size(); ++c) density_[c] = static_cast<double>(sums.input()[c]) / inputs;
  spread_density();
  place_thresholds();
}

void LayerTrainer::spread_density() {
  const std::size_t bits_per_tap = layer_.patch_bits() / inside_.size();
  for (std::size_t k = 0; k < density_of_bit_.size(); ++k) {
    density_of_bit_[k] = static_cast<float>(density_[k % density_.size()]) * inside_[k / bits_per_tap];
  }
}

std::size_t LayerTrainer::update(const LayerSums& sums, std::size_t images, double rate, bool learn, std::uint64_t step) {
  observe(sums, images, 1, rate);
  std::size_t flips = 0;
  if (learn) {
    if (options_.learn_weights) {
      choose(sums, rate, step);
      flips = apply();
    }
    adapt(sums.value(), rate);
  }
  fit_unit(sums, unit_);
  place_thresholds();
  return flips;
}

void LayerTrainer::observe(const LayerSums& sums, std::size_t images, std::size_t steps, double rate) {
  const MapShape& map = layer_.geometry().output;
  const MapShape& input = layer_.geometry().input;
  const auto n = static_cast<double>(images * map.height * map.width);
  const auto inputs = static_cast<double>(images * input.height * input.width);
  const double half = 0.5 * static_cast<double>(layer_.patch_bits());
  const double keep = power(statistics_decay, steps);
  const double speed = window_speed * static_cast<double>(std::min(steps, most_window_steps));
  const double last = options_.final_active_share == 0 ? options_.active_share : options_.final_active_share;
  const double wanted = last + (options_.active_share - last) * rate;
  for (std::size_t o = 0; o < layer_.channels(); ++o) {
    const double mean = static_cast<double>(sums.count()[o]) / n;
    const double variance = std::max(static_cast<double>(sums.count_squared()[o]) / n - mean * mean, 0.25);
    const double missed = unseen_[o] / static_cast<double>(steps);
    mean_[o] = keep * mean_[o] + (1 - keep) * (mean + half + missed);
    unseen_[o] = 0;
    variance_[o] = keep * variance_[o] + (1 - keep) * variance;
    // Steer the window towards holding the wanted share of pixels.
    const double active = static_cast<double>(sums.active()[o]) / n;
    const double error = std::clamp((wanted - active) / wanted, -1.0, 1.0);
    const double factor = static_cast<double>(exp_fixed(static_cast<float>(speed * error)));
    window_[o] = std::clamp(window_[o] * factor, smallest_window, std::max(options_.largest_window, smallest_window));
  }
  for (std::size_t c = 0; c < density_.size(); ++c) {
    density_[c] = keep * density_[c] + (1 - keep) * static_cast<double>(sums.input()[c]) / inputs;
  }
  spread_density();
}

// dL/db is proportional to the sum of values: a higher threshold sets more bits.
void LayerTrainer::adapt(std::span<const std::int64_t> value, double rate) {
  ++offset_step_;
  const double correction1 = 1.0 - power(0.9, offset_step_);
  const double correction2 = 1.0 - power(0.999, offset_step_);
  for (std::size_t o = 0; o < layer_.channels(); ++o) {
    Offset& b = offset_[o];
    const double gradient = static_cast<double>(value[o]);
    b.mean = 0.9 * b.mean + 0.1 * gradient;
    b.variance = 0.999 * b.variance + 0.001 * gradient * gradient;
    b.value -= options_.threshold_learning_rate * rate * (b.mean / correction1) / (std::sqrt(b.variance / correction2) + 1e-8);
    b.value = std::min(std::max(b.value, options_.smallest_offset), options_.largest_offset);
  }
}

void LayerTrainer::fit_unit(const LayerSums& sums, float used) {
  std::int64_t active = 0;
  for (std::size_t o = 0; o < layer_.channels(); ++o) active += sums.active()[o];
  if (active > 0 && sums.magnitude()[0] > 0) {
    const double ratio = static_cast<double>(sums.magnitude()[0]) / static_cast<double>(active) / code_target;
    unit_ = static_cast<float>(static_cast<double>(used) * std::clamp(ratio, 0.5, 2.0));
  } else {
    unit_ = std::max(0.5F * used, smallest_unit);
  }
}

double LayerTrainer::mean_offset() const {
  double sum = 0;
  for (const Offset& b : offset_) sum += b.value;
  return sum / static_cast<double>(offset_.size());
}

double LayerTrainer::mean_window() const {
  double sum = 0;
  for (const double w : window_) sum += w;
  return sum / static_cast<double>(window_.size());
}

std::size_t LayerTrainer::state_bits_per_weight() const { return rule_.state_bits + (muon_ ? Muon::state_bits : 0); }

void LayerTrainer::save(TensorFile& file) const {
  const std::string prefix = layer_.spec().name + ".train.";
  const std::size_t o = layer_.channels();
  std::vector<double> offsets;
  for (const Offset& b : offset_) offsets.insert(offsets.end(), {b.value, b.mean, b.variance});
  file.put(prefix + "state", {o, layer_.patch_bits()}, state_);
  file.put(prefix + "mean", {o}, mean_);
  file.put(prefix + "variance", {o}, variance_);
  file.put(prefix + "unseen", {o}, unseen_);
  file.put(prefix + "window", {o}, window_);
  file.put(prefix + "offset", {o, 3}, offsets);
  file.put(prefix + "density", {density_.size()}, density_);
  file.put(prefix + "unit", {1}, std::vector<float>{unit_});
  file.put(prefix + "offset_step", {1}, std::vector<std::uint64_t>{offset_step_});
  if (!row_moment_.empty()) {
    file.put(prefix + "row_moment", {row_moment_.size()}, row_moment_);
    file.put(prefix + "column_moment", {layer_.patch_bits()}, column_moment_);
  }
  if (muon_) {
    file.put(prefix + "momentum", {layer_.ties().rows(), muon_->columns()}, std::span<const std::int16_t>(muon_->state()));
  }
}

void LayerTrainer::load(const TensorFile& file) {
  const std::string prefix = layer_.spec().name + ".train.";
  const std::size_t o = layer_.channels();
  const auto copy = [&](const char* name, const std::vector<std::size_t>& shape, auto& target) {
    using T = typename std::remove_reference_t<decltype(target)>::value_type;
    const auto source = file.get(prefix + name, dtype_of<T>(), shape).template as<T>();
    target.assign(source.begin(), source.end());
  };
  std::vector<double> offsets;
  std::vector<float> unit;
  std::vector<std::uint64_t> step;
  copy("state", {o, layer_.patch_bits()}, state_);
  copy("mean", {o}, mean_);
  copy("variance", {o}, variance_);
  copy("unseen", {o}, unseen_);
  copy("window", {o}, window_);
  copy("offset", {o, 3}, offsets);
  copy("density", {density_.size()}, density_);
  copy("unit", {1}, unit);
  copy("offset_step", {1}, step);
  if (!row_moment_.empty()) {
    copy("row_moment", {row_moment_.size()}, row_moment_);
    copy("column_moment", {layer_.patch_bits()}, column_moment_);
  }
  if (muon_) {
    const auto momentum =
        file.get(prefix + "momentum", DType::i16, {layer_.ties().rows(), muon_->columns()}).as<std::int16_t>();
    std::ranges::copy(momentum, muon_->state().begin());
  }
  for (std::size_t i = 0; i < o; ++i) offset_[i] = {offsets[3 * i], offsets[3 * i + 1], offsets[3 * i + 2]};
  unit_ = unit[0];
  offset_step_ = step[0];
  spread_density();
  layer_.load(file);
  place_thresholds();
}

}  // namespace bitloom::layerwise
