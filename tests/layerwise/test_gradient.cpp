#include "layerwise/gradient.h"

#include <cmath>
#include <map>
#include <numeric>

#include "simd/kernels.h"
#include "tests/layerwise/cases.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

std::int32_t value_of(std::uint8_t code) { return code == quantised_zero ? 0 : quantised_values.at(code); }

struct Shape {
  std::size_t height, width, channels, outputs, kernel, stride;
  bool ternary;
};

const std::vector<Shape> shapes = {{6, 6, 3, 5, 3, 1, false},  {5, 7, 64, 70, 3, 1, false}, {8, 8, 70, 64, 3, 2, false},
                                   {6, 6, 70, 20, 1, 1, true}, {7, 5, 64, 17, 5, 2, true},  {6, 6, 3, 66, 2, 1, true}};

// A random layer, input maps of a few images, and random windows and codes per output pixel.
struct GradientSetup {
  GradientSetup(const Shape& shape, std::uint64_t seed)
      : GradientSetup(make_layer(layer_spec(shape.outputs, shape.kernel, shape.stride, shape.ternary), shape.height,
                                 shape.width, shape.channels),
                      shape.channels, seed) {}
  // channels: those of the input that may be set.
  GradientSetup(const BinaryLayer& blank, std::size_t channels, std::uint64_t seed) : random(seed, Stream::test), layer(blank) {
    draw_weights(layer, random);
    const MapShape& input = layer.geometry().input;
    const MapShape& output = layer.geometry().output;
    pixels = output.height * output.width;
    inputs = Buffer<std::uint64_t>(images * input.size());
    for (std::size_t i = 0; i < images; ++i)
      draw_map(inputs.data() + i * input.size(), with_channels(input, channels), 2, random);
    windows.assign(images * output.size(), 0);
    for (std::size_t i = 0; i < images; ++i) draw_map(windows.data() + i * output.size(), output, 3, random);
    codes.resize(images * pixels * output.words() * 64);
    for (std::uint8_t& code : codes) {
      code = random.below(3) == 0 ? quantised_zero : static_cast<std::uint8_t>(random.below(quantised_values.size()));
      // Gradients that are such values already leave nothing to chance.
      rounding.push_back(code == quantised_zero ? 0 : (code % 8U + 1U) | (code >= 8 ? 0x100U : 0U));
    }
    region.resize(pixels);
    std::iota(region.begin(), region.end(), 0U);
    const simd::ConvShape conv = layer.conv_shape();
    for (std::size_t y = 0; y < conv.out_height; ++y) {
      for (std::size_t x = 0; x < conv.out_width; ++x) {
        patch_offset.push_back(static_cast<std::uint32_t>(y * conv.row_step + x * conv.column_step));
      }
    }
  }

  // A shape with the channels that really exist, so that tails stay 0.
  static MapShape with_channels(MapShape map, std::size_t channels) {
    map.channels = channels;
    return map;
  }
  std::uint8_t code(std::size_t image, std::size_t p, std::size_t o) const {
    return codes[(image * pixels + p) * layer.padded_channels() + o];
  }
  bool in_window(std::size_t image, std::size_t p, std::size_t o) const {
    const MapShape& output = layer.geometry().output;
    return get_bit(windows.data() + image * output.size() + p * output.words(), o);
  }

  static constexpr std::size_t images = 3;
  Random random;
  BinaryLayer layer;
  Buffer<std::uint64_t> inputs;
  std::vector<std::uint64_t> windows;
  std::vector<std::uint8_t> codes;
  std::vector<Rounding> rounding;
  std::vector<std::uint32_t> region, patch_offset;
  std::size_t pixels = 0;
};

}  // namespace

TEST_CASE("gradients are rounded without bias to powers of two", "[gradient]") {
  // One pixel with all of its 64 channels in the window, rounded again and again.
  const std::vector<float> some = {0.0F,  0.01F, 0.3F, -0.7F,   1.0F,  1.6F,    -2.0F,  3.1F,
                                   -5.0F, 7.9F,  8.0F, -0.999F, 90.0F, -127.0F, 128.0F, 500.0F};
  std::vector<float> gradient(64);
  std::vector<float> slope(64);
  for (std::size_t c = 0; c < 64; ++c) {
    gradient[c] = some[c % some.size()];
    slope[c] = c < 32 ? 1.0F : 0.5F;
  }
  const float inverse_unit = 0.75F;
  std::vector<Rounding> rounding(64);
  simd::kernels().prepare_rounding(gradient.data(), slope.data(), 64, 64, inverse_unit, rounding.data());
  const std::uint64_t window = ~std::uint64_t{0};
  const std::uint32_t zero = 0;
  constexpr int draws = 20000;
  std::vector<double> sum(64), squares(64);
  std::vector<std::uint8_t> codes(64);
  std::vector<std::int64_t> values(64);
  ImageComponents components;
  Random random(3, Stream::test);
  for (int draw = 0; draw < draws; ++draw) {
    collect_components(&window, 1, 1, 64, rounding.data(), &zero, &zero, 0, random.next(), components, values.data(),
                       codes.data());
    for (std::size_t i = 0; i < 64; ++i) {
      REQUIRE((codes[i] == quantised_zero || codes[i] < quantised_values.size()));
      const double value = value_of(codes[i]);
      sum[i] += value;
      squares[i] += value * value;
    }
  }
  for (std::size_t i = 0; i < 64; ++i) {
    const double wanted = std::clamp(static_cast<double>(gradient[i] * slope[i] * inverse_unit), -128.0, 128.0);
    const double mean = sum[i] / draws;
    const double sigma = std::sqrt(std::max(squares[i] / draws - mean * mean, 0.0) / draws);
    INFO("gradient " << gradient[i] << " of channel " << i);
    CHECK(std::fabs(mean - wanted) <= 5 * sigma + 2e-5 * std::fabs(wanted) + 1e-5);  // 1/65536 steps of probability
    CHECK(values[i] == static_cast<std::int64_t>(sum[i]));
  }
}

TEST_CASE("rounding is drawn for every pixel anew and depends on key and position alone", "[gradient]") {
  constexpr std::size_t pixels = 50;
  const std::vector<Rounding> half(64, 0x80000000U);  // half a unit everywhere
  const std::vector<std::uint64_t> window(pixels, ~std::uint64_t{0});
  const std::vector<std::uint32_t> zero(pixels, 0);
  const auto round = [&](std::uint64_t key) {
    std::vector<std::uint8_t> codes(pixels * 64);
    std::vector<std::int64_t> values(64);
    ImageComponents components;
    collect_components(window.data(), pixels, 1, 64, half.data(), zero.data(), zero.data(), 0, key, components, values.data(),
                       codes.data());
    return codes;
  };
  const std::vector<std::uint8_t> first = round(17);
  CHECK(first == round(17));
  CHECK(first != round(18));
  // Pixels of one cell, and channels of one pixel, agree as often as not.
  int pixel_agrees = 0;
  int channel_agrees = 0;
  for (std::size_t p = 0; p + 1 < pixels; ++p) {
    for (std::size_t c = 0; c + 1 < 64; ++c) {
      pixel_agrees += first[p * 64 + c] == first[(p + 1) * 64 + c] ? 1 : 0;
      channel_agrees += first[p * 64 + c] == first[p * 64 + c + 1] ? 1 : 0;
    }
  }
  const double pairs = (pixels - 1) * 63;
  CHECK(std::fabs(pixel_agrees / pairs - 0.5) < 0.05);
  CHECK(std::fabs(channel_agrees / pairs - 0.5) < 0.05);
}

TEST_CASE("components are the pixels in the window that have a code", "[gradient]") {
  for (const Shape& shape : shapes) {
    const GradientSetup s(shape, 5);
    const MapShape& output = s.layer.geometry().output;
    const std::size_t channels = s.layer.channels();
    std::vector<std::int64_t> values(s.layer.padded_channels(), 100);
    ImageComponents components;
    const std::int64_t magnitude =
        collect_components(s.windows.data(), s.pixels, output.words(), channels, s.rounding.data(), s.region.data(),
                           s.patch_offset.data(), 1000, 5, components, values.data(), nullptr);
    std::int64_t expected_magnitude = 0;
    REQUIRE(components.begin.size() == channels + 1);
    for (std::size_t o = 0; o < channels; ++o) {
      std::vector<std::uint32_t> expected;
      std::int64_t sum = 100;
      for (std::size_t p = 0; p < s.pixels; ++p) {
        if (!s.in_window(0, p, o) || s.code(0, p, o) == quantised_zero) continue;
        expected.push_back((std::uint32_t{s.code(0, p, o)} << component_offset_bits) | (s.patch_offset[p] + 1000));
        sum += value_of(s.code(0, p, o));
        expected_magnitude += std::abs(value_of(s.code(0, p, o)));
      }
      const std::vector<std::uint32_t> found(components.components.begin() + components.begin[o],
                                             components.components.begin() + components.begin[o + 1]);
      REQUIRE(found == expected);
      REQUIRE(values[o] == sum);
    }
    CHECK(magnitude == expected_magnitude);
  }
}

TEST_CASE("gradients per region hold at all pixels of the region", "[gradient]") {
  const GradientSetup s(shapes[1], 6);
  std::vector<std::uint32_t> region(s.pixels);
  for (std::size_t p = 0; p < s.pixels; ++p) region[p] = static_cast<std::uint32_t>(p % 4);
  std::vector<Rounding> spread(s.rounding.size());
  for (std::size_t p = 0; p < s.pixels; ++p) {
    for (std::size_t c = 0; c < 128; ++c) spread[p * 128 + c] = s.rounding[region[p] * 128 + c];
  }
  std::vector<std::int64_t> values(128), spread_values(128);
  ImageComponents components, spread_components;
  const auto magnitude = collect_components(s.windows.data(), s.pixels, 2, 70, s.rounding.data(), region.data(),
                                            s.patch_offset.data(), 0, 5, components, values.data(), nullptr);
  const auto spread_magnitude =
      collect_components(s.windows.data(), s.pixels, 2, 70, spread.data(), s.region.data(), s.patch_offset.data(), 0, 5,
                         spread_components, spread_values.data(), nullptr);
  CHECK(magnitude == spread_magnitude);
  CHECK(values == spread_values);
  CHECK(components.components == spread_components.components);
  CHECK(components.begin == spread_components.begin);
}

TEST_CASE("the weight gradient counts input bits, in every instruction set", "[gradient]") {
  for (const Shape& shape : shapes) {
    const GradientSetup s(shape, 7);
    const LayerGeometry& geometry = s.layer.geometry();
    const MapShape& input = geometry.input;
    std::vector<ImageComponents> components(GradientSetup::images);
    std::vector<std::int64_t> values(s.layer.padded_channels(), 0);
    for (std::size_t i = 0; i < GradientSetup::images; ++i) {
      collect_components(s.windows.data() + i * geometry.output.size(), s.pixels, geometry.output.words(), s.layer.channels(),
                         s.rounding.data() + i * s.pixels * s.layer.padded_channels(), s.region.data(), s.patch_offset.data(),
                         static_cast<std::uint32_t>(i * input.size()), 5, components[i], values.data(), nullptr);
    }
    // Brute force over images, pixels, channels, taps and input channels.
    std::vector<std::int32_t> expected(s.layer.channels() * s.layer.patch_bits(), 0);
    const std::size_t in_bits = input.words() * 64;
    for (std::size_t i = 0; i < GradientSetup::images; ++i) {
      for (std::size_t p = 0; p < s.pixels; ++p) {
        const std::size_t top = p / geometry.output.width * shape.stride;
        const std::size_t left = p % geometry.output.width * shape.stride;
        for (std::size_t o = 0; o < s.layer.channels(); ++o) {
          if (!s.in_window(i, p, o)) continue;
          const std::int32_t value = value_of(s.code(i, p, o));
          for (std::size_t tap = 0; tap < shape.kernel * shape.kernel && value != 0; ++tap) {
            const std::uint64_t* pixel = s.inputs.data() + i * input.size() + (top + tap / shape.kernel) * input.pitch() +
                                         (left + tap % shape.kernel) * input.words();
            for (std::size_t c = 0; c < in_bits; ++c) {
              expected[o * s.layer.patch_bits() + tap * in_bits + c] += get_bit(pixel, c) ? value : 0;
            }
          }
        }
      }
    }
    for (const std::string& name : simd::supported_kernels()) {
      INFO(name << " channels " << shape.channels << " kernel " << shape.kernel << " stride " << shape.stride);
      std::vector<std::int32_t> sums(expected.size(), 3);  // which must not show
      accumulate_weight_gradient(simd::kernels(name), s.layer, s.inputs.data(), components, sums.data());
      CHECK(sums == expected);
    }
  }
}

namespace {

// By definition: the gradient of the first image's input bits (H x W, bits) for components of size `unit`.
std::vector<float> input_gradient_of(const GradientSetup& s, float unit) {
  const LayerSpec& spec = s.layer.spec();
  const LayerGeometry& geometry = s.layer.geometry();
  const MapShape& input = geometry.input;
  const std::size_t in_bits = input.words() * 64;
  std::vector<float> result(input.height * input.width * in_bits, 0.0F);
  for (std::size_t p = 0; p < s.pixels; ++p) {
    for (std::size_t o = 0; o < s.layer.channels(); ++o) {
      if (!s.in_window(0, p, o)) continue;
      const auto value = static_cast<float>(value_of(s.code(0, p, o)));
      for (std::size_t tap = 0; tap < spec.kernel * spec.kernel; ++tap) {
        const std::size_t row = p / geometry.output.width * spec.stride + tap / spec.kernel;  // in the padded map
        const std::size_t column = p % geometry.output.width * spec.stride + tap % spec.kernel;
        if (row < input.border || column < input.border || row >= input.height + input.border ||
            column >= input.width + input.border) {
          continue;
        }
        float* out = result.data() + ((row - input.border) * input.width + column - input.border) * in_bits;
        for (std::size_t c = 0; c < in_bits; ++c) {
          const std::size_t bit = tap * in_bits + c;
          const std::uint64_t* sign = s.layer.rows().data() + o * s.layer.patch_words();
          const bool zero = spec.ternary && !get_bit(s.layer.nonzero_rows().data() + o * s.layer.patch_words(), bit);
          out[c] -= zero ? 0.0F : value * unit * static_cast<float>(bit_value(get_bit(sign, bit)));
        }
      }
    }
  }
  return result;
}

void check_input_gradient(const GradientSetup& s) {
  const std::size_t in_bits = s.layer.geometry().input.words() * 64;
  const float unit = 0.25F;  // a power of two: all results are exact
  const std::vector<float> expected = input_gradient_of(s, unit);
  const BackwardWeights weights(s.layer);
  for (const std::string& name : simd::supported_kernels()) {
    INFO(name);
    BackwardScratch scratch;
    std::vector<float> gradient(expected.size(), 99.0F);
    input_gradient(simd::kernels(name), weights, s.windows.data(), s.codes.data(), unit, scratch, gradient.data());
    std::size_t wrong = 0;
    for (std::size_t k = 0; k < expected.size(); ++k) {
      if (get_bit(s.layer.valid_bits().data(), k % in_bits)) wrong += gradient[k] == expected[k] ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
}

}  // namespace

TEST_CASE("the gradient of input bits is the weighted sum over what they feed", "[gradient]") {
  for (const Shape& shape : shapes) {
    INFO("channels " << shape.channels << " kernel " << shape.kernel << " stride " << shape.stride);
    check_input_gradient({shape, 8});
  }
}

TEST_CASE("the gradient of input bits is that of their tied weights, also when these have changed", "[gradient]") {
  for (const std::string weights : {"binary", "ternary"}) {
    for (const std::string pool : {"none", "space_to_depth"}) {
      INFO(weights << ", " << pool);
      const NetSpec net = parse_net(R"({"layers": [{"name": "a", "width": 128, "thresholds": 3},
          {"name": "b", "inputs": ["a", "input"], "width": 20, "thresholds": 3, "kernel": 3, "pool": ")" +
                                        pool + R"(", "weights": ")" + weights + R"("}]})",
                                    "net.json");
      const BinaryLayer blank(net.layers[1], derive_geometry(net, 8, 8, 70)[1]);
      GradientSetup s(blank, 384, 12);
      check_input_gradient(s);
      BackwardWeights after(s.layer);
      CHECK(after.pixel_words() < s.layer.geometry().input.words());
      draw_weights(s.layer, s.random);
      after.refresh();
      const BackwardWeights fresh(s.layer);
      const std::size_t words = fresh.rows() * fresh.row_words();
      CHECK(std::equal(fresh.sign(), fresh.sign() + words, after.sign()));
      if (weights == "ternary") CHECK(std::equal(fresh.nonzero(), fresh.nonzero() + words, after.nonzero()));
    }
  }
}

TEST_CASE("the gradient of an input bit predicts what flipping it does to the counts", "[gradient]") {
  // d moves by +-1 per weight that sees the bit; with one component of value v, -v * (change of d) is the predicted loss
  // change.
  const GradientSetup s(shapes[2], 9);
  const LayerGeometry& geometry = s.layer.geometry();
  const simd::Kernels& kernels = simd::kernels("ref");
  const std::size_t lanes = 64;
  std::vector<std::int32_t> before(s.pixels * lanes), after(s.pixels * lanes);
  Buffer<std::uint64_t> map(geometry.input.size());
  std::copy(s.inputs.begin(), s.inputs.begin() + geometry.input.size(), map.begin());
  kernels.conv_counts(s.layer.conv_shape(), map.data(), s.layer.conv_weights(), before.data());
  BackwardScratch scratch;
  std::vector<float> gradient(geometry.input.height * geometry.input.width * 128);
  input_gradient(kernels, BackwardWeights(s.layer), s.windows.data(), s.codes.data(), 1.0F, scratch, gradient.data());
  Random random(10, Stream::test);
  for (int trial = 0; trial < 40; ++trial) {
    const std::size_t y = random.below(8), x = random.below(8), c = random.below(70);
    std::uint64_t* pixel = map.data() + geometry.input.interior() + y * geometry.input.pitch() + x * 2;
    const bool was = get_bit(pixel, c);
    set_bit(pixel, c, !was);
    kernels.conv_counts(s.layer.conv_shape(), map.data(), s.layer.conv_weights(), after.data());
    set_bit(pixel, c, was);
    std::int32_t loss = 0;
    for (std::size_t p = 0; p < s.pixels; ++p) {
      for (std::size_t o = 0; o < s.layer.channels(); ++o) {
        if (s.in_window(0, p, o)) loss -= value_of(s.code(0, p, o)) * (after[p * lanes + o] - before[p * lanes + o]);
      }
    }
    const float predicted = gradient[(y * 8 + x) * 128 + c] * (was ? -1.0F : 1.0F);
    CHECK(static_cast<float>(loss) == predicted);
  }
}

TEST_CASE("the weight gradient of a large batch is the sum over its images", "[gradient]") {
  const GradientSetup s(shapes[2], 11);
  const LayerGeometry& geometry = s.layer.geometry();
  const std::size_t size = geometry.input.size();
  constexpr std::size_t batch = 700;  // a megabyte of maps: the three images in turns
  Buffer<std::uint64_t> inputs(batch * size);
  std::vector<ImageComponents> components(batch);
  std::vector<std::int64_t> values(s.layer.padded_channels(), 0);
  for (std::size_t i = 0; i < batch; ++i) {
    const std::size_t image = i % GradientSetup::images;
    std::copy_n(s.inputs.data() + image * size, size, inputs.data() + i * size);
    collect_components(s.windows.data() + image * geometry.output.size(), s.pixels, geometry.output.words(), s.layer.channels(),
                       s.rounding.data() + image * s.pixels * s.layer.padded_channels(), s.region.data(), s.patch_offset.data(),
                       static_cast<std::uint32_t>(i * size), 5, components[i], values.data(), nullptr);
  }
  std::vector<std::int32_t> expected(s.layer.channels() * s.layer.patch_bits(), 0);
  for (std::size_t image = 0; image < GradientSetup::images; ++image) {
    std::vector<std::int32_t> alone(expected.size(), 0);
    accumulate_weight_gradient(simd::kernels("ref"), s.layer, inputs.data(), {&components[image], 1}, alone.data());
    const auto times = static_cast<std::int32_t>((batch - image + GradientSetup::images - 1) / GradientSetup::images);
    for (std::size_t k = 0; k < expected.size(); ++k) expected[k] += times * alone[k];
  }
  std::vector<std::int32_t> sums(expected.size(), 0);
  accumulate_weight_gradient(simd::kernels(), s.layer, inputs.data(), components, sums.data());
  CHECK(sums == expected);
}
