#include "bench/workloads.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "core/random.h"
#include "core/safetensors.h"
#include "layerwise/gradient.h"

namespace bitloom::bench {

Random random_for(std::uint64_t use, std::uint64_t part) { return Random(1, Stream::test, use, part); }

layerwise::BinaryLayer make_layer(const ConvOptions& options) {
  layerwise::LayerSpec spec;
  spec.name = "layer";
  spec.inputs = {"input"};
  spec.width = options.out_channels / options.thresholds;
  spec.thresholds = options.thresholds;
  spec.ternary = options.ternary;
  layerwise::NetSpec net;
  if (options.thresholds > 1) {
    net.layers.push_back(spec);
    net.layers.front().name = "below";
    net.layers.front().width = options.in_channels / options.thresholds;
    spec.inputs = {"below"};
  }
  net.layers.push_back(spec);
  layerwise::BinaryLayer layer(spec, derive_geometry(net, options.size, options.size, options.in_channels).back());
  const simd::ConvShape shape = layer.conv_shape();
  std::vector<std::uint64_t> sign(layer.patch_words());
  std::vector<std::uint64_t> nonzero(layer.patch_words());
  for (std::size_t o = 0; o < layer.channels(); ++o) {
    Random random = random_for(1, o % (layer.channels() / shape.planes));
    for (std::size_t w = 0; w < sign.size(); ++w) {
      nonzero[w] = options.ternary ? random.next() & layer.valid_bits()[w] : layer.valid_bits()[w];
      sign[w] = random.next() & nonzero[w];
      const std::size_t word = shape.twin == nullptr ? 0 : w % shape.pixel_words;
      if (shape.twin != nullptr && shape.twin[word] < word) sign[w] = sign[w - word + shape.twin[word]];
    }
    layer.set_row(o, sign.data(), options.ternary ? nonzero.data() : nullptr);
    // About one standard deviation below the mean count: a sixth of the bits is set, as in trained layers.
    const auto taps = static_cast<std::int32_t>(layer.patch_bits()) / (options.ternary ? 2 : 1);
    layer.thresholds()[o] = taps / 2 - 20 + static_cast<std::int32_t>(random.below(9)) - 4;
  }
  return layer;
}

Buffer<std::uint64_t> random_maps(const layerwise::MapShape& shape, std::size_t images) {
  Buffer<std::uint64_t> maps(images * shape.size());
  Random random = random_for(2);
  for (std::size_t i = 0; i < images; ++i) {
    for (std::size_t y = 0; y < shape.height; ++y) {
      std::uint64_t* row = maps.data() + i * shape.size() + shape.interior() + y * shape.pitch();
      for (std::size_t w = 0; w < shape.width * shape.words(); ++w) row[w] = random.next();
    }
  }
  return maps;
}

namespace {

class GradientWorkload : public TypedWorkload<std::int32_t> {
 public:
  explicit GradientWorkload(std::size_t threads);
  void run(const simd::Kernels& kernels, std::size_t item, std::size_t thread) override {
    kernels.accumulate_rows(lists_[item].rows, outputs_[thread].data());
  }

 private:
  static constexpr std::size_t images = 128, channels = 256, size = 32, grid = 4;
  static constexpr std::size_t channels_per_call = 4;
  static constexpr double active_share = 0.07;
  static constexpr float code_target = 2.0F;  // as layerwise/layer_trainer.h has it

  struct Lists {
    std::vector<std::uint32_t> offsets, begin;
    simd::RowLists rows;
  };
  std::vector<layerwise::ImageComponents> draw_components(const simd::ConvShape& shape, std::size_t image_words) const;

  Buffer<std::uint64_t> inputs_;
  std::vector<Lists> lists_;
};

// Per image the components that a head with one gradient per cell and channel would leave.
std::vector<layerwise::ImageComponents> GradientWorkload::draw_components(const simd::ConvShape& shape,
                                                                          std::size_t image_words) const {
  constexpr std::size_t pixels = size * size;
  constexpr std::size_t words = channels / word_bits;
  std::vector<std::uint32_t> region(pixels);
  std::vector<std::uint32_t> patch(pixels);
  for (std::size_t p = 0; p < pixels; ++p) {
    region[p] = static_cast<std::uint32_t>(p / size * grid / size * grid + p % size * grid / size);
    patch[p] = static_cast<std::uint32_t>(p / size * shape.row_step + p % size * shape.column_step);
  }
  const std::vector<float> slope(channels, 1.0F);
  std::vector<layerwise::ImageComponents> components(images);
#pragma omp parallel for
  for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(images); ++i) {
    const auto image = static_cast<std::size_t>(i);
    Random random = random_for(3, image);
    std::vector<std::uint64_t> window(pixels * words, 0);
    for (std::size_t k = 0; k < pixels * channels; ++k) {
      if (random.uniform() < active_share) set_bit(window.data(), k, true);
    }
    // Products of two normal numbers have long tails, as gradients do; 1.57 makes their mean magnitude 1.
    std::vector<float> gradient(grid * grid * channels);
    for (float& g : gradient) g = static_cast<float>(1.57 * random.normal() * random.normal());
    std::vector<layerwise::Rounding> rounding(gradient.size());
    std::vector<std::int64_t> value_sum(channels);
    simd::kernels().prepare_rounding(gradient.data(), slope.data(), gradient.size(), channels, code_target, rounding.data());
    layerwise::collect_components(window.data(), pixels, words, channels, rounding.data(), region.data(), patch.data(),
                                  static_cast<std::uint32_t>(image * image_words), random.next(), components[image],
                                  value_sum.data(), nullptr);
  }
  return components;
}

GradientWorkload::GradientWorkload(std::size_t threads) {
  const layerwise::BinaryLayer layer = make_layer({channels, channels, size});
  const layerwise::MapShape& map = layer.geometry().input;
  const simd::ConvShape shape = layer.conv_shape();
  inputs_ = random_maps(map, images);
  const std::vector<layerwise::ImageComponents> components = draw_components(shape, map.size());
  constexpr std::uint32_t offset_mask = (1U << layerwise::component_offset_bits) - 1;
  // As accumulate_weight_gradient() does: part after part of the batch, and in each all channels.
  const std::size_t part = layerwise::images_per_part(layer, images);
  std::size_t total = 0;
  for (std::size_t first = 0; first < images; first += part) {
    const std::span<const layerwise::ImageComponents> some(components.data() + first, std::min(part, images - first));
    for (std::size_t group = 0; group < channels; group += channels_per_call) {
      Lists& lists = lists_.emplace_back();
      lists.begin.push_back(0);
      for (std::size_t o = group; o < group + channels_per_call; ++o) {
        std::array<std::vector<std::uint32_t>, layerwise::quantised_values.size()> by_code;
        for (const layerwise::ImageComponents& image : some) {
          for (std::uint32_t k = image.begin[o]; k < image.begin[o + 1]; ++k) {
            by_code[image.components[k] >> layerwise::component_offset_bits].push_back(image.components[k] & offset_mask);
          }
        }
        for (const auto& list : by_code) {
          lists.offsets.insert(lists.offsets.end(), list.begin(), list.end());
          lists.begin.push_back(static_cast<std::uint32_t>(lists.offsets.size()));
        }
      }
      total += lists.offsets.size();
    }
  }
  for (Lists& lists : lists_) {
    lists.rows = {inputs_.data(),
                  lists.offsets.data(),
                  lists.begin.data(),
                  channels_per_call,
                  layerwise::quantised_values.size(),
                  layerwise::quantised_values.data(),
                  shape.patch_rows,
                  shape.run_words,
                  shape.pitch};
  }
  outputs_ = per_thread<std::int32_t>(threads, channels_per_call * layer.patch_bits());
  name = fmt::format("weight gradient, 3x3 256->256, 32x32, 128 images, {:.0f} rows per channel", double(total) / channels);
  items = lists_.size();
  unit = "bit-add/s";
  operations = double(total) / double(items) * double(layer.patch_bits());
  of_peak = true;
  second_unit = "dense bit-MAC/s";
  second = double(images * size * size * channels * layer.patch_bits()) / double(items);
}

class GemmWorkload : public TypedWorkload<std::int32_t> {
 public:
  explicit GemmWorkload(std::size_t threads) : a_(m * k), b_(k * n) {
    Random random = random_for(4);
    for (std::int16_t& v : a_) v = static_cast<std::int16_t>(random.below(65)) - 16;      // centred counts
    for (std::int16_t& v : b_) v = static_cast<std::int16_t>(random.below(4001)) - 2000;  // fixed-point weights
    outputs_ = per_thread<std::int32_t>(threads, m * n);
    name = "integer GEMM 256x64x256, int16 (hidden layer of a head)";
    items = 1;
    unit = "MAC/s";
    operations = double(m * n * k);
  }
  void run(const simd::Kernels& kernels, std::size_t, std::size_t thread) override {
    kernels.gemm_s16(m, n, k, a_.data(), k, b_.data(), outputs_[thread].data(), n);
  }

 private:
  static constexpr std::size_t m = 256, n = 64, k = 256;
  Buffer<std::int16_t> a_, b_;
};

class PoolWorkload : public TypedWorkload<std::int16_t> {
 public:
  explicit PoolWorkload(std::size_t threads) : maps_(random_maps(shape, images)) {
    outputs_ = per_thread<std::int16_t>(threads, grid * grid * shape.channels);
    name = "pooled counts, 32x32x256 over 4x4 cells";
    items = images;
    unit = "bit-add/s";
    operations = double(shape.height * shape.width * shape.channels);
    second_unit = "images/s";
    second = 1;
  }
  void run(const simd::Kernels& kernels, std::size_t item, std::size_t thread) override {
    kernels.pool_counts(maps_.data() + item * shape.size(), shape.height, shape.width, shape.words(), shape.pitch(), grid,
                        outputs_[thread].data());
  }

 private:
  static constexpr layerwise::MapShape shape{32, 32, 256, 0};
  static constexpr std::size_t images = 8, grid = 4;
  Buffer<std::uint64_t> maps_;
};

class EncodingWorkload : public TypedWorkload<std::uint64_t> {
 public:
  explicit EncodingWorkload(std::size_t threads) : pixels_(images * image_bytes), scratch_(threads) {
    Random random = random_for(5);
    for (std::uint8_t& v : pixels_) v = static_cast<std::uint8_t>(random.below(256));
    // Integers as a file holds them: fitting an encoder takes seconds and rounds as the machine does.
    std::vector<std::int16_t> filters(features * 75);
    std::vector<std::int32_t> thresholds(features * 2);
    for (std::int16_t& v : filters) v = static_cast<std::int16_t>(static_cast<std::int32_t>(random.below(4095)) - 2047);
    for (std::int32_t& v : thresholds) v = static_cast<std::int32_t>(random.below(400001)) - 200000;
    TensorFile file;
    file.put("encoder.filters", {features, 5, 5, 3}, filters);
    file.put("encoder.thresholds", {features, 2}, thresholds);
    file.put("encoder.contrast", {1}, std::vector<float>{10});
    file.put("encoder.image_shape", {3}, std::vector<std::uint32_t>{32, 32, 3});
    encoder_ = layerwise::Encoder::load(file);
    outputs_ = per_thread<std::uint64_t>(threads, encoder_.output().size());
    name = "encoding, 32x32x3 pixels, 64 filters of 5x5 divided by contrast";
    items = images;
    unit = "MAC/s";
    operations = double(encoder_.macs());
    second_unit = "images/s";
    second = 1;
  }
  void run(const simd::Kernels& kernels, std::size_t item, std::size_t thread) override {
    encoder_.encode(kernels, pixels_.data() + item * image_bytes, outputs_[thread].data(), scratch_[thread]);
  }

 private:
  static constexpr std::size_t images = 8, features = 64, image_bytes = 32 * 32 * 3;
  std::vector<std::uint8_t> pixels_;
  layerwise::Encoder encoder_;
  std::vector<layerwise::EncodeScratch> scratch_;
};

}  // namespace

ConvWorkload::ConvWorkload(const ConvOptions& options, std::size_t images, std::size_t threads)
    : options_(options),
      layer_(make_layer(options)),
      inputs_(random_maps(layer_.geometry().input, images)),
      low_(layer_.padded_channels()),
      high_(layer_.padded_channels()) {
  for (std::size_t o = 0; o < low_.size(); ++o) {
    low_[o] = layer_.thresholds()[o] - 2;
    high_[o] = o < layer_.channels() ? layer_.thresholds()[o] + 3 : low_[o] - 1;
  }
  const std::size_t map = layer_.geometry().output.size();
  outputs_ = per_thread<std::uint64_t>(threads, options.training ? 2 * map + 2 * layer_.padded_channels() : map);
  name = fmt::format("3x3 {}->{}, {}x{}, {}{}{} fused", options.in_channels, options.out_channels, options.size, options.size,
                     options.ternary ? "ternary, " : "",
                     options.thresholds > 1 ? fmt::format("{} thresholds a channel", options.thresholds) : "threshold",
                     options.training ? ", window and statistics" : "");
  items = images;
  unit = "bit-MAC/s";
  operations = double(layer_.bit_macs());
  of_peak = true;
  second_unit = "images/s";
  second = 1;
}

void ConvWorkload::run(const simd::Kernels& kernels, std::size_t item, std::size_t thread) {
  const layerwise::MapShape& map = layer_.geometry().output;
  simd::ConvOutput out;
  out.bits = outputs_[thread].data();
  out.bits_pitch = map.pitch();
  if (options_.training) {
    out.window = out.bits + map.size();
    out.sum = reinterpret_cast<std::int64_t*>(out.window + map.size());
    out.sum_of_squares = out.sum + layer_.padded_channels();
  }
  kernels.conv(layer_.conv_shape(), image(item), layer_.conv_weights(), {layer_.thresholds().data(), low_.data(), high_.data()},
               out);
}

std::vector<float> ConvWorkload::source() const {
  const layerwise::MapShape& map = layer_.geometry().input;
  const std::size_t pixels = map.height * map.width;
  std::vector<float> values(items * map.channels * pixels);
  for (std::size_t i = 0; i < items; ++i) {
    for (std::size_t p = 0; p < pixels; ++p) {
      const std::uint64_t* pixel = image(i) + map.interior() + p / map.width * map.pitch() + p % map.width * map.words();
      for (std::size_t c = 0; c < map.channels; ++c) {
        values[(i * map.channels + c) * pixels + p] = static_cast<float>(bit_value(get_bit(pixel, c)));
      }
    }
  }
  return values;
}

std::vector<float> ConvWorkload::weights() const {
  const std::size_t channels = options_.in_channels;
  std::vector<float> values(layer_.channels() * channels * 9);
  for (std::size_t o = 0; o < layer_.channels(); ++o) {
    const std::uint64_t* row = layer_.rows().data() + o * layer_.patch_words();
    for (std::size_t tap = 0; tap < 9; ++tap) {
      for (std::size_t c = 0; c < channels; ++c) {
        values[(o * channels + c) * 9 + tap] = static_cast<float>(bit_value(get_bit(row, tap * channels + c)));
      }
    }
  }
  return values;
}

std::vector<float> ConvWorkload::expected() const {
  const std::size_t size = options_.size;
  const std::size_t pitch = layer_.padded_channels();
  Buffer<std::int32_t> counts(size * size * pitch);
  simd::kernels("ref").conv_counts(layer_.conv_shape(), image(0), layer_.conv_weights(), counts.data());
  const auto k = static_cast<std::int32_t>(layer_.patch_bits());
  std::vector<float> values(layer_.channels() * size * size, 0.0F);
  for (std::size_t o = 0; o < layer_.channels(); ++o) {
    for (std::size_t y = 1; y + 1 < size; ++y) {
      for (std::size_t x = 1; x + 1 < size; ++x) {
        values[(o * size + y) * size + x] = static_cast<float>(k - 2 * counts[(y * size + x) * pitch + o]);
      }
    }
  }
  return values;
}

std::unique_ptr<Workload> make_gradient(std::size_t threads) { return std::make_unique<GradientWorkload>(threads); }
std::unique_ptr<Workload> make_gemm(std::size_t threads) { return std::make_unique<GemmWorkload>(threads); }
std::unique_ptr<Workload> make_pool(std::size_t threads) { return std::make_unique<PoolWorkload>(threads); }
std::unique_ptr<Workload> make_encoding(std::size_t threads) { return std::make_unique<EncodingWorkload>(threads); }

}  // namespace bitloom::bench
