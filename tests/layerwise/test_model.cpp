#include "layerwise/model.h"

#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/softmax.h"
#include "data/augment.h"
#include "tests/layerwise/cases.h"
#include "tests/layerwise/random_model.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

Model make_model(const data::Dataset& data, const std::string& head_kind = "hidden") {
  Model model = random_model(data, std::string("{\"name\": \"small\", ") + thermometer + R"(, "head": {"kind": ")" + head_kind +
                                       R"(", "grid": 2, "hidden": 16}, "classifier": ["a", "b"],
        "layers": [{"name": "a", "width": 40}, {"name": "b", "inputs": ["a", "input"], "pool": "or", "width": 24, "weights": "ternary"}],
        "stages": [{"train": ["a"]}, {"train": ["b"]}]})");
  model.notes = {{"data", "small"}, {"seed", "1"}};
  return model;
}

std::vector<float> scores(const Classifier& classifier, const std::uint8_t* image) {
  ForwardWorkspace work = classifier.make_workspace();
  std::vector<float> out;
  classifier.scores(image, work, out);
  return out;
}

// Replaces one piece of metadata of a model file.
void change_metadata(const std::filesystem::path& from, const std::filesystem::path& to, const std::string& key,
                     const std::string& value) {
  TensorFile file = TensorFile::load(from);
  file.metadata[key] = value;
  file.save(to);
}

}  // namespace

TEST_CASE("a model survives its file", "[model]") {
  const data::Dataset data = small_data(40);
  const TempDir folder;
  for (const std::string& kind : {std::string("hidden"), std::string("linear"), std::string("class_conv")}) {
    INFO(kind);
    const Model model = make_model(data, kind);
    model.save(folder / "model.safetensors");
    const Model loaded = Model::load(folder / "model.safetensors");
    CHECK(to_json(loaded.net) == to_json(model.net));
    CHECK(loaded.class_names == model.class_names);
    CHECK(loaded.notes == model.notes);
    CHECK(loaded.weight_bits() == model.weight_bits());
    CHECK(model.weight_bits() == 40 * 9 * 64 + 2 * 24 * 9 * 104);
    CHECK(model.bit_macs() == 144 * 40 * 9 * 64 + 36 * 24 * 9 * 104);
    CHECK(loaded.head_macs() == model.head_macs());
    CHECK(loaded.head_bytes() == model.head_bytes());
    const Classifier one = Classifier::of(simd::kernels(), model);
    const Classifier two = Classifier::of(simd::kernels(), loaded);
    for (std::size_t i = 0; i < data.size(); ++i)
      REQUIRE(scores(one, data.image(i).data()) == scores(two, data.image(i).data()));
    loaded.save(folder / "again.safetensors");
    CHECK(read_file(folder / "again.safetensors") == read_file(folder / "model.safetensors"));
  }
}

// An earlier run's may lie beside a model.
TEST_CASE("heads beside a model do not replace those that it classifies with", "[model]") {
  const data::Dataset data = small_data(40);
  const TempDir folder;
  const Model model = make_model(data);
  const Model other = make_model(small_data(20));
  model.save(folder / "model.safetensors");
  save_heads(other.heads, folder / "heads.safetensors");
  const Model loaded = Model::load_with_all_heads(folder / "model.safetensors");
  const auto of = [&](const Model& each) { return scores(Classifier::of(simd::kernels(), each), data.image(3).data()); };
  CHECK(of(loaded) == of(model));
  CHECK(of(loaded) != of(other));
}

TEST_CASE("model files that cannot be used are refused", "[model]") {
  const data::Dataset data = small_data(10);
  const TempDir folder;
  const auto good = folder / "good.safetensors";
  const auto bad = folder / "bad.safetensors";
  make_model(data).save(good);
  const auto message = [&] { return message_of(ErrorKind::data, [&] { Model::load(bad); }); };

  CHECK(has(message(), "bad.safetensors"));  // missing
  // Format 1, whose heads have 16 bits, is read as ever.
  change_metadata(good, bad, "bitloom.format", "binary 1");
  CHECK(Model::load(bad).weight_bits() == Model::load(good).weight_bits());
  change_metadata(good, bad, "bitloom.format", "binary 99");
  CHECK(has(message(), "the model's format is 'binary 99'; this program reads 'binary 1' to 'binary 2'"));
  change_metadata(good, bad, "bitloom.net", "{");
  CHECK(has(message(), "the description of the net cannot be read"));
  change_metadata(good, bad, "bitloom.net", R"({"layers": [{"name": "a"}]})");
  CHECK(has(message(), "width: 0 is out of range"));
  nlohmann::json net = nlohmann::json::parse(TensorFile::load(good).metadata.at("bitloom.net"));
  net["shift"] = 12;
  change_metadata(good, bad, "bitloom.net", net.dump());
  CHECK(has(message(), "bad.safetensors: `shift`: 12 pixels; expected less than the images have, 12 x 12"));
  net["shift"] = 0;
  net["classifier"] = nlohmann::json::array();
  for (nlohmann::json& stage : net["stages"]) stage["heads"] = nlohmann::json::array();
  change_metadata(good, bad, "bitloom.net", net.dump());
  CHECK(has(message(), "bad.safetensors: no head of the net classifies"));
  change_metadata(good, bad, "bitloom.classes", "3");
  CHECK(has(message(), "the description of the net cannot be read"));

  TensorFile plain;
  plain.put("x", {1}, std::vector<float>{1.0F});
  plain.save(bad);
  CHECK(has(message(), "not a Bitloom model"));

  for (const std::string& name : {std::string("a.sign"), std::string("b.nonzero"), std::string("b.threshold"),
                                  std::string("encoder.filters"), std::string("a.head.linear")}) {
    TensorFile file = TensorFile::load(good);
    file.tensors.erase(name);
    file.save(bad);
    INFO(message());
    CHECK(has(message(), name));
    CHECK(has(message(), "bad.safetensors"));
  }
  TensorFile headless = TensorFile::load(good);
  headless.tensors.erase("b.head.centre");
  headless.save(bad);
  CHECK(has(message(), "the head of layer 'b', which is part of the ensemble, is missing"));

  const std::string bytes = read_file(good);
  for (const std::size_t at : {bytes.size() - 1, bytes.size() / 2, bytes.size() / 3}) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    write_file(bad, flipped);
    CHECK(message() != "no error");
    CHECK(has(message(), "bad.safetensors"));
  }
  write_file(bad, bytes.substr(0, bytes.size() - 8));
  CHECK(has(message(), "bad.safetensors"));
}

// A description of some bytes took gigabytes before anything was compared with it.
TEST_CASE("a model file that describes more than it holds is refused before there is room for that", "[model]") {
  const data::Dataset data = small_data(10);
  const TempDir folder;
  make_model(data).save(folder / "good");
  const auto refusal = [&](const TensorFile& file) {
    file.save(folder / "bad");
    return message_of(ErrorKind::data, [&] { Model::load(folder / "bad"); });
  };
  const auto peak_memory_kib = [] {
    const std::string status = read_text("/proc/self/status");
    return std::stoul(status.substr(status.find("VmHWM:") + 6));
  };
  TensorFile file = TensorFile::load(folder / "good");
  nlohmann::json net = nlohmann::json::parse(file.get_metadata("bitloom.net"));
  net["layers"][0]["width"] = 65536;
  net["layers"][0]["kernel"] = 15;
  net["layers"][0]["padding"] = 7;
  file.metadata["bitloom.net"] = net.dump();
  std::ofstream clear("/proc/self/clear_refs");
  clear << 5 << std::flush;  // the peak becomes what there is now: proc(5)
  REQUIRE(clear);
  const auto before = peak_memory_kib();
  CHECK(has(refusal(file), "the tensor 'a.sign' is U64[40, 9], expected U64[65536, 225]"));
  file.tensors.erase("a.sign");
  CHECK(has(refusal(file), "has no tensor 'a.sign'"));
  CHECK(peak_memory_kib() < before + 50'000);  // the layer's weights alone have 112 MiB, twice

  TensorFile crowded = TensorFile::load(folder / "good");
  std::vector<std::string> names = data.class_names;
  names.push_back("one more");
  crowded.metadata["bitloom.classes"] = nlohmann::json(names).dump();
  CHECK(has(refusal(crowded),
            fmt::format("a.head.linear_bias: shape [{}]; expected one for each of {} classes", data.classes(), names.size())));
}

TEST_CASE("the vote is the mean of heads and views", "[model]") {
  const data::Dataset data = small_data(12);
  const Model model = make_model(data);
  const simd::Kernels& kernels = simd::kernels();
  for (std::size_t i = 0; i < data.size(); ++i) {
    const std::uint8_t* image = data.image(i).data();
    std::vector<std::uint8_t> mirrored(data.shape.size());
    data::shift(data.image(i), data.shape, 0, 0, true, mirrored.data());
    std::vector<double> mean(data.classes(), 0);
    for (const std::string& member : {std::string("a"), std::string("b")}) {
      for (const std::uint8_t* view : {image, static_cast<const std::uint8_t*>(mirrored.data())}) {
        const auto one = scores(Classifier::of(kernels, model, {member}, {false, 0}), view);
        double total = 0;
        for (const float score : one) total += std::exp(static_cast<double>(score));
        CHECK(std::fabs(total - 1) < 1e-4);  // log-probabilities
        for (std::size_t l = 0; l < mean.size(); ++l) mean[l] += static_cast<double>(one[l]) / 4;
      }
    }
    const auto vote = scores(Classifier::of(kernels, model), image);
    for (std::size_t l = 0; l < mean.size(); ++l) REQUIRE(std::fabs(static_cast<double>(vote[l]) - mean[l]) < 1e-4);
    // Both views vote, so the mirror image gets the same scores (but for the order of the sum).
    const auto mirror_vote = scores(Classifier::of(kernels, model), mirrored.data());
    for (std::size_t l = 0; l < mean.size(); ++l) REQUIRE(std::fabs(vote[l] - mirror_vote[l]) < 1e-4F);

    // Shifted views vote with the image and its mirror image.
    const Views moved = {true, 2};
    std::vector<double> all(data.classes(), 0);
    std::vector<std::uint8_t> view(data.shape.size());
    for (const auto& [down, across] : {std::pair(0, 0), std::pair(2, 0), std::pair(-2, 0), std::pair(0, 2), std::pair(0, -2)}) {
      for (const bool flip : {false, true}) {
        data::shift(data.image(i), data.shape, down, across, flip, view.data());
        const auto one = scores(Classifier::of(kernels, model, {"a"}, {false, 0}), view.data());
        for (std::size_t l = 0; l < all.size(); ++l) all[l] += static_cast<double>(one[l]) / static_cast<double>(moved.count());
      }
    }
    const auto moved_vote = scores(Classifier::of(kernels, model, {"a"}, moved), image);
    for (std::size_t l = 0; l < all.size(); ++l) REQUIRE(std::fabs(static_cast<double>(moved_vote[l]) - all[l]) < 1e-4);
  }
  CHECK(has(message_of(ErrorKind::usage, [&] { Classifier::of(kernels, model, {"a"}, {true, 12}); }), "`shift`: 12 pixels"));
  CHECK(has(message_of(ErrorKind::usage, [&] { Classifier::of(kernels, model, {"c"}, {false, 0}); }), "no layer 'c'"));
  Model partial = model;
  partial.heads.erase("a");
  CHECK(has(message_of(ErrorKind::usage,
                       [&] {
                         Classifier::of(kernels, partial, {"a"}, {false, 0});
                       }),
            "layer 'a' has no head"));
}

TEST_CASE("an evaluation counts what the scores say, in every instruction set", "[model]") {
  const data::Dataset data = small_data(33, 500);
  const Model model = make_model(small_data(40));
  const Classifier classifier = Classifier::of(simd::kernels("ref"), model);
  std::vector<std::int64_t> confusion(data.classes() * data.classes(), 0);
  double loss = 0;
  std::size_t correct = 0;
  std::vector<Mistake> mistakes;
  for (std::size_t i = 0; i < data.size(); ++i) {
    const auto score = scores(classifier, data.image(i).data());
    const auto best = static_cast<std::size_t>(std::max_element(score.begin(), score.end()) - score.begin());
    ++confusion[data.labels[i] * data.classes() + best];
    correct += best == data.labels[i] ? 1 : 0;
    loss += cross_entropy(score, data.labels[i]) / static_cast<double>(data.size());
    if (best != data.labels[i]) mistakes.push_back({i, best, static_cast<float>(std::exp(-cross_entropy(score, best)))});
  }
  std::ranges::stable_sort(mistakes, std::greater<>(), &Mistake::probability);
  REQUIRE(mistakes.size() >= 24);
  mpi::Comm comm;
  for (const std::string& name : simd::supported_kernels()) {
    const Evaluation result = Classifier::of(simd::kernels(name), model).evaluate(comm, data);
    CHECK(result.images == 33);
    CHECK(result.correct == correct);
    CHECK(result.confusion == confusion);
    CHECK(std::fabs(result.loss - loss) < 1e-6);
    CHECK(result.accuracy() == static_cast<double>(correct) / 33);
    REQUIRE(result.mistakes.size() == 24);
    for (std::size_t i = 0; i < 24; ++i) {
      CHECK(result.mistakes[i].image == mistakes[i].image);
      CHECK(result.mistakes[i].label == mistakes[i].label);
      CHECK(std::fabs(result.mistakes[i].probability - mistakes[i].probability) < 1e-6F);
    }
  }
  CHECK(Evaluation{}.accuracy() == 0);
  CHECK(Evaluation{}.plain_accuracy() == 0);
  // In one pass: the vote over all views, and that on the image as it is.
  const auto with_views = [&](const Views& views) {
    return Classifier::of(simd::kernels(), model, model.net.classifier, views).evaluate(comm, data);
  };
  const Evaluation plain = with_views({false, 0});
  CHECK(plain.correct_plain == plain.correct);
  for (const Views& views : {Views{true, 0}, Views{false, 1}, Views{true, 1}}) {
    CHECK(with_views(views).correct_plain == plain.correct);
  }
}

TEST_CASE("an image that is sure has no more views, and its scores are those of the views until then", "[model]") {
  const data::Dataset data = small_data(200);
  const Model model = make_model(data);
  const auto classifier_of = [&](const Views& views) { return Classifier::of(simd::kernels(), model, {"a"}, views); };
  // The probability that 140 of the 200 images have in the first view.
  const std::vector<float> firsts = sorted_probabilities(classifier_of({false, 0}), data);
  const float sure = (firsts[59] + firsts[60]) / 2;
  const Views all{true, 2}, until{true, 2, static_cast<double>(sure)};
  mpi::Comm comm;
  std::vector<std::size_t> taken_by(all.count() + 1);
  double views = 0;
  std::size_t correct = 0;
  for (std::size_t i = 0; i < data.size(); ++i) {
    // The views one by one, by classifiers of one view each, and their means as far as they go.
    std::vector<float> sums(data.classes()), means(data.classes()), probabilities(data.classes());
    std::size_t expected = 0;
    for (std::size_t v = 0; v < all.count() && (v == 0 || std::ranges::max(probabilities) < sure); ++v) {
      const auto [down, across] = std::to_array<std::pair<int, int>>({{0, 0}, {2, 0}, {-2, 0}, {0, 2}, {0, -2}})[v / 2];
      std::vector<std::uint8_t> view(data.shape.size());
      data::shift(data.image(i), data.shape, down, across, v % 2 == 1, view.data());
      const auto one = scores(classifier_of({false, 0}), view.data());
      ++expected;
      for (std::size_t l = 0; l < sums.size(); ++l) {
        sums[l] += one[l];
        means[l] = sums[l] / static_cast<float>(expected);
      }
      softmax(means, probabilities);
    }
    const Classifier classifier = classifier_of(until);
    ForwardWorkspace work = classifier.make_workspace();
    std::vector<float> found;
    const std::size_t taken = classifier.scores(data.image(i).data(), work, found);
    CHECK(taken == expected);
    for (std::size_t l = 0; l < found.size(); ++l) REQUIRE(std::fabs(found[l] - means[l]) < 1e-4F);
    ++taken_by[taken];
    views += static_cast<double>(taken) / static_cast<double>(data.size());
    correct += std::ranges::max_element(found) - found.begin() == data.labels[i] ? 1 : 0;
  }
  CHECK(taken_by[1] == 140);
  CHECK(std::ranges::count_if(taken_by, [](std::size_t images) { return images > 0; }) > 2);
  const Evaluation result = classifier_of(until).evaluate(comm, data);
  CHECK(result.views == Catch::Approx(views));
  CHECK(result.correct == correct);
  CHECK(classifier_of(all).evaluate(comm, data).views == 10);
  CHECK(classifier_of({false, 0, 0.5}).evaluate(comm, data).views == 1);
}

// A matrix of each thread had 8 bytes for every two classes: 32 GiB of 65,536, which ended the program.
TEST_CASE("very many classes are counted without a matrix of every two of them", "[model]") {
  data::Dataset data = small_data(6);
  for (std::size_t c = data.classes(); c <= Evaluation::most_confused_classes; ++c) {
    data.class_names.push_back("class " + std::to_string(c));
  }
  data.labels.back() = static_cast<std::uint16_t>(data.classes() - 1);
  const Model model = make_model(data, "linear");
  const Classifier classifier = Classifier::of(simd::kernels(), model);
  const std::vector<std::string> names = data.class_names;
  data = small_data(12, 500);
  data.class_names = names;
  std::size_t correct = 0;
  for (std::size_t i = 0; i < data.size(); ++i) {
    const auto score = scores(classifier, data.image(i).data());
    correct += std::ranges::max_element(score) - score.begin() == data.labels[i] ? 1 : 0;
  }
  mpi::Comm comm;
  const Evaluation result = classifier.evaluate(comm, data);
  CHECK(result.confusion.empty());
  CHECK(result.images == 12);
  CHECK(result.correct == correct);
  CHECK(!result.mistakes.empty());
}

// Millionths of NaN were summed: undefined, and a loss of minus nine billion nats.
TEST_CASE("a model whose loss is not finite is evaluated to NaN, and its classes are counted") {
  const data::Dataset data = small_data(40);
  const Model good = make_model(data, "linear");
  const TempDir folder;
  good.save(folder / "model");
  for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF, 3e38F}) {
    CAPTURE(bad);
    TensorFile file = TensorFile::load(folder / "model");
    const std::size_t classes = data.classes();
    for (const char* layer : {"a", "b"}) {
      std::vector<float> bias(classes, 0);
      bias[1] = bad;
      file.put(std::string(layer) + ".head.linear_bias", {classes}, bias);
    }
    file.save(folder / "bad");
    mpi::Comm comm;
    const Evaluation result = Classifier::of(simd::kernels(), Model::load(folder / "bad")).evaluate(comm, data);
    CHECK(std::isnan(result.loss));
    CHECK(result.images == 40);
    CHECK(std::accumulate(result.confusion.begin(), result.confusion.end(), std::int64_t{0}) == 40);
  }
}
