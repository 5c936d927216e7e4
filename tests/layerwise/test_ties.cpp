// Tied weights: those of a row with several thresholds, and those that meet the planes of such a row.
#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "layerwise/flip_study.h"
#include "layerwise/layer_trainer.h"
#include "layerwise/ties.h"
#include "mpi/comm.h"
#include "tests/layerwise/cases.h"
#include "tests/layerwise/random_model.h"
#include "tests/layerwise/small_stage.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

constexpr std::size_t side = 8;
constexpr std::size_t encoder_bits = 70;

// "b" reads the 3 x 20 bits of "a" and the encoder's.
NetSpec net_of(const std::string& pool, const std::string& weights) {
  return parse_net(
      R"({"layers": [{"name": "a", "width": 20, "thresholds": 3}, {"name": "b", "inputs": ["a", "input"], "width": 9,
      "thresholds": 2, "pool": ")" +
          pool + R"(", "weights": ")" + weights + R"("}]})",
      "net.json");
}

BinaryLayer layer_of(const NetSpec& net) {
  return BinaryLayer(net.layers[1], derive_geometry(net, side, side, encoder_bits)[1]);
}

// By definition: the first weight that weight k is tied to. A pixel has `copies` words of "a", then that many times two words
// of the encoder.
std::size_t first_of(std::size_t k, std::size_t copies) {
  const std::size_t words_of_pixel = copies * 3;
  const std::size_t word = k / 64 % words_of_pixel;
  return word < copies ? k / 64 * 64 + k % 64 % 20 : k;
}

bool is_weight(std::size_t k, std::size_t copies) {
  const std::size_t word = k / 64 % (copies * 3);
  if (word < copies) return k % 64 < 60;
  return (word - copies) % 2 == 0 || k % 64 < encoder_bits - 64;
}

}  // namespace

TEST_CASE("several thresholds of a row give several channels", "[ties]") {
  const NetSpec net = net_of("or", "binary");
  const auto geometry = derive_geometry(net, side, side, encoder_bits);
  CHECK(geometry[0].output.channels == 60);
  CHECK(geometry[1].sources[0].planes == 3);
  CHECK(geometry[1].sources[1].planes == 1);
  CHECK(net_from_json(to_json(net), "net.json").layers[0].thresholds == 3);
  CHECK_FALSE(to_json(parse_net(R"({"layers": [{"name": "a", "width": 8}]})", "net.json"))["layers"][0].contains("thresholds"));
  const BinaryLayer layer = layer_of(net);
  CHECK(layer.channels() == 18);
  CHECK(layer.weights() == 9 * 9 * (20 + encoder_bits));
  CHECK(layer.weight_bits() == layer.weights());
  CHECK_FALSE(make_layer(layer_spec(9, 3, 1, false), 6, 6, 70).ties().any());
  for (const char* wrong : {"0", "5"}) {
    const std::string text = std::string(R"({"layers": [{"name": "a", "width": 8, "thresholds": )") + wrong + "}]}";
    CHECK(has(message_of(ErrorKind::usage, [&] { parse_net(text, "net.json"); }),
              std::string("thresholds: ") + wrong + " is out of range; expected 1 to 4"));
  }
}

TEST_CASE("tied weights get the sum of what they have, or what the first has", "[ties]") {
  Random random(1, Stream::test);
  for (const std::string pool : {"or", "space_to_depth"}) {
    const std::size_t copies = pool == "or" ? 1 : 4;
    const BinaryLayer layer = layer_of(net_of(pool, "binary"));
    const std::size_t bits = layer.patch_bits();
    std::vector<float> values(bits), sums(bits, 0.0F), result(bits, 0.0F);
    std::vector<std::int16_t> states(bits), spread(bits);
    for (std::size_t k = 0; k < bits; ++k) {
      values[k] = static_cast<float>(random.below(1000));  // sums are exact
      states[k] = static_cast<std::int16_t>(random.below(1000));
      if (is_weight(k, copies)) sums[first_of(k, copies)] += values[k];
      REQUIRE(get_bit(layer.ties().first().data(), k) == (is_weight(k, copies) && first_of(k, copies) == k));
    }
    result = values;
    spread = states;
    layer.ties().sum(result);
    layer.ties().spread(spread);
    for (std::size_t k = 0; k < bits; ++k) {
      if (!is_weight(k, copies)) continue;
      REQUIRE(result[k] == sums[first_of(k, copies)]);
      REQUIRE(spread[k] == states[first_of(k, copies)]);
    }
  }
}

namespace {

void draw_untied_weights(BinaryLayer& layer, Random& random) {
  std::vector<std::uint64_t> sign(layer.patch_words()), nonzero(layer.patch_words());
  for (std::size_t o = 0; o < layer.channels(); ++o) {
    for (std::size_t w = 0; w < sign.size(); ++w) {
      nonzero[w] = layer.valid_bits()[w] & (layer.spec().ternary ? random.next() : ~std::uint64_t{0});
      sign[w] = random.next() & nonzero[w];
    }
    layer.set_row(o, sign.data(), layer.spec().ternary ? nonzero.data() : nullptr);
  }
}

}  // namespace

TEST_CASE("a layer's file has tied weights once", "[ties]") {
  Random random(2, Stream::test);
  for (const std::string weights : {"binary", "ternary"}) {
    for (const std::string pool : {"or", "space_to_depth"}) {
      const std::size_t copies = pool == "or" ? 1 : 4;
      const BinaryLayer blank = layer_of(net_of(pool, weights));
      BinaryLayer drawn = blank;
      draw_untied_weights(drawn, random);
      TensorFile file;
      drawn.save(file);
      CHECK(file.tensors.at("b.sign").shape == std::vector<std::size_t>{9, 9 * 3 * copies});
      CHECK(file.tensors.at("b.threshold").shape == std::vector<std::size_t>{18});
      BinaryLayer loaded = blank;
      loaded.load(file);
      const std::size_t words = drawn.patch_words();
      for (std::size_t o = 0; o < loaded.channels(); ++o) {
        for (std::size_t k = 0; k < drawn.patch_bits(); ++k) {
          if (!is_weight(k, copies)) continue;
          const std::size_t first = first_of(k, copies);
          REQUIRE(get_bit(loaded.rows().data() + o * words, k) == get_bit(drawn.rows().data() + o % 9 * words, first));
          if (weights == "binary") continue;
          REQUIRE(get_bit(loaded.nonzero_rows().data() + o * words, k) ==
                  get_bit(drawn.nonzero_rows().data() + o % 9 * words, first));
        }
      }
      TensorFile again;
      loaded.save(again);
      CHECK(difference(file, again) == "");
    }
  }
}

namespace {

std::vector<std::size_t> twins_of(const BinaryLayer& layer) {
  const simd::ConvShape shape = layer.conv_shape();
  if (shape.twin == nullptr) return {};
  return {shape.twin, shape.twin + shape.pixel_words};
}

}  // namespace

TEST_CASE("words of a patch have the weights of the first plane's where planes take whole words", "[ties]") {
  const NetSpec net = parse_net(
      R"({"layers": [{"name": "a", "width": 128, "thresholds": 2}, {"name": "b", "width": 32, "thresholds": 2},
      {"name": "c", "inputs": ["a", "b"], "width": 8, "pool": "space_to_depth", "kernel": 1, "stride": 2}]})",
      "net.json");
  const auto geometry = derive_geometry(net, side, side, encoder_bits);
  // Four words of "a" for each pixel of 2 x 2, and after all of these one of "b" for each.
  std::vector<std::size_t> expected;
  for (const std::size_t pixel : {0, 1, 2, 3}) {
    for (const std::size_t word : {0, 1, 0, 1}) expected.push_back(4 * pixel + word);
  }
  for (const std::size_t word : {16, 17, 18, 19}) expected.push_back(word);
  const BinaryLayer layer(net.layers[2], geometry[2]);
  const Ties::PixelWords& words = layer.ties().pixel_words();
  std::vector<std::size_t> first;
  for (const std::size_t place : words.place) first.push_back(words.stored[place]);
  CHECK(first == expected);
  CHECK(words.stored == std::vector<std::size_t>{0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 18, 19});
  CHECK(twins_of(layer) == std::vector<std::size_t>{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, 16, 17, 18, 19});
}

TEST_CASE("every two words that meet the same weights are twins", "[ties]") {
  const auto twins = [](std::size_t width, std::size_t thresholds) {
    const NetSpec net = parse_net(fmt::format(R"({{"layers": [{{"name": "a", "width": {}, "thresholds": {}}},
        {{"name": "b", "inputs": ["input", "a"], "width": 8}}]}})",
                                              width, thresholds),
                                  "net.json");
    return twins_of(BinaryLayer(net.layers[1], derive_geometry(net, side, side, encoder_bits)[1]));
  };
  // After the two words of the encoder.
  CHECK(twins(64, 2) == std::vector<std::size_t>{0, 1, 3, 2});
  CHECK(twins(64, 3) == std::vector<std::size_t>{0, 1, 3, 2, 4});
  CHECK(twins(128, 4) == std::vector<std::size_t>{0, 1, 4, 5, 2, 3, 8, 9, 6, 7});
  CHECK(twins(64, 1).empty());
  CHECK(twins(20, 3).empty());
}

TEST_CASE("tied weights move by the sum of their gradients, whatever thresholds and planes these come from", "[ties]") {
  const BinaryLayer start = layer_of(net_of("or", "binary"));
  const std::size_t bits = start.patch_bits();
  const std::size_t rows = start.ties().rows();
  LayerOptions options;
  options.rule.learning_rate = 0.05;
  for (const auto& [decay, momentum] : {std::pair(0.0, 0.0), std::pair(0.9, 0.0), std::pair(0.0, 0.9)}) {
    options.second_moment_decay = decay;
    options.muon_momentum = momentum;
    BinaryLayer split = start;
    BinaryLayer whole = start;
    LayerTrainer of_split(split, options, 1, 2);
    LayerTrainer of_whole(whole, options, 1, 2);
    LayerSums sums = of_split.make_sums();
    LayerSums at_first = of_split.make_sums();
    Random random(3, Stream::test);
    // No image was seen: the gradient is minus the sums.
    for (std::size_t o = 0; o < split.channels(); ++o) {
      for (std::size_t k = 0; k < bits; ++k) {
        if (!is_weight(k, 1)) continue;
        const auto sum = static_cast<std::int32_t>(random.below(2001)) - 1000;
        sums.weight[o * bits + k] = sum;
        at_first.weight[o % rows * bits + first_of(k, 1)] += sum;
      }
    }
    const BinaryLayer before = split;
    const std::vector<std::int16_t> states(of_split.states().begin(), of_split.states().end());
    of_split.choose(sums, 1, 0);
    of_whole.choose(at_first, 1, 0);
    const std::size_t flips = of_split.apply();
    CHECK(of_whole.apply() == flips);
    CHECK(std::equal(of_split.states().begin(), of_split.states().end(), of_whole.states().begin()));
    CHECK_FALSE(std::equal(of_split.states().begin(), of_split.states().end(), states.begin()));
    TensorFile old_file, new_file;
    before.save(old_file);
    split.save(new_file);
    const auto old_sign = old_file.get("b.sign", DType::u64, {rows, 27}).as<std::uint64_t>();
    const auto new_sign = new_file.get("b.sign", DType::u64, {rows, 27}).as<std::uint64_t>();
    std::size_t changed = 0;
    for (std::size_t i = 0; i < old_sign.size(); ++i)
      changed += static_cast<std::size_t>(std::popcount(old_sign[i] ^ new_sign[i]));
    CHECK(changed == flips);
    CHECK(flips > 0);
  }
}

TEST_CASE("tied weights learn as fast by sums of which only the elements' root mean square is known", "[ties]") {
  const BinaryLayer start = layer_of(net_of("or", "binary"));
  const std::size_t bits = start.patch_bits();
  LayerOptions options;
  options.rule.learning_rate = 0.01;
  double moved[2];
  for (const bool centred : {false, true}) {
    BinaryLayer layer = start;
    LayerTrainer trainer(layer, options, 1, 2);
    LayerSums sums = trainer.make_sums();
    Random random(4, Stream::test);
    double squares = 0;
    for (std::size_t o = 0; o < layer.channels(); ++o) {
      for (std::size_t k = 0; k < bits; ++k) {
        if (!is_weight(k, 1)) continue;
        sums.weight[o * bits + k] = static_cast<std::int32_t>(random.below(2001)) - 1000;
        squares += static_cast<double>(sums.weight[o * bits + k]) * sums.weight[o * bits + k];
      }
    }
    const double rms = std::sqrt(squares / static_cast<double>(layer.channels() * layer.geometry().valid_bits));
    const std::vector<std::int16_t> before(trainer.states().begin(), trainer.states().end());
    trainer.choose(sums, 1, 0, centred ? std::optional(rms) : std::nullopt);
    double sum = 0;
    for (std::size_t i = 0; i < before.size(); ++i) sum += std::abs(trainer.states()[i] - before[i]);
    moved[centred ? 1 : 0] = sum;
  }
  // In the mean over weights that are tied in twos and in sixes.
  CHECK(moved[1] / moved[0] == Catch::Approx(1).margin(0.2));
}

TEST_CASE("tied weights stay so while they learn, and thresholds go their own ways", "[ties]") {
  const auto with = [](const char* what, auto&& change) {
    StageCase c = tied_case();
    c.name += what;
    change(c);
    return c;
  };
  const StageCase cases[] = {
      tied_case(),
      with(", ternary", [](StageCase& c) { c.net.insert(c.net.find(R"("width": 12)"), R"("weights": "ternary", )"); }),
      with(", second moments", [](StageCase& c) { c.options.layer.second_moment_decay = 0.9; }),
      with(", Muon", [](StageCase& c) { c.options.layer.muon_momentum = 0.9; }),
      with(", updates in a row", [](StageCase& c) { c.options.repeat = 2; }),
      with(", sparse and late", [](StageCase& c) {
        c.options.workers = 3;
        c.options.sparse = true;
        c.options.exchange.threshold = 1.5;
        c.options.exchange.staleness = 2;
      })};
  for (const StageCase& c : cases) {
    INFO(c.name);
    mpi::Comm alone;
    SmallStage small(c, simd::kernels(), alone);
    std::size_t flips = 0;
    for (int step = 0; step < 24; ++step) {
      for (const std::size_t of_layer : small.stage().step().flips) flips += of_layer;
    }
    small.stage().settle();
    CHECK(flips > 0);
    for (const auto& trainer : small.stage().trainers()) {
      const BinaryLayer& layer = trainer->layer();
      REQUIRE(layer.ties().any());
      TensorFile file;
      layer.save(file);
      BinaryLayer once = layer;
      once.load(file);
      CHECK(std::equal(layer.rows().begin(), layer.rows().end(), once.rows().begin()));
      CHECK(std::equal(layer.nonzero_rows().begin(), layer.nonzero_rows().end(), once.nonzero_rows().begin()));
      const std::size_t rows = layer.ties().rows();
      std::size_t apart = 0;
      for (std::size_t r = 0; r < rows; ++r) apart += layer.thresholds()[r] < layer.thresholds()[r + rows] ? 1 : 0;
      CHECK(apart > rows / 2);
      if (c.options.sparse) continue;  // the states are the server's
      const std::size_t bits = layer.patch_bits();
      const std::span<const std::int16_t> states = trainer->states();
      std::vector<std::int16_t> first(states.begin(), states.begin() + static_cast<std::ptrdiff_t>(bits));
      layer.ties().spread(first);
      CHECK(std::equal(first.begin(), first.end(), states.begin() + static_cast<std::ptrdiff_t>(rows * bits)));
    }
  }
}

TEST_CASE("what would part tied weights is refused", "[ties]") {
  const auto refusal = [](auto&& change) {
    StageCase c = tied_case();
    change(c);
    mpi::Comm alone;
    return message_of(ErrorKind::usage, [&] { SmallStage small(c, simd::kernels(), alone); });
  };
  for (const char* rule : {"topk", "stochastic"}) {
    CHECK(has(refusal([&](StageCase& c) { c.options.layer.rule.name = rule; }), "cannot train the tied weights of layer 'a'"));
  }
  CHECK(has(refusal([](StageCase& c) { c.options.layer.flip_limit = 9; }),
            "9 for the tied weights of layer 'a' (several thresholds); expected 0"));
  CHECK(has(refusal([](StageCase& c) {
              c.options.signal = "exact";
              c.options.label_smoothing = 0;
              c.stage.train = c.stage.heads = {"a"};
            }),
            "exact for the tied weights of layer 'a' (several thresholds); expected window"));
}

TEST_CASE("single flips of tied weights are not studied", "[ties]") {
  const data::Dataset data = small_data(40);
  const Model model = random_model(data, std::string("{") + thermometer + R"(, "layers": [{"name": "a", "width": 8},
      {"name": "b", "width": 9, "thresholds": 2}], "head": {"kind": "linear", "grid": 2},
      "stages": [{"train": ["a"]}, {"train": ["b"]}], "classifier": ["a", "b"]})");
  const auto study = [&](const char* layer) { study_flips(simd::kernels(), model, layer, data, data, [](double) {}); };
  CHECK_NOTHROW(study("a"));
  CHECK(has(message_of(ErrorKind::usage, [&] { study("b"); }), "layer 'b': its weights are tied"));
}

TEST_CASE("changes that part tied weights are refused", "[ties]") {
  for (const std::string weights : {"binary", "ternary"}) {
    const NetSpec net = net_of("or", weights);
    BinaryLayer layer = layer_of(net);
    LayerTrainer trainer(layer, {}, 1, 2);
    const std::size_t row_bits = layer.ties().rows() * layer.patch_bits();
    // Weight 0 in these places of the layer's two rows that are tied: those of three planes.
    const auto changes_of = [&](const std::vector<std::size_t>& places) {
      mpi::SparseVector changes;
      changes.size = layer.channels() * layer.patch_bits();
      const bool negative = get_bit(layer.rows().data(), 0);
      const bool zero = weights == "ternary" && !get_bit(layer.nonzero_rows().data(), 0);
      for (const std::size_t place : places) {
        changes.index.push_back(static_cast<std::uint32_t>(place));
        changes.value.push_back(zero ? 1 : negative ? 2 : -2);
      }
      return changes;
    };
    const auto complaint = [&](const std::vector<std::size_t>& places) {
      return message_of(ErrorKind::data, [&] { trainer.take_changes(changes_of(places)); });
    };
    const char* expected = "changes of one of several tied weights";
    CHECK(has(complaint({0, 20, 40}), expected));    // of one row
    CHECK(has(complaint({0, row_bits}), expected));  // of one plane
    CHECK(has(complaint({0, 40, row_bits, row_bits + 40}), expected));
    trainer.take_changes(changes_of({0, 20, 40, row_bits, row_bits + 20, row_bits + 40}));
    CHECK(trainer.apply() == 1);
  }
}
