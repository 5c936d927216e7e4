#include "layerwise/layer.h"

#include "layerwise/forward.h"
#include "tests/layerwise/cases.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

struct LayerShape {
  std::size_t height, width, channels, outputs, kernel, stride;
  bool ternary;
};

const std::vector<LayerShape> layer_shapes = {
    {6, 6, 3, 5, 3, 1, false}, {8, 6, 70, 70, 3, 2, false}, {6, 7, 64, 17, 5, 1, true}};

// Disagreements of one patch, bit by bit.
std::int32_t disagreements(const BinaryLayer& layer, const std::uint64_t* map, std::size_t y, std::size_t x, std::size_t o) {
  const MapShape& input = layer.geometry().input;
  const LayerSpec& spec = layer.spec();
  std::int32_t d = 0;
  for (std::size_t tap = 0; tap < spec.kernel * spec.kernel; ++tap) {
    const std::uint64_t* pixel =
        map + (y * spec.stride + tap / spec.kernel) * input.pitch() + (x * spec.stride + tap % spec.kernel) * input.words();
    for (std::size_t c = 0; c < input.words() * 64; ++c) {
      const std::size_t bit = tap * input.words() * 64 + c;
      if (spec.ternary && !get_bit(layer.nonzero_rows().data() + o * layer.patch_words(), bit)) continue;
      d += get_bit(pixel, c) != get_bit(layer.rows().data() + o * layer.patch_words(), bit) ? 1 : 0;
    }
  }
  return d;
}

BinaryLayer random_layer(const LayerShape& shape, Random& random) {
  BinaryLayer layer = make_layer(layer_spec(shape.outputs, shape.kernel, shape.stride, shape.ternary), shape.height,
                                 shape.width, shape.channels);
  draw_weights(layer, random);
  const auto middle = static_cast<std::int32_t>(shape.kernel * shape.kernel * shape.channels / (shape.ternary ? 4 : 2));
  for (std::size_t o = 0; o < layer.channels(); ++o) layer.thresholds()[o] = middle - 2 + static_cast<std::int32_t>(o % 5);
  return layer;
}

}  // namespace

TEST_CASE("a layer sets the bits whose disagreements do not exceed the threshold", "[layer]") {
  Random random(1, Stream::test);
  for (const LayerShape& shape : layer_shapes) {
    const BinaryLayer layer = random_layer(shape, random);
    const LayerGeometry& geometry = layer.geometry();
    MapShape filled = geometry.input;
    filled.channels = shape.channels;
    Buffer<std::uint64_t> input(geometry.input.size());
    draw_map(input.data(), filled, 2, random);
    Buffer<std::uint64_t> expected(geometry.output.size());
    for (std::size_t y = 0; y < geometry.output.height; ++y) {
      for (std::size_t x = 0; x < geometry.output.width; ++x) {
        for (std::size_t o = 0; o < layer.channels(); ++o) {
          set_bit(expected.data() + (y * geometry.output.width + x) * geometry.output.words(), o,
                  disagreements(layer, input.data(), y, x, o) <= layer.thresholds()[o]);
        }
      }
    }
    for (const std::string& name : simd::supported_kernels()) {
      INFO(name << " channels " << shape.channels);
      Buffer<std::uint64_t> output(geometry.output.size());
      layer.forward(simd::kernels(name), input.data(), output.data());
      CHECK(std::equal(output.begin(), output.end(), expected.begin()));
    }
    CHECK(layer.bit_macs() ==
          geometry.output.height * geometry.output.width * shape.outputs * shape.kernel * shape.kernel * shape.channels);
    CHECK(layer.weight_bits() == shape.outputs * shape.kernel * shape.kernel * shape.channels * (shape.ternary ? 2 : 1));
  }
}

TEST_CASE("a new layer has only positive weights and sets nothing", "[layer]") {
  const BinaryLayer layer = make_layer(layer_spec(70, 3, 1, false), 4, 4, 64);
  CHECK(layer.padded_channels() == 128);
  for (const std::uint64_t word : layer.rows()) REQUIRE(word == 0);
  for (const std::int32_t threshold : layer.thresholds()) REQUIRE(threshold == -1);
  Buffer<std::uint64_t> input(layer.geometry().input.size());
  Buffer<std::uint64_t> output(layer.geometry().output.size());
  layer.forward(simd::kernels(), input.data(), output.data());
  for (const std::uint64_t word : output) REQUIRE(word == 0);
}

TEST_CASE("only bits that an input channel can set are weights", "[layer]") {
  const NetSpec net = parse_net(R"({"layers": [{"name": "a", "width": 70}, {"name": "b", "width": 10, "pool": "space_to_depth",
                                    "inputs": ["a", "input"], "kernel": 1}]})",
                                "net.json");
  const auto geometry = derive_geometry(net, 4, 4, 64);
  const BinaryLayer layer(net.layers[1], geometry[1]);
  REQUIRE(layer.patch_words() == 4 * 2 + 4);
  for (std::size_t copy = 0; copy < 4; ++copy) {
    CHECK(layer.valid_bits()[2 * copy] == ~std::uint64_t{0});
    CHECK(layer.valid_bits()[2 * copy + 1] == 0x3F);
    CHECK(layer.valid_bits()[8 + copy] == ~std::uint64_t{0});
  }
  std::size_t valid = 0;
  for (const std::uint64_t word : layer.valid_bits()) valid += static_cast<std::size_t>(std::popcount(word));
  CHECK(valid == geometry[1].valid_bits);
}

TEST_CASE("a layer survives its file", "[layer]") {
  Random random(2, Stream::test);
  for (const LayerShape& shape : layer_shapes) {
    const BinaryLayer layer = random_layer(shape, random);
    TensorFile file;
    layer.save(file);
    CHECK(file.contains("layer.nonzero") == shape.ternary);
    BinaryLayer loaded = make_layer(layer.spec(), shape.height, shape.width, shape.channels);
    loaded.load(file);
    TensorFile again;
    loaded.save(again);
    CHECK(difference(file, again) == "");
    // The packed copy, too.
    Buffer<std::uint64_t> input(layer.geometry().input.size());
    draw_map(input.data(), layer.geometry().input, 2, random);
    Buffer<std::uint64_t> one(layer.geometry().output.size());
    Buffer<std::uint64_t> two(layer.geometry().output.size());
    layer.forward(simd::kernels(), input.data(), one.data());
    loaded.forward(simd::kernels(), input.data(), two.data());
    CHECK(std::equal(one.begin(), one.end(), two.begin()));
  }
}

TEST_CASE("weights where there is no input are refused", "[layer]") {
  Random random(3, Stream::test);
  const BinaryLayer layer = random_layer(layer_shapes[0], random);  // 3 of 64 channels exist
  BinaryLayer target = make_layer(layer.spec(), 6, 6, 3);
  const auto load = [&](const TensorFile& file) { return message_of(ErrorKind::data, [&] { target.load(file); }); };
  TensorFile file;
  layer.save(file);
  std::vector<std::uint64_t> rows(layer.rows().begin(), layer.rows().end());
  rows[9 * 2 + 4] |= std::uint64_t{1} << 3;
  TensorFile bad = file;
  bad.put("layer.sign", {5, 9}, rows);
  CHECK(has(load(bad), "layer.sign: row 2 sets bits where the layer has no weights"));
  bad = file;
  bad.put("layer.sign", {9, 5}, rows);
  CHECK(has(load(bad), "layer.sign"));
  bad = file;
  bad.tensors.erase("layer.threshold");
  CHECK(has(load(bad), "layer.threshold"));

  const BinaryLayer ternary = random_layer(layer_shapes[2], random);
  BinaryLayer ternary_target = make_layer(ternary.spec(), 6, 7, 64);
  TensorFile trits;
  ternary.save(trits);
  std::vector<std::uint64_t> signs(ternary.rows().size(), ~std::uint64_t{0});
  trits.put("layer.sign", {17, 25}, signs);
  CHECK(has(message_of(ErrorKind::data, [&] { ternary_target.load(trits); }), "sets bits where the layer has no weights"));
}

TEST_CASE("a net runs layer after layer, and only those that are needed", "[layer]") {
  Random random(4, Stream::test);
  const NetSpec net = parse_net(R"({"encoder": {"kind": "thermometer"}, "layers": [
      {"name": "a", "width": 70}, {"name": "b", "width": 64, "pool": "or"}, {"name": "c", "width": 64, "inputs": ["a", "input"]},
      {"name": "d", "width": 16, "inputs": ["b", "a"]}]})",
                                "net.json");
  const data::Dataset data = small_data(2);
  const Encoder encoder = Encoder::fit(net.encoder, data, 1);
  std::vector<BinaryLayer> layers;
  const auto geometry = derive_geometry(net, 12, 12, encoder.output().channels);
  for (std::size_t i = 0; i < 4; ++i) {
    layers.emplace_back(net.layers[i], geometry[i]);
    draw_weights(layers[i], random);
    for (std::size_t o = 0; o < layers[i].channels(); ++o) {
      layers[i].thresholds()[o] = static_cast<std::int32_t>(geometry[i].valid_bits / 2);
    }
  }
  CHECK(needed_layers(layers, {3}) == std::vector<bool>{true, true, false, true});
  CHECK(needed_layers(layers, {0}) == std::vector<bool>{true, false, false, false});
  CHECK(needed_layers(layers, {}) == std::vector<bool>{false, false, false, false});

  const NetForward forward(simd::kernels(), encoder, layers);
  ForwardWorkspace work = forward.make_workspace(needed_layers(layers, {3}));
  forward.encode(data.image(0).data(), work);
  for (const std::size_t i : {0U, 1U, 3U}) forward.run_layer(i, work);
  // Layer d by hand: b as it is, a reduced by OR, next to each other.
  Buffer<std::uint64_t> input(geometry[3].input.size());
  for (std::size_t y = 0; y < 6; ++y) {
    for (std::size_t x = 0; x < 6; ++x) {
      std::uint64_t* pixel = input.data() + geometry[3].input.interior() + y * geometry[3].input.pitch() + x * 3;
      pixel[0] = work.maps[2][y * 6 + x];
      for (std::size_t w = 0; w < 2; ++w) {
        for (std::size_t cell = 0; cell < 4; ++cell) {
          pixel[1 + w] |= work.maps[1][((2 * y + cell / 2) * 12 + 2 * x + cell % 2) * 2 + w];
        }
      }
    }
  }
  std::size_t set = 0;
  for (std::size_t y = 0; y < 6; ++y) {
    for (std::size_t x = 0; x < 6; ++x) {
      for (std::size_t o = 0; o < 16; ++o) {
        const bool expected = disagreements(layers[3], input.data(), y, x, o) <= layers[3].thresholds()[o];
        REQUIRE(get_bit(work.maps[4] + y * 6 + x, o) == expected);
        set += expected ? 1 : 0;
      }
    }
  }
  CHECK(set > 0);
  CHECK(set < 6 * 6 * 16);
}
