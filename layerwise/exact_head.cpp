#include "layerwise/exact_head.h"

#include <algorithm>
#include <cassert>
#include <map>

#include "core/exp_log.h"
#include "layerwise/gemm_pairs.h"

namespace bitloom::layerwise {
namespace {

constexpr std::size_t block_lanes = ExactHead::block;

// The matrix's transpose as the second factor of gemm_s16.
void pack(std::span<const std::int16_t> matrix, std::size_t rows, std::size_t columns, std::size_t padded,
          Buffer<std::int16_t>& pairs) {
  if (pairs.size() != columns * padded) pairs = Buffer<std::int16_t>(columns * padded);
  pack_transposed(matrix.data(), rows, columns, padded, pairs.data());
}

}  // namespace

ExactHead::ExactHead(const Head& head, const MapShape& map) : classes_(head.classes()), channels_(head.channels()) {
  padded_classes_ = round_up(classes_, simd::weight_lanes);
  // Which regions a pixel belongs to is asked of the head: region r answers in channel r.
  const std::size_t pixels = map.height * map.width;
  std::vector<std::vector<std::uint32_t>> regions(pixels);
  std::vector<float> answer(channels_);
  for (std::size_t first = 0; first < head.regions(); first += channels_) {
    const std::size_t end = std::min(first + channels_, head.regions());
    std::vector<float> question(head.features(), 0.0F);
    for (std::size_t r = first; r < end; ++r) question[r * channels_ + r - first] = 1.0F;
    for (std::size_t p = 0; p < pixels; ++p) {
      std::fill(answer.begin(), answer.end(), 0.0F);
      head.add_pixel_gradient(question.data(), p / map.width, p % map.width, answer.data());
      for (std::size_t r = first; r < end; ++r) {
        if (answer[r - first] != 0) regions[p].push_back(static_cast<std::uint32_t>(r));
      }
    }
  }
  std::map<std::vector<std::uint32_t>, std::uint32_t> zone_of;
  for (const auto& set : regions) zone_of.emplace(set, 0);
  for (auto& [set, zone] : zone_of) {
    zone = static_cast<std::uint32_t>(zone_regions_.size());
    zone_regions_.push_back(set);
  }
  for (const auto& set : regions) zone_of_pixel_.push_back(zone_of.at(set));
  refresh(head);
}

void ExactHead::refresh(const Head& head) {
  const Head::Integers source = head.integers();
  const std::size_t features = source.centre.size();
  hidden_ = source.input_bias.size();
  width_ = hidden_ == 0 ? padded_classes_ : 2 * padded_classes_;
  centre_.assign(source.centre.begin(), source.centre.end());
  bias_.assign(padded_classes_, 0.0F);
  std::copy(source.bias.begin(), source.bias.end(), bias_.begin());
  input_bias_.assign(source.input_bias.begin(), source.input_bias.end());
  linear_step_ = source.linear_step;
  input_step_ = source.input_step;
  output_step_ = source.output_step;
  linear_.assign(channels_ * zones() * padded_classes_, 0);
  for (std::size_t z = 0; z < zones(); ++z) {
    for (const std::uint32_t region : zone_regions_[z]) {
      for (std::size_t l = 0; l < classes_; ++l) {
        const std::int16_t* weights = source.linear.data() + l * features + region * channels_;
        for (std::size_t c = 0; c < channels_; ++c) {
          linear_[(c * zones() + z) * padded_classes_ + l] += static_cast<std::uint32_t>(std::int32_t{weights[c]});
        }
      }
    }
  }
  pack(source.linear, classes_, features, padded_classes_, linear_pairs_);
  if (hidden_ == 0) return;
  pack(source.input, hidden_, channels_, hidden_, input_pairs_);
  input_.resize(channels_ * hidden_);
  for (std::size_t j = 0; j < hidden_; ++j) {
    for (std::size_t c = 0; c < channels_; ++c) input_[c * hidden_ + j] = source.input[j * channels_ + c];
  }
  // Hidden units see cells, and every pixel is in one: zones are cells, in the same order.
  output_.assign(zones() * hidden_ * padded_classes_, 0);
  for (std::size_t unit = 0; unit < zones() * hidden_; ++unit) {
    for (std::size_t l = 0; l < classes_; ++l)
      output_[unit * padded_classes_ + l] = source.output[l * zones() * hidden_ + unit];
  }
}

// out (padded L) = what the hidden units of a zone send to the logits when their inputs are hidden_input + times * step.
void ExactHead::hidden_outputs(const std::int32_t* hidden_input, const std::int32_t* step, std::int32_t times, std::size_t zone,
                               std::uint32_t* out) const {
  std::fill_n(out, padded_classes_, 0U);
  for (std::size_t j = 0; j < hidden_; ++j) {
    const std::uint32_t sum = static_cast<std::uint32_t>(hidden_input[zone * hidden_ + j]) +
                              static_cast<std::uint32_t>(times) * static_cast<std::uint32_t>(step[j]);
    const float h = static_cast<float>(static_cast<std::int32_t>(sum)) * input_step_ + input_bias_[j];
    const auto unit = static_cast<std::int32_t>(std::clamp(h * 64.0F, 0.0F, 2047.0F) + 0.5F);
    if (unit == 0) continue;
    const std::int16_t* row = output_.data() + (zone * hidden_ + j) * padded_classes_;
    for (std::size_t l = 0; l < padded_classes_; ++l) out[l] += static_cast<std::uint32_t>(unit * row[l]);
  }
}

void ExactHead::prepare(const simd::Kernels& kernels, const std::int16_t* counts, std::size_t label, Image& image) const {
  image.label = label;
  image.centred.resize(features());
  for (std::size_t f = 0; f < features(); ++f) image.centred[f] = static_cast<std::int16_t>(counts[f] - centre_[f]);
  image.sums.assign(width_, 0);
  // Signed and unsigned versions of a type may share memory.
  auto* sums = reinterpret_cast<std::int32_t*>(image.sums.data());
  kernels.gemm_s16(1, padded_classes_, features(), image.centred.data(), features(), linear_pairs_.data(), sums,
                   padded_classes_);
  if (hidden_ != 0) {
    image.hidden_input.assign(zones() * hidden_, 0);
    kernels.gemm_s16(zones(), hidden_, channels_, image.centred.data(), channels_, input_pairs_.data(),
                     image.hidden_input.data(), hidden_);
    thread_local std::vector<std::uint32_t> zone_sums;
    zone_sums.resize(padded_classes_);
    for (std::size_t z = 0; z < zones(); ++z) {
      hidden_outputs(image.hidden_input.data(), input_.data(), 0, z, zone_sums.data());
      for (std::size_t l = 0; l < padded_classes_; ++l) image.sums[padded_classes_ + l] += zone_sums[l];
    }
  }
  losses(image.sums.data(), 1, label, &image.loss);
}

void ExactHead::zone_change(const Image& image, std::size_t channel, std::size_t zone, std::int32_t first, std::int32_t last,
                            std::uint32_t* change) const {
  const std::uint32_t* weights = linear_.data() + (channel * zones() + zone) * padded_classes_;
  for (std::int32_t v = first; v <= last; ++v) {
    std::uint32_t* row = change + static_cast<std::size_t>(v - first) * width_;
    for (std::size_t l = 0; l < padded_classes_; ++l) row[l] = static_cast<std::uint32_t>(v) * weights[l];
  }
  if (hidden_ == 0) return;
  assert(first <= 0 && last >= 0);
  const std::int32_t* step = input_.data() + channel * hidden_;
  std::uint32_t* outputs = change + padded_classes_;
  for (std::int32_t v = first; v <= last; ++v) {
    hidden_outputs(image.hidden_input.data(), step, v, zone, outputs + static_cast<std::size_t>(v - first) * width_);
  }
  // Less what they send now.
  const std::uint32_t* now = outputs + static_cast<std::size_t>(-first) * width_;
  for (std::int32_t v = first; v <= last; ++v) {
    std::uint32_t* row = outputs + static_cast<std::size_t>(v - first) * width_;
    if (row == now) continue;
    for (std::size_t l = 0; l < padded_classes_; ++l) row[l] -= now[l];
  }
  std::fill_n(outputs + static_cast<std::size_t>(-first) * width_, padded_classes_, 0U);
}

void ExactHead::losses(const std::uint32_t* sums, std::size_t n, std::size_t label, double* losses) const {
  assert(n <= block_lanes && label < classes_);
  const std::size_t used = round_up(n, 8);
  alignas(64) double most[block_lanes];
  alignas(64) double sum[block_lanes];
  // (L, lanes), so that everything that follows is the same for neighbouring numbers.
  thread_local std::vector<float> logits;
  logits.resize(padded_classes_ * block_lanes);
  constexpr std::size_t part = simd::weight_lanes;
  for (std::size_t begin = 0; begin < classes_; begin += part) {
    const std::size_t size = std::min(part, classes_ - begin);
    for (std::size_t j = 0; j < n; ++j) {
      const std::uint32_t* linear = sums + j * width_ + begin;
      float row[part];
      for (std::size_t l = 0; l < part; ++l) row[l] = static_cast<float>(static_cast<std::int32_t>(linear[l])) * linear_step_;
      if (hidden_ != 0) {
        const std::uint32_t* hidden = linear + padded_classes_;
        for (std::size_t l = 0; l < part; ++l)
          row[l] += static_cast<float>(static_cast<std::int32_t>(hidden[l])) * output_step_;
      }
      for (std::size_t l = 0; l < part; ++l) row[l] += bias_[begin + l];
      for (std::size_t l = 0; l < size; ++l) logits[(begin + l) * block_lanes + j] = row[l];
    }
  }
  for (std::size_t j = 0; j < used; ++j) {
    float largest = logits[j];
    for (std::size_t l = 1; l < classes_; ++l) largest = std::max(largest, logits[l * block_lanes + j]);
    most[j] = static_cast<double>(largest);
  }
  std::fill_n(sum, used, 0.0);
  for (std::size_t l = 0; l < classes_; ++l) {
    const float* logit = logits.data() + l * block_lanes;
    for (std::size_t j = 0; j < used; ++j) sum[j] += exp_double(static_cast<double>(logit[j]) - most[j]);
  }
  const float* wanted = logits.data() + label * block_lanes;
  for (std::size_t j = 0; j < used; ++j) sum[j] = log_double(sum[j]) - (static_cast<double>(wanted[j]) - most[j]);
  std::copy_n(sum, n, losses);
}

}  // namespace bitloom::layerwise
