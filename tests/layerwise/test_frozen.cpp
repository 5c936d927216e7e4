#include "layerwise/frozen.h"

#include <memory>

#include "tests/layerwise/small_stage.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

// Two frozen layers of different sizes; readers of all kinds of down-sampling, of a layer that learns, and of equal parts.
const std::string many_readers = std::string("{") + thermometer + R"(, "layers": [
    {"name": "a", "width": 40}, {"name": "b", "inputs": ["a"], "pool": "or", "width": 72},
    {"name": "or", "inputs": ["a", "b"], "pool": "or", "width": 8},
    {"name": "and", "inputs": ["a", "b"], "pool": "and", "width": 8},
    {"name": "majority", "inputs": ["a", "input"], "pool": "majority", "width": 8},
    {"name": "depth", "inputs": ["a"], "pool": "space_to_depth", "width": 8},
    {"name": "both", "inputs": ["or", "b", "a"], "width": 8},
    {"name": "again", "inputs": ["b"], "kernel": 1, "width": 8}]})";
const std::vector<std::size_t> readers = {2, 3, 4, 5, 6, 7};

struct Net {
  explicit Net(const std::string& text = many_readers, std::uint64_t seed = 3) : train(small_data(20)) {
    const NetSpec spec = parse_net(text, "net.json");
    encoder = Encoder::fit(spec.encoder, train, 1);
    const auto geometry = derive_geometry(spec, 12, 12, encoder.output().channels);
    Random random(seed, Stream::test);
    for (std::size_t i = 0; i < geometry.size(); ++i) {
      layers.emplace_back(spec.layers[i], geometry[i]);
      draw_weights(layers[i], random);
      for (std::size_t o = 0; o < layers[i].channels(); ++o) {
        layers[i].thresholds()[o] = static_cast<std::int32_t>(layers[i].geometry().valid_bits / 2);
      }
    }
  }
  Hash128 hash(const std::vector<std::size_t>& trained = readers) const { return FrozenInputs(layers, trained).hash(encoder); }

  data::Dataset train;
  Encoder encoder;
  std::vector<BinaryLayer> layers;
};

}  // namespace

TEST_CASE("what is gathered from a record is what the maps give", "[frozen]") {
  Net net;
  const NetForward forward(simd::kernels(), net.encoder, net.layers);
  const FrozenInputs inputs(net.layers, readers);
  ForwardWorkspace work = forward.make_workspace();
  std::vector<std::uint64_t> record(inputs.words());
  for (std::size_t image = 0; image < 3; ++image) {
    forward.encode(net.train.image(image).data(), work);
    for (std::size_t i = 0; i < net.layers.size(); ++i) forward.run_layer(i, work);
    inputs.pack(work, record.data());
    ForwardWorkspace trained_only;  // the record alone must do for what is frozen
    trained_only.maps.assign(net.layers.size() + 1, nullptr);
    for (const std::size_t i : readers) trained_only.maps[i + 1] = work.maps[i + 1];
    for (const std::size_t i : readers) {
      INFO(net.layers[i].spec().name);
      std::vector<std::uint64_t> expected(net.layers[i].geometry().input.size());
      std::vector<std::uint64_t> gathered = expected;
      forward.gather_input(i, work, expected.data());
      inputs.gather(i, record.data(), trained_only, gathered.data());
      CHECK(gathered == expected);
      CHECK(inputs.covers(i) == (net.layers[i].spec().name != "both"));
    }
  }
  // `a` and `b` at 3x3 pixels by or, and, and for `both`; at 6x6 `a` and `input` by majority, `a` to depth, `b` as it is.
  CHECK(inputs.words() == 3 * 3 * 3 * (1 + 2) + 6 * 6 * (1 + 1 + 4 + 2));
}

TEST_CASE("records are named by all that they depend on, and by nothing else", "[frozen]") {
  const Net net;
  const Hash128 hash = net.hash();
  CHECK(net.hash() == hash);
  Net other(many_readers, 4);
  CHECK(other.hash() != hash);

  std::string renamed = many_readers;
  for (std::size_t at = 0; (at = renamed.find("\"a\"", at)) != std::string::npos; at += 3) renamed.replace(at, 3, "\"x\"");
  CHECK(Net(renamed).hash() == hash);

  Net changed;
  changed.layers[0].thresholds()[5] += 1;
  CHECK(changed.hash() != hash);
  changed.layers[0].thresholds()[5] -= 1;
  CHECK(changed.hash() == hash);
  changed.layers[2].thresholds()[0] += 1;  // a layer that learns
  CHECK(changed.hash() == hash);
  std::vector<std::uint64_t> row(changed.layers[1].rows().data(),
                                 changed.layers[1].rows().data() + changed.layers[1].patch_words());
  row[0] ^= 1;
  changed.layers[1].set_row(0, row.data(), nullptr);
  CHECK(changed.hash() != hash);
  CHECK(changed.hash({7}) != changed.hash({2}));
  CHECK(net.hash({5}) != net.hash({4}));

  std::string fewer = many_readers;
  fewer.replace(fewer.find("\"levels\": 20"), 12, "\"levels\": 18");
  CHECK(Net(fewer).hash() != hash);
}

TEST_CASE("what caching costs: missing records once, reading always", "[frozen]") {
  FrozenCosts costs;
  costs.images = 1000;
  costs.copies = 4;
  costs.epochs = 10;
  costs.compute_seconds = 1e-3;
  costs.write_seconds = 1e-4;
  costs.read_seconds = 1e-5;
  CHECK(costs.recompute_total() == Catch::Approx(10.0));
  CHECK(costs.cache_total() == Catch::Approx(4 * 1.1 + 0.1));
  costs.filled = 0.5;
  CHECK(costs.cache_total() == Catch::Approx(2 * 1.1 + 0.1));
  costs.epochs = 3;  // not every copy is used
  CHECK(costs.cache_total() == Catch::Approx(1.5 * 1.1 + 0.03));
  costs.filled = 0;
  CHECK(costs.cache_total() > costs.recompute_total());
}
