#include "layerwise/head.h"

#include <algorithm>
#include <cmath>
#include <ranges>

#include "core/softmax.h"
#include "tests/layerwise/cases.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

constexpr std::size_t classes = 5;

HeadSpec spec_of(const std::string& kind, std::size_t grid = 2) { return {kind, grid, 16, 3}; }

// Counts of random maps, and labels that have nothing to do with them, so that errors stay large.
struct Examples {
  Examples(const Head& head, const MapShape& map, std::size_t size, std::uint64_t seed)
      : n(size), counts(size * head.features()) {
    Random random(seed, Stream::test);
    Buffer<std::uint64_t> bits(map.size());
    for (std::size_t i = 0; i < n; ++i) {
      draw_map(bits.data(), map, 2 + static_cast<std::uint32_t>(i % 4), random);
      head.count(simd::kernels(), bits.data(), counts.data() + i * head.features());
      labels.push_back(static_cast<std::uint16_t>(random.below(classes)));
      for (std::size_t l = 0; l < classes; ++l) targets.push_back(l == labels.back() ? 1 : 0);
    }
  }
  std::size_t n;
  std::vector<std::int16_t> counts;
  std::vector<std::uint16_t> labels;
  std::vector<double> targets;  // (n, classes): those of the loss
};

void train(Head& head, const Examples& examples, int steps, double rate) {
  std::vector<float> gradient(examples.counts.size());
  Head::Sums sums = head.make_sums();
  for (int step = 0; step < steps; ++step) {
    sums.clear();
    head.backward(simd::kernels(), examples.counts.data(), examples.labels.data(), examples.n, {}, sums, gradient.data());
    head.update(sums, examples.n, rate, 0);
  }
}

// The head's formula in double precision, without the rounding of hidden activations; parameters in their fixed-point steps.
struct Reference {
  explicit Reference(const Head& head) : features(head.features()), channels(head.channels()) {
    const Head::Integers integers = head.integers();
    const auto copy = [](const auto& from) { return std::vector<double>(from.begin(), from.end()); };
    linear = copy(integers.linear);
    input = copy(integers.input);
    output = copy(integers.output);
    bias = copy(integers.bias);
    input_bias = copy(integers.input_bias);
    centre = copy(integers.centre);
    linear_step = integers.linear_step;
    input_step = integers.input_step;
    output_step = integers.output_step;
  }

  std::vector<double> logits(const double* counts) const {
    std::vector<double> result(bias);
    const std::size_t units = input_bias.size();
    const std::size_t cells = features / channels;
    for (std::size_t l = 0; l < classes; ++l) {
      for (std::size_t f = 0; f < features; ++f) result[l] += (counts[f] - centre[f]) * linear[l * features + f] * linear_step;
    }
    for (std::size_t g = 0; g < cells; ++g) {
      for (std::size_t j = 0; j < units; ++j) {
        double h = input_bias[j];
        for (std::size_t c = 0; c < channels; ++c) {
          h += (counts[g * channels + c] - centre[g * channels + c]) * input[j * channels + c] * input_step;
        }
        h = 64 * std::max(h, 0.0);
        for (std::size_t l = 0; l < classes; ++l) result[l] += h * output[(l * cells + g) * units + j] * output_step;
      }
    }
    return result;
  }

  double loss(const Examples& examples, const std::vector<double>& counts) const {
    double sum = 0;
    for (std::size_t i = 0; i < examples.n; ++i) {
      const auto row = logits(counts.data() + i * features);
      double z = 0;
      for (const double logit : row) z += std::exp(logit);
      for (std::size_t l = 0; l < classes; ++l) sum += examples.targets[i * classes + l] * (std::log(z) - row[l]);
    }
    return sum;
  }

  std::size_t features, channels;
  std::vector<double> linear, input, output, bias, input_bias, centre;
  double linear_step, input_step, output_step;
};

// Central differences of the loss along up to 30 of the numbers in `values`, against `scale` times what the head found.
template <typename Found>
void check_slopes(const Reference& reference, const Examples& examples, std::vector<double>& counts,
                  std::vector<double>& values, const Found& found, double scale, double step) {
  double dot = 0;
  double norm = 0;
  double expected_norm = 0;
  const std::size_t stride = values.size() / 30 + 1;
  for (std::size_t k = 0; k < values.size(); k += stride) {
    const double old = values[k];
    values[k] = old + step;
    const double up = reference.loss(examples, counts);
    values[k] = old - step;
    const double down = reference.loss(examples, counts);
    values[k] = old;
    const double expected = (up - down) / (2 * step);
    const double actual = static_cast<double>(found[k]) * scale;
    dot += expected * actual;
    norm += actual * actual;
    expected_norm += expected * expected;
  }
  REQUIRE(expected_norm > 0);
  CHECK(dot / std::sqrt(norm * expected_norm) > 0.999);
  CHECK(std::fabs(std::sqrt(norm / expected_norm) - 1) < 0.05);
}

}  // namespace

TEST_CASE("a head counts the bits of every cell", "[head]") {
  Random random(1, Stream::test);
  for (const std::size_t grid : {1U, 2U, 3U, 4U, 5U}) {
    const MapShape map = {7, 5, 70, 0};
    const Head head(spec_of("linear", grid), map, classes, 1, 1);
    CHECK(head.features() == grid * grid * 128);
    Buffer<std::uint64_t> bits(map.size());
    draw_map(bits.data(), map, 2, random);
    std::vector<std::int16_t> expected(head.features(), 0);
    for (std::size_t y = 0; y < 7; ++y) {
      for (std::size_t x = 0; x < 5; ++x) {
        const std::size_t cell = head.region_of(y, x);
        // Rows a H / G up to (a + 1) H / G - 1 belong to row a of the grid.
        REQUIRE(cell < grid * grid);
        REQUIRE(cell / grid * 7 / grid <= y);
        REQUIRE(y < (cell / grid + 1) * 7 / grid);
        REQUIRE(cell % grid * 5 / grid <= x);
        REQUIRE(x < (cell % grid + 1) * 5 / grid);
        for (std::size_t c = 0; c < 128; ++c) {
          expected[cell * 128 + c] =
              static_cast<std::int16_t>(expected[cell * 128 + c] + (get_bit(bits.data() + (y * 5 + x) * 2, c) ? 1 : 0));
        }
      }
    }
    for (const std::string& name : simd::supported_kernels()) {
      std::vector<std::int16_t> counts(head.features(), -1);
      head.count(simd::kernels(name), bits.data(), counts.data());
      CHECK(counts == expected);
    }
  }
}

TEST_CASE("the gradient of a count goes to the pixels that were counted", "[head]") {
  // Flipping bit (y, x, c) changes the counts; sum of gradient x change is what add_pixel_gradient must give.
  Random random(2, Stream::test);
  const MapShape map = {7, 5, 70, 0};
  for (const std::string& kind : {std::string("linear"), std::string("class_conv")}) {
    const Head head(spec_of(kind, 3), map, classes, 1, 1);
    std::vector<float> gradient(head.features());
    for (float& g : gradient) g = static_cast<float>(static_cast<int>(random.below(201)) - 100);
    Buffer<std::uint64_t> bits(map.size());
    std::vector<std::int16_t> counts(head.features());
    for (std::size_t p = 0; p < 35; ++p) {
      std::vector<float> pixel(128, 1.0F);
      head.add_pixel_gradient(gradient.data(), p / 5, p % 5, pixel.data());
      for (const std::size_t c : {0U, 33U, 69U}) {
        set_bit(bits.data() + p * 2, c, true);
        head.count(simd::kernels(), bits.data(), counts.data());
        set_bit(bits.data() + p * 2, c, false);
        float expected = 1.0F;
        for (std::size_t f = 0; f < counts.size(); ++f) expected += gradient[f] * static_cast<float>(counts[f]);
        REQUIRE(pixel[c] == expected);
      }
    }
    CHECK((head.region_of(0, 0) == head.regions()) == (kind == "class_conv"));
  }
}

TEST_CASE("class_conv is a binary convolution per class whose popcounts are summed", "[head]") {
  const MapShape map = {6, 5, 70, 0};
  Head head(spec_of("class_conv"), map, classes, 1, 1);
  const Examples examples(head, map, 40, 3);
  train(head, examples, 10, 0.02);
  TensorFile file;
  head.save(file, "h", false);
  const auto rows = file.get("h.class_conv").as<std::uint64_t>();
  const Head::Integers integers = head.integers();

  Random random(4, Stream::test);
  MapShape padded = map;
  padded.border = 1;
  Buffer<std::uint64_t> bits(map.size()), framed(padded.size());
  draw_map(bits.data(), map, 3, random);
  place(bits.data(), map, Downsample::none, 1, framed.data(), padded, 0);
  std::vector<std::int16_t> counts(head.features());
  std::vector<float> logits(classes);
  head.count(simd::kernels(), bits.data(), counts.data());
  head.predict(simd::kernels(), counts.data(), 1, logits.data());
  for (std::size_t l = 0; l < classes; ++l) {
    const std::uint64_t* row = rows.data() + l * 18;
    std::int64_t disagreements = 0;
    std::int64_t ones = 0;
    for (std::size_t tap = 0; tap < 9; ++tap) {
      for (std::size_t w = 0; w < 2; ++w) ones += std::popcount(row[tap * 2 + w]);
      for (std::size_t p = 0; p < 30; ++p) {
        const std::uint64_t* pixel = framed.data() + (p / 5 + tap / 3) * padded.pitch() + (p % 5 + tap % 3) * 2;
        for (std::size_t w = 0; w < 2; ++w) disagreements += std::popcount(pixel[w] ^ row[tap * 2 + w]);
      }
    }
    // d = ones + sum of value x bit, per pixel.
    const std::int64_t match = disagreements - 30 * ones;
    std::int64_t from_counts = 0;
    std::int64_t centre = 0;
    for (std::size_t f = 0; f < counts.size(); ++f) {
      from_counts += bit_value(get_bit(row, f)) * counts[f];
      centre += bit_value(get_bit(row, f)) * integers.centre[f];
    }
    CHECK(from_counts == match);
    const double gain = std::fabs(integers.linear[0]) * static_cast<double>(integers.linear_step);
    const double expected = gain * static_cast<double>(match - centre) + static_cast<double>(integers.bias[l]);
    CHECK(std::fabs(static_cast<double>(logits[l]) - expected) < 1e-4 * (1 + std::fabs(expected)));
  }
}

TEST_CASE("predictions follow the formula, in every instruction set", "[head]") {
  const MapShape map = {6, 6, 70, 0};
  for (const std::string& kind : {std::string("linear"), std::string("hidden"), std::string("class_conv")}) {
    INFO(kind);
    Head head(spec_of(kind), map, classes, 1, 1);
    const Examples examples(head, map, 37, 5);
    train(head, examples, 20, 0.02);
    const Reference reference(head);
    std::vector<float> expected;
    for (std::size_t i = 0; i < examples.n; ++i) {
      const std::vector<double> counts(examples.counts.begin() + static_cast<std::ptrdiff_t>(i * head.features()),
                                       examples.counts.begin() + static_cast<std::ptrdiff_t>((i + 1) * head.features()));
      for (const double logit : reference.logits(counts.data())) expected.push_back(static_cast<float>(logit));
    }
    std::vector<float> first(expected.size());
    head.predict(simd::kernels("ref"), examples.counts.data(), examples.n, first.data());
    CHECK(compare(first, expected, 0.05) == "");
    for (const std::string& name : simd::supported_kernels()) {
      std::vector<float> logits(expected.size());
      head.predict(simd::kernels(name), examples.counts.data(), examples.n, logits.data());
      CHECK(logits == first);
      // One image at a time.
      head.predict(simd::kernels(name), examples.counts.data() + 3 * head.features(), 1, logits.data());
      CHECK(std::equal(logits.begin(), logits.begin() + classes, first.begin() + 3 * classes));
    }
  }
}

TEST_CASE("gradients are the slopes of the loss", "[head]") {
  const MapShape map = {6, 6, 70, 0};
  for (const std::string& kind : {std::string("linear"), std::string("hidden"), std::string("class_conv")}) {
    INFO(kind);
    Head head(spec_of(kind), map, classes, 1, 1);
    // Other examples than it was trained on: their gradients do not cancel, which would leave the rounding.
    train(head, Examples(head, map, 21, 6), 30, 0.01);
    const Examples examples(head, map, 21, 60);
    Head::Sums sums = head.make_sums();
    std::vector<float> gradient(examples.counts.size());
    const Head::Loss loss =
        head.backward(simd::kernels(), examples.counts.data(), examples.labels.data(), examples.n, {}, sums, gradient.data());
    Reference reference(head);
    std::vector<double> counts(examples.counts.begin(), examples.counts.end());
    CHECK(std::fabs(1e-6 * static_cast<double>(loss.micro_nats) - reference.loss(examples, counts)) < 0.1);
    const double error = 1.0 / 4096;
    const double hidden_error = 1.0 / 65536;
    check_slopes(reference, examples, counts, counts, gradient, 1, 1e-3);
    check_slopes(reference, examples, counts, reference.linear, sums.linear, error * reference.linear_step, 1e-2);
    check_slopes(reference, examples, counts, reference.bias, sums.linear_bias, error, 1e-5);
    if (kind != "hidden") continue;
    check_slopes(reference, examples, counts, reference.input, sums.hidden, hidden_error * reference.input_step, 1e-3);
    check_slopes(reference, examples, counts, reference.input_bias, sums.hidden_bias, hidden_error, 1e-6);
    check_slopes(reference, examples, counts, reference.output, sums.output, error * reference.output_step, 1e-2);
  }
}

TEST_CASE("a teacher's probabilities have their share of the targets, and label smoothing the label's", "[head]") {
  const MapShape map = {6, 6, 70, 0};
  Head head(spec_of("hidden"), map, classes, 1, 1);
  train(head, Examples(head, map, 21, 6), 30, 0.01);
  Examples examples(head, map, 21, 60);
  const std::vector<std::uint8_t> row = {10, 0, 200, 40, 5};
  std::vector<std::uint8_t> soft;
  for (std::size_t i = 0; i < examples.n; ++i) {
    for (std::size_t l = 0; l < classes; ++l) soft.push_back(row[(l + i) % classes]);
  }
  for (const double share : {0.0, 0.3, 1.0}) {
    const double smoothing = 0.2;
    for (std::size_t k = 0; k < soft.size(); ++k) {
      const double label = k % classes == examples.labels[k / classes] ? 1 : 0;
      examples.targets[k] = share * soft[k] / 255 + (1 - share) * ((1 - smoothing) * label + smoothing / classes);
    }
    Head::Objective objective;
    objective.smoothing = smoothing;
    objective.teacher_share = share;
    objective.soft_labels = soft.data();
    Head::Sums sums = head.make_sums();
    std::vector<float> gradient(examples.counts.size());
    const Head::Loss loss = head.backward(simd::kernels(), examples.counts.data(), examples.labels.data(), examples.n,
                                          objective, sums, gradient.data());
    Reference reference(head);
    std::vector<double> counts(examples.counts.begin(), examples.counts.end());
    check_slopes(reference, examples, counts, counts, gradient, 1, 1e-3);
    check_slopes(reference, examples, counts, reference.bias, sums.linear_bias, 1.0 / 4096, 1e-5);
    // The reported loss is that of the labels, whatever a net learns from.
    Head::Sums plain = head.make_sums();
    const Head::Loss of_labels =
        head.backward(simd::kernels(), examples.counts.data(), examples.labels.data(), examples.n, {}, plain, gradient.data());
    CHECK(loss.micro_nats == of_labels.micro_nats);
    CHECK(loss.correct == of_labels.correct);
  }
}

TEST_CASE("dropped features are at their mean, the others are scaled up", "[head]") {
  const MapShape map = {6, 6, 70, 0};
  for (const double dropout : {0.25, 0.5}) {
    Head head(spec_of("hidden"), map, classes, 1, 1);
    train(head, Examples(head, map, 21, 6), 30, 0.01);
    const Examples examples(head, map, 21, 60);
    const std::size_t f = head.features();
    std::vector<std::uint64_t> keys;
    for (std::size_t i = 0; i < examples.n; ++i) keys.push_back(1000 + i);
    const Head::Objective objective = {0, dropout, keys.data()};
    Head::Sums sums = head.make_sums();
    std::vector<float> gradient(examples.counts.size());
    const Head::Loss loss = head.backward(simd::kernels(), examples.counts.data(), examples.labels.data(), examples.n,
                                          objective, sums, gradient.data());
    // Dropped features: those with which an image alone leaves no gradient of the linear weights of its class.
    Reference reference(head);
    std::vector<double> counts;
    std::size_t dropped = 0;
    std::size_t known = 0;
    for (std::size_t i = 0; i < examples.n; ++i) {
      Head::Sums one = head.make_sums();
      std::vector<float> ignored(f);
      const Head::Objective alone = {0, dropout, keys.data() + i};
      head.backward(simd::kernels(), examples.counts.data() + i * f, examples.labels.data() + i, 1, alone, one, ignored.data());
      for (std::size_t k = 0; k < f; ++k) {
        const double centred = examples.counts[i * f + k] - reference.centre[k];
        const bool kept = one.linear[examples.labels[i] * f + k] != 0;
        known += centred != 0 ? 1 : 0;
        dropped += centred != 0 && !kept ? 1 : 0;
        counts.push_back(reference.centre[k] + (kept ? centred / (1 - dropout) : 0));
      }
    }
    REQUIRE(known > 4000);
    CHECK(std::fabs(static_cast<double>(dropped) / static_cast<double>(known) - dropout) < 0.03);
    CHECK(std::fabs(1e-6 * static_cast<double>(loss.micro_nats) - reference.loss(examples, counts)) < 0.1);
    check_slopes(reference, examples, counts, counts, gradient, 1 - dropout, 1e-3);
    // The scale of features, which inference uses, does not see it.
    Head::Sums plain = head.make_sums();
    head.backward(simd::kernels(), examples.counts.data(), examples.labels.data(), examples.n, {}, plain, gradient.data());
    CHECK(sums.count == plain.count);
    CHECK(sums.count_squared == plain.count_squared);
  }
}

TEST_CASE("a head starts from another as inference knows it", "[head]") {
  const MapShape map = {6, 6, 70, 0};
  for (const std::string& kind : {std::string("hidden"), std::string("class_conv")}) {
    Head trained(spec_of(kind), map, classes, 1, 1);
    const Examples examples(trained, map, 21, 6);
    train(trained, examples, 30, 0.01);
    Head head(spec_of(kind), map, classes, 2, 2);
    head.start_from(trained);
    std::vector<float> expected(examples.n * classes), logits(examples.n * classes);
    trained.predict(simd::kernels(), examples.counts.data(), examples.n, expected.data());
    head.predict(simd::kernels(), examples.counts.data(), examples.n, logits.data());
    CHECK(logits == expected);
    train(head, examples, 5, 0.01);
    head.predict(simd::kernels(), examples.counts.data(), examples.n, logits.data());
    CHECK(logits != expected);
  }
}

TEST_CASE("sums and losses do not depend on how examples are grouped", "[head]") {
  const MapShape map = {6, 6, 70, 0};
  Head head(spec_of("hidden"), map, classes, 1, 1);
  const Examples examples(head, map, 37, 7);
  train(head, examples, 5, 0.02);
  const std::size_t f = head.features();
  Head::Sums whole = head.make_sums();
  std::vector<float> gradient(examples.counts.size());
  std::vector<std::uint64_t> keys(37);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i * i;
  const auto loss = head.backward(simd::kernels(), examples.counts.data(), examples.labels.data(), 37, {0.1, 0.3, keys.data()},
                                  whole, gradient.data());
  for (const std::string& name : simd::supported_kernels()) {
    Head::Sums parts = head.make_sums();
    std::vector<float> pieces(examples.counts.size());
    Head::Loss total;
    for (std::size_t begin = 0; begin < 37; begin += 5) {
      const std::size_t n = std::min<std::size_t>(5, 37 - begin);
      const auto part = head.backward(simd::kernels(name), examples.counts.data() + begin * f, examples.labels.data() + begin,
                                      n, {0.1, 0.3, keys.data() + begin}, parts, pieces.data() + begin * f);
      total.micro_nats += part.micro_nats;
      total.correct += part.correct;
    }
    CHECK(total.micro_nats == loss.micro_nats);
    CHECK(total.correct == loss.correct);
    CHECK(pieces == gradient);
    CHECK(parts.linear == whole.linear);
    CHECK(parts.linear_bias == whole.linear_bias);
    CHECK(parts.hidden == whole.hidden);
    CHECK(parts.hidden_bias == whole.hidden_bias);
    CHECK(parts.output == whole.output);
    CHECK(parts.count == whole.count);
    CHECK(parts.count_squared == whole.count_squared);
  }
}

TEST_CASE("a head learns what can be learnt", "[head]") {
  const MapShape map = {6, 6, 64, 0};
  for (const std::string& kind : {std::string("linear"), std::string("hidden"), std::string("class_conv")}) {
    Head head(spec_of(kind), map, classes, 1, 1);
    Examples examples(head, map, 100, 8);
    // The class is the one of five groups of channels that is on most.
    Random random(9, Stream::test);
    for (std::size_t i = 0; i < examples.n; ++i) {
      for (std::size_t k = 0; k < head.features(); ++k) {
        examples.counts[i * head.features() + k] =
            static_cast<std::int16_t>(random.below(4) + (k % 64 % classes == examples.labels[i] ? 2 : 0));
      }
    }
    train(head, examples, 60, 0.02);
    Head::Sums sums = head.make_sums();
    std::vector<float> gradient(examples.counts.size());
    const auto loss =
        head.backward(simd::kernels(), examples.counts.data(), examples.labels.data(), 100, {}, sums, gradient.data());
    INFO(kind << " loss " << loss.micro_nats);
    CHECK(loss.correct >= 95);
  }
}

TEST_CASE("a head survives its file, and continues from a checkpoint", "[head]") {
  const MapShape map = {6, 6, 70, 0};
  for (const std::string& kind : {std::string("linear"), std::string("hidden"), std::string("class_conv")}) {
    INFO(kind);
    Head head(spec_of(kind), map, classes, 1, 1);
    const Examples examples(head, map, 20, 10);
    train(head, examples, 8, 0.02);
    TensorFile model, training;
    head.save(model, "h", false);
    head.save(training, "h", true);
    Head for_use(spec_of(kind), map, classes, 7, 7);
    Head for_training(spec_of(kind), map, classes, 8, 8);
    for_use.load(model, "h", false);
    for_training.load(training, "h", true);
    std::vector<float> expected(20 * classes), logits(20 * classes);
    head.predict(simd::kernels(), examples.counts.data(), 20, expected.data());
    for_use.predict(simd::kernels(), examples.counts.data(), 20, logits.data());
    CHECK(logits == expected);
    TensorFile again;
    for_use.save(again, "h", false);
    CHECK(difference(model, again) == "");
    train(head, examples, 3, 0.02);
    train(for_training, examples, 3, 0.02);
    TensorFile one, two;
    head.save(one, "h", true);
    for_training.save(two, "h", true);
    CHECK(difference(one, two) == "");
    CHECK(head.bytes() > 0);
    CHECK(head.macs() > 0);

    // Fewer bits: the file has what the head predicts with.
    const auto stored_bytes = [](const TensorFile& file) {
      std::size_t bytes = 0;
      for (const auto& [name, tensor] : file.tensors) bytes += tensor.bytes.size();
      return bytes;
    };
    CHECK(stored_bytes(model) == head.bytes());
    for_training.round_weights(4);
    TensorFile rounded;
    for_training.save(rounded, "h", false);
    CHECK(stored_bytes(rounded) == for_training.bytes());
    CHECK((kind == "class_conv") == (for_training.bytes() == head.bytes()));
    for_use.load(rounded, "h", false);
    CHECK(for_use.bytes() == for_training.bytes());
    for_training.predict(simd::kernels(), examples.counts.data(), 20, expected.data());
    for_use.predict(simd::kernels(), examples.counts.data(), 20, logits.data());
    CHECK(logits == expected);
    head.predict(simd::kernels(), examples.counts.data(), 20, logits.data());
    CHECK((kind == "class_conv") == (logits == expected));
    TensorFile rounded_again;
    for_use.save(rounded_again, "h", false);
    CHECK(difference(rounded, rounded_again) == "");
    train(for_training, examples, 1, 0.02);  // gives the bits up
    CHECK(for_training.bytes() == head.bytes());

    model.put("h.scale", {1}, std::vector<float>{std::nanf("")});
    CHECK(has(message_of(ErrorKind::data, [&] { for_use.load(model, "h", false); }), "h.scale"));
    model.tensors.erase("h.centre");
    CHECK(has(message_of(ErrorKind::data, [&] { for_use.load(model, "h", false); }), "h.centre"));
  }
}

TEST_CASE("heads that do not fit their map are refused", "[head]") {
  const auto message = [](const HeadSpec& spec, const MapShape& map) {
    return message_of(ErrorKind::usage, [&] { Head(spec, map, classes, 1, 1); });
  };
  CHECK(has(message(spec_of("linear", 7), {6, 8, 64, 0}), "head.grid: 7 cells do not fit a map of 6x8 pixels"));
  CHECK(has(message({"hidden", 2, 20, 3}, {6, 8, 64, 0}), "head.hidden: 20 is not a multiple of 16"));
  CHECK(has(message({"class_conv", 2, 16, 4}, {6, 8, 64, 0}), "head.kernel: 4 does not fit"));
  CHECK(has(message({"class_conv", 2, 16, 7}, {6, 8, 64, 0}), "head.kernel: 7 does not fit a map of 6x8 pixels"));
}

// Sums over 16 images of 224 x 224 pixels wrapped: 2^13 x 16 x 50176 exceeds 32 bits.
TEST_CASE("a head's sums over images of a large map are those of each image", "[head]") {
  const MapShape map{224, 224, 64, 0};
  Head head(spec_of("hidden", 4), map, classes, 1, 2);
  train(head, Examples(head, map, 16, 1), 8, 50);  // weights as large as they can be
  Examples set(head, map, 16, 2);
  std::fill(set.counts.begin(), set.counts.end(), std::int16_t{56 * 56});
  std::fill(set.labels.begin(), set.labels.end(), std::uint16_t{1});
  std::vector<float> gradient(set.counts.size());
  Head::Sums together = head.make_sums();
  head.backward(simd::kernels(), set.counts.data(), set.labels.data(), set.n, {}, together, gradient.data());
  Head::Sums single = head.make_sums();
  for (std::size_t i = 0; i < set.n; ++i) {
    head.backward(simd::kernels(), set.counts.data() + i * head.features(), set.labels.data() + i, 1, {}, single,
                  gradient.data());
  }
  for (std::size_t part = 0; part < together.all().size(); ++part) {
    CHECK(std::ranges::equal(together.all()[part], single.all()[part]));
  }
  const auto sizes = [](std::int64_t a, std::int64_t b) { return std::abs(a) < std::abs(b); };
  const std::span<const std::int64_t> hidden = together.hidden;
  CHECK(std::abs(*std::max_element(hidden.begin(), hidden.end(), sizes)) > std::int64_t{1} << 31U);
}

TEST_CASE("a head that counts more pixels together than 16 bits hold is refused", "[head]") {
  const MapShape map{224, 224, 64, 0};
  check_head(spec_of("hidden", 2), map);
  CHECK(message_of(ErrorKind::usage, [&] { check_head(spec_of("linear", 1), map); }) ==
        "head.grid: 50176 pixels of a map of 224x224 are counted together; expected at most 32767: a larger grid, or a smaller "
        "map");
  CHECK(
      message_of(ErrorKind::usage, [&] { check_head(spec_of("class_conv"), map); }) ==
      "head: 50176 pixels of a map of 224x224 are counted together; expected at most 32767: another kind of head, or a smaller "
      "map");
}
