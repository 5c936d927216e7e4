// The study of flips against flipping every weight.
#include "layerwise/flip_study.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/bits.h"
#include "core/softmax.h"
#include "layerwise/exact_signal.h"
#include "layerwise/forward.h"
#include "tests/layerwise/small_run.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

Model trained(const std::string& weights) {
  const TempDir folder;
  NetSpec net = parse_net(fmt::format(R"({{"name": "two", {}, "head": {{"grid": 2, "hidden": 16}}, "layers": [
      {{"name": "a", "width": 16}}, {{"name": "b", "pool": "or", "width": 8, "weights": "{}"}}],
      "stages": [{{"train": ["a"], "epochs": 1}}, {{"train": ["b"], "epochs": 2}}], "classifier": ["b"]}})",
                                      thermometer, weights),
                          "net.json");
  train_net(options_for(folder / "run", net));
  return Model::load(folder / "run" / "model.safetensors");
}

double mean_loss(const Model& model, const BinaryLayer& layer, const data::Dataset& images) {
  const NetForward forward(simd::kernels(), model.encoder, model.layers);
  ForwardWorkspace work = forward.make_workspace();
  const Head& head = model.heads.at("b");
  Buffer<std::uint64_t> input(layer.geometry().input.size()), output(layer.geometry().output.size());
  std::vector<std::int16_t> counts(head.features());
  std::vector<float> logits(head.classes());
  double sum = 0;
  for (std::size_t i = 0; i < images.size(); ++i) {
    forward.encode(images.image(i).data(), work);
    forward.run_layer(0, work);
    forward.gather_input(1, work, input.data());
    layer.forward(simd::kernels(), input.data(), output.data());
    head.count(simd::kernels(), output.data(), counts.data());
    head.predict(simd::kernels(), counts.data(), 1, logits.data());
    sum += cross_entropy(logits, images.labels[i]);
  }
  return sum / static_cast<double>(images.size());
}

}  // namespace

TEST_CASE("a study of flips says what flipping every weight says", "[flip_study]") {
  for (const std::string weights : {"binary", "ternary"}) {
    CAPTURE(weights);
    const Model model = trained(weights);
    const BinaryLayer& layer = model.layers[1];
    const data::Dataset images = small_data(10);
    const data::Dataset others = small_data(12, 500);
    const FlipStudy study = study_flips(simd::kernels(), model, "b", images, others);
    const double before = mean_loss(model, layer, images);
    CHECK(std::fabs(study.loss - before) < 1e-5);
    CHECK(std::fabs(study.others_loss - mean_loss(model, layer, others)) < 1e-5);
    const std::size_t words = layer.patch_words();
    std::size_t weight_count = 0, moves = 0, lower = 0, neutral = 0;
    double best = std::numeric_limits<double>::infinity();
    double best_on_others = 0;
    for (std::size_t o = 0; o < layer.channels(); ++o) {
      for (std::size_t k = 0; k < layer.patch_bits(); ++k) {
        if (!get_bit(layer.valid_bits().data(), k)) continue;
        ++weight_count;
        std::vector<std::uint64_t> sign(layer.rows().data() + o * words, layer.rows().data() + (o + 1) * words);
        std::vector<std::uint64_t> nonzero;
        if (layer.spec().ternary) {
          nonzero.assign(layer.nonzero_rows().data() + o * words, layer.nonzero_rows().data() + (o + 1) * words);
        }
        const int value = !nonzero.empty() && !get_bit(nonzero.data(), k) ? 0 : bit_value(get_bit(sign.data(), k));
        for (const int to : {-1, 0, 1}) {
          if (to == value || (nonzero.empty() && to == 0)) continue;
          ++moves;
          set_bit(sign.data(), k, to < 0);
          if (!nonzero.empty()) set_bit(nonzero.data(), k, to != 0);
          BinaryLayer moved = layer;
          moved.set_row(o, sign.data(), nonzero.empty() ? nullptr : nonzero.data());
          const double change = mean_loss(model, moved, images) - before;
          lower += change < -1e-7 ? 1 : 0;
          neutral += change == 0 ? 1 : 0;
          if (change < best) {
            best = change;
            best_on_others = mean_loss(model, moved, others) - study.others_loss;
          }
        }
      }
    }
    CHECK(study.weights == weight_count);
    CHECK(study.moves == moves);
    CHECK(std::fabs(static_cast<double>(study.lower) - static_cast<double>(lower)) <= 0.002 * static_cast<double>(moves));
    CHECK(std::fabs(static_cast<double>(study.neutral) - static_cast<double>(neutral)) <= 0.002 * static_cast<double>(moves));
    REQUIRE(study.together.size() > 3);
    CHECK(study.together[0].flips == 1);
    CHECK(std::fabs(study.together[0].predicted - best) < 1e-5);
    CHECK(std::fabs(study.together[0].realised - best) < 1e-5);
    CHECK(std::fabs(study.together[0].on_others - best_on_others) < 1e-5);
    for (std::size_t i = 1; i < study.together.size(); ++i) {
      CHECK(study.together[i].flips > study.together[i - 1].flips);
      CHECK(study.together[i].predicted <= study.together[i - 1].predicted);
    }
    CHECK(study.together.back().flips <= study.lower);
  }
}

TEST_CASE("flips of layers that cannot be studied are refused", "[flip_study]") {
  const Model model = trained("binary");
  const data::Dataset images = small_data(3);
  const auto refusal = [&](const std::string& layer, const data::Dataset& set) {
    return message_of(ErrorKind::usage, [&] { study_flips(simd::kernels(), model, layer, set, images); });
  };
  CHECK(refusal("z", images) == "layer 'z': the net has none");
  CHECK(refusal("b", small_data(0)) == "layer 'b': no images to study it with");
}
