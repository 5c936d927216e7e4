#include "layerwise/encoder.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "data/augment.h"
#include "tests/layerwise/cases.h"
#include "tests/support/catch.h"
#include "tests/support/threads.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

EncoderSpec thermometer_spec(std::size_t levels) {
  EncoderSpec spec;
  spec.kind = "thermometer";
  spec.levels = levels;
  return spec;
}

EncoderSpec whitened(std::size_t patch, std::size_t filters, double contrast = 0) {
  EncoderSpec spec;
  spec.contrast = contrast;
  spec.patch = patch;
  spec.filters = filters;
  return spec;
}

std::vector<std::uint64_t> encode(const simd::Kernels& kernels, const Encoder& encoder, std::span<const std::uint8_t> image) {
  std::vector<std::uint64_t> bits(encoder.output().size(), ~std::uint64_t{0});
  EncodeScratch scratch;
  encoder.encode(kernels, image.data(), bits.data(), scratch);
  return bits;
}

// The response of filter f at a pixel, from the definition: pixels outside the image repeat its edge.
std::int32_t response(const Encoder& encoder, std::span<const std::uint8_t> image, std::size_t f, std::ptrdiff_t y,
                      std::ptrdiff_t x, double contrast) {
  const auto height = static_cast<std::ptrdiff_t>(encoder.image_shape().height);
  const auto width = static_cast<std::ptrdiff_t>(encoder.image_shape().width);
  const auto half = static_cast<std::ptrdiff_t>(encoder.patch() / 2);
  const std::int16_t* tap = encoder.filters().data() + f * encoder.taps();
  std::int32_t sum = 0;
  double taps = 0;
  double squares = 0;
  for (std::ptrdiff_t dy = -half; dy <= half; ++dy) {
    for (std::ptrdiff_t dx = -half; dx <= half; ++dx) {
      for (std::size_t c = 0; c < encoder.image_shape().channels; ++c) {
        const auto row = std::clamp<std::ptrdiff_t>(y + dy, 0, height - 1);
        const auto column = std::clamp<std::ptrdiff_t>(x + dx, 0, width - 1);
        const int pixel = image[static_cast<std::size_t>((static_cast<std::ptrdiff_t>(c) * height + row) * width + column)];
        sum += *tap++ * pixel;
        taps += pixel;
        squares += pixel * pixel;
      }
    }
  }
  if (contrast == 0) return sum;
  const auto n = static_cast<double>(encoder.taps());
  const double variance = squares / n - taps / n * (taps / n);
  return static_cast<std::int32_t>(static_cast<float>(sum) *
                                   static_cast<float>(contrast / std::sqrt(variance + contrast * contrast)));
}

}  // namespace

TEST_CASE("the thermometer compares every colour with every level", "[encoder]") {
  const data::Dataset data = small_data(3);
  for (const std::size_t levels : {1U, 2U, 5U, 20U}) {
    const Encoder encoder = Encoder::fit(thermometer_spec(levels), data, 1);
    CHECK(encoder.output() == MapShape{12, 12, 64, 0});
    const auto bits = encode(simd::kernels("ref"), encoder, data.image(1));
    std::size_t wrong = 0;
    std::size_t set = 0;
    for (std::size_t p = 0; p < 144; ++p) {
      for (std::size_t c = 0; c < 3; ++c) {
        const std::size_t value = data.image(1)[c * 144 + p];
        for (std::size_t level = 0; level < levels; ++level) {
          // Even levels are "at or above", odd ones "at or below".
          const std::size_t threshold = 256 * (level + 1) / (levels + 1);
          const bool expected = level % 2 == 0 ? value >= threshold : value <= threshold;
          const std::size_t feature = level / 2 * 3 + c;
          wrong += get_bit(bits.data() + p, 2 * feature + level % 2) == expected ? 0 : 1;
          set += expected ? 1 : 0;
        }
      }
    }
    CHECK(wrong == 0);
    CHECK(set > 0);
    // Features that no level uses are never set.
    std::size_t all = 0;
    for (const std::uint64_t word : bits) all += static_cast<std::size_t>(std::popcount(word));
    CHECK(all == set);
  }
}

TEST_CASE("whitened filters encode to the same bits in every instruction set", "[encoder]") {
  const data::Dataset data = small_data(30);
  for (const auto& [patch, contrast] : std::vector<std::pair<std::size_t, double>>{{1, 0}, {3, 0}, {5, 0}, {3, 10}, {5, 2.5}}) {
    const Encoder encoder = Encoder::fit(whitened(patch, 4, contrast), data, 1);
    CHECK(encoder.features() == 32);
    CHECK(encoder.output().channels == 64);
    TensorFile file;
    encoder.save(file);
    const auto thresholds = file.get("encoder.thresholds").as<std::int32_t>();
    std::vector<std::uint64_t> expected(144, 0);
    for (std::size_t p = 0; p < 144; ++p) {
      for (std::size_t f = 0; f < 32; ++f) {
        const std::int32_t value = response(encoder, data.image(7), f, static_cast<std::ptrdiff_t>(p / 12),
                                            static_cast<std::ptrdiff_t>(p % 12), contrast);
        set_bit(expected.data() + p, 2 * f, value >= thresholds[2 * f]);
        set_bit(expected.data() + p, 2 * f + 1, value <= thresholds[2 * f + 1]);
      }
    }
    for (const std::string& name : simd::supported_kernels()) {
      INFO(name << " patch " << patch << " contrast " << contrast);
      CHECK(encode(simd::kernels(name), encoder, data.image(7)) == expected);
    }
  }
}

TEST_CASE("a moved image has the bits of an encoding of its own", "[encoder]") {
  const data::Dataset data = small_data(30);
  std::vector<std::uint8_t> image(data.shape.size()), moved(data.shape.size());
  EncodeScratch scratch;
  std::size_t copied = 0;
  for (const auto& [spec, margin] : std::vector<std::pair<EncoderSpec, int>>{{thermometer_spec(5), 0},
                                                                             {whitened(1, 4), 0},
                                                                             {whitened(3, 4, 10), 1},
                                                                             {whitened(5, 40, 10), 2},
                                                                             {whitened(5, 4), 2}}) {
    const Encoder encoder = Encoder::fit(spec, data, 1);
    const std::size_t words = encoder.output().words();
    for (const bool flip : {false, true}) {
      data::shift(data.image(7), data.shape, 0, 0, flip, image.data());
      const std::vector<std::uint64_t> unmoved = encode(simd::kernels(), encoder, image);
      for (const auto& [down, across] : std::vector<std::pair<int, int>>{
               {1, 0}, {-1, 0}, {0, 1}, {0, -1}, {2, -3}, {-4, 4}, {11, 0}, {0, -11}, {-11, 11}, {0, 0}}) {
        data::shift(data.image(7), data.shape, down, across, flip, moved.data());
        std::vector<std::uint64_t> bits(encoder.output().size(), ~std::uint64_t{0});
        const int right = flip ? -across : across;
        encoder.encode_moved(simd::kernels(), moved.data(), unmoved.data(), down, right, bits.data(), scratch);
        INFO("taps " << encoder.taps() << ", moved by " << down << ", " << across << (flip ? " mirrored" : ""));
        CHECK(bits == encode(simd::kernels(), encoder, moved));
        // The middle is not encoded again: what it is copied from shows.
        const int most = std::max(std::abs(down), std::abs(across));
        if (6 - margin - most <= 0) continue;
        std::vector<std::uint64_t> other = unmoved;
        const auto middle = static_cast<std::size_t>((6 + down) * 12 + 6 + right) * words;
        other[middle] ^= 1U;
        encoder.encode_moved(simd::kernels(), moved.data(), other.data(), down, right, bits.data(), scratch);
        CHECK((bits[(6 * 12 + 6) * words] ^ 1U) == encode(simd::kernels(), encoder, moved)[(6 * 12 + 6) * words]);
        ++copied;
      }
    }
  }
  CHECK(copied > 40);
}

TEST_CASE("each bit of a whitened filter is set at a quarter of the pixels", "[encoder]") {
  const data::Dataset data = small_data(60);
  const Encoder encoder = Encoder::fit(whitened(3, 32, 10), data, 1);
  std::vector<double> share(64, 0);
  for (std::size_t i = 0; i < data.size(); ++i) {
    const auto bits = encode(simd::kernels(), encoder, data.image(i));
    for (const std::uint64_t word : bits) {
      for (std::size_t c = 0; c < 64; ++c) share[c] += get_bit(&word, c) ? 1.0 / (144.0 * 60.0) : 0.0;
    }
  }
  for (const double s : share) {
    CHECK(s > 0.2);
    CHECK(s < 0.3);
  }
}

TEST_CASE("with contrast divided out, a dimmed image has the bits of the bright one", "[encoder]") {
  const data::Dataset data = small_data(60);
  const Encoder plain = Encoder::fit(whitened(3, 32), data, 1);
  const Encoder divided = Encoder::fit(whitened(3, 32, 1), data, 1);
  std::vector<std::uint8_t> dim(data.image(5).begin(), data.image(5).end());
  for (std::uint8_t& pixel : dim) pixel = static_cast<std::uint8_t>(60 + pixel / 3);
  const auto differing = [&](const Encoder& encoder) {
    const auto bright = encode(simd::kernels(), encoder, data.image(5));
    const auto dimmed = encode(simd::kernels(), encoder, dim);
    std::size_t bits = 0;
    for (std::size_t i = 0; i < bright.size(); ++i) bits += static_cast<std::size_t>(std::popcount(bright[i] ^ dimmed[i]));
    return bits;
  };
  CHECK(differing(divided) < differing(plain) / 2);
}

TEST_CASE("a patch of one grey pixel has no contrast to divide by", "[encoder]") {
  data::Dataset data = small_data(20);
  data.shape.channels = 1;
  data.pixels.resize(data.size() * data.shape.height * data.shape.width);
  const Encoder encoder = Encoder::fit(whitened(1, 4, 10), data, 1);
  const auto bits = encode(simd::kernels(), encoder, data.image(0));
  CHECK(std::any_of(bits.begin(), bits.end(), [&](std::uint64_t word) { return word != bits[0]; }));
}

// Eigenvalues that should be 0 came out below -epsilon: the whitening was NaN, and all filters 0.
TEST_CASE("images without colours are whitened as well, however small epsilon is", "[encoder]") {
  data::Dataset data = small_data(20);
  const std::size_t plane = data.shape.height * data.shape.width;
  for (std::size_t i = 0; i < data.size(); ++i) {
    std::uint8_t* const image = data.pixels.data() + i * data.shape.size();
    for (std::size_t c = 1; c < data.shape.channels; ++c) std::copy_n(image, plane, image + c * plane);
  }
  for (const double contrast : {0.0, 10.0}) {
    CAPTURE(contrast);
    EncoderSpec spec = whitened(5, 32, contrast);
    spec.epsilon = 1e-7;
    const Encoder encoder = Encoder::fit(spec, data, 1);
    std::size_t empty = 0;
    for (std::size_t f = 0; f < 32; ++f) {
      const std::int16_t* const taps = encoder.filters().data() + f * encoder.taps();
      empty += std::all_of(taps, taps + encoder.taps(), [](std::int16_t tap) { return tap == 0; }) ? 1 : 0;
    }
    CHECK(empty == 0);
  }
}

TEST_CASE("fitting depends on data, spec and seed alone", "[encoder]") {
  const data::Dataset data = small_data(20);
  const Encoder one = Encoder::fit(whitened(3, 8), data, 1);
  CHECK(Encoder::fit(whitened(3, 8), data, 1).filters() == one.filters());
  CHECK(Encoder::fit(whitened(3, 8), data, 2).filters() != one.filters());
}

// Eigen divides products of matrices by the number of threads, which changed sums of floats and with them filters and bits.
TEST_CASE("fitting does not depend on the number of threads", "[encoder]") {
  const data::Dataset data = small_data(20);
  std::vector<TensorFile> files;
  for (const int threads : {1, 2, 3}) {
    const Threads limit(threads);
    Encoder::fit(whitened(5, 64, 10), data, 1).save(files.emplace_back());
  }
  CHECK(difference(files[0], files[1]) == "");
  CHECK(difference(files[0], files[2]) == "");
}

TEST_CASE("an encoder survives its file", "[encoder]") {
  const data::Dataset data = small_data(10);
  for (const EncoderSpec& spec : {thermometer_spec(20), whitened(3, 40), whitened(3, 40, 10)}) {
    const Encoder encoder = Encoder::fit(spec, data, 1);
    TensorFile file;
    encoder.save(file);
    const Encoder loaded = Encoder::load(file);
    TensorFile again;
    loaded.save(again);
    CHECK(difference(file, again) == "");
    CHECK(loaded.output() == encoder.output());
    CHECK(encode(simd::kernels(), loaded, data.image(3)) == encode(simd::kernels(), encoder, data.image(3)));
    const bool divided = spec.kind == "whitened" && spec.contrast > 0;
    CHECK(encoder.macs() == 144 * (encoder.features() * encoder.taps() + (divided ? encoder.features() + encoder.taps() : 0)));
    CHECK(encoder.bytes() == encoder.filters().size() * 2 + encoder.features() * 8);
  }
}

TEST_CASE("what does not fit is refused", "[encoder]") {
  data::Dataset data = small_data(4);
  CHECK(has(message_of(ErrorKind::usage, [&] { Encoder::fit(whitened(13, 8), data, 1); }),
            "encoder.patch: 13 is larger than the images of 12x12 pixels"));
  TensorFile file;
  Encoder::fit(thermometer_spec(20), data, 1).save(file);
  TensorFile bad = file;
  bad.tensors.erase("encoder.thresholds");
  CHECK(has(message_of(ErrorKind::data, [&] { Encoder::load(bad); }), "encoder.thresholds"));
  bad = file;
  bad.put("encoder.filters", {31, 1, 1, 3}, std::vector<std::int16_t>(93));
  CHECK(has(message_of(ErrorKind::data, [&] { Encoder::load(bad); }), "encoder.filters: expected (32 n, odd p, p, 3)"));
  bad = file;
  bad.put("encoder.filters", {32, 1, 1, 3}, std::vector<std::int32_t>(96));
  CHECK(has(message_of(ErrorKind::data, [&] { Encoder::load(bad); }), "I16"));
  bad = file;
  bad.put("encoder.image_shape", {3}, std::vector<std::uint32_t>{12, 0, 3});
  CHECK(has(message_of(ErrorKind::data, [&] { Encoder::load(bad); }), "encoder.image_shape: 12 x 0 x 3"));
  for (const float contrast : {HUGE_VALF, std::nanf(""), 0.0F}) {
    bad = file;
    bad.put("encoder.contrast", {1}, std::vector<float>{contrast});
    CHECK(has(message_of(ErrorKind::data, [&] { Encoder::load(bad); }), "expected a finite number above 0"));
  }
  data.labels.clear();
  data.pixels.clear();
  CHECK(has(message_of(ErrorKind::data, [&] { Encoder::fit(thermometer_spec(20), data, 1); }), "no training images"));
}
