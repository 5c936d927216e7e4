// The end of a run: the net is evaluated when all stages are trained, which may take as long as an epoch.
#include <omp.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/progress_file.h"
#include "tests/layerwise/small_run.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

// It gave none before it was done, and a supervisor took it for hanging.
TEST_CASE("an evaluation gives signs of life while it runs", "[trainer]") {
  const TempDir folder;
  RunOptions options = options_for(folder / "run");
  options.mark_seconds = 0;
  std::vector<nlohmann::json> marks;
  options.stop = [&] {
    const fs::path file = folder / "run" / progress_file_name;
    if (fs::exists(file)) marks.push_back(nlohmann::json::parse(read_file(file)));
    return false;
  };
  const RunResult result = train_net(options);
  const auto seen = [&](std::size_t stage, std::size_t step, std::size_t evaluated) {
    return std::any_of(marks.begin(), marks.end(), [&](const nlohmann::json& mark) {
      return mark["stage"] == stage && mark["step"] == step && mark["evaluated"] == evaluated;
    });
  };
  CHECK(seen(0, 2, 16));  // validation after an epoch
  CHECK(seen(1, 4, 16));
  CHECK(seen(2, 0, 16));  // at the end: validation, and the first 16 of 20 test images
  const nlohmann::json last = nlohmann::json::parse(read_file(folder / "run" / progress_file_name));
  CHECK(last["stage"] == 2);
  CHECK(last["evaluated"] == 36);
  for (std::size_t i = 1; i < marks.size(); ++i) CHECK(marks[i - 1]["beat"] <= marks[i]["beat"]);

  const Model model = Model::load(folder / "run" / "model.safetensors");
  mpi::Comm comm;
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  std::vector<std::size_t> told;
  const EvaluationWatch watch = {[&](std::size_t images) { told.push_back(images); }, nullptr};
  const Classifier classifier = Classifier::of(simd::kernels(), model);
  CHECK(classifier.evaluate(comm, splits().test, watch).confusion == result.test.confusion);
  // After every image, and after both slices.
  CHECK(told.size() == 22);
  CHECK(std::is_sorted(told.begin(), told.end()));
  CHECK(told.back() == 20);
  told.clear();
  classifier.head_accuracies(comm, splits().test, watch);
  CHECK(told.size() == 22);
  omp_set_num_threads(threads);
}

TEST_CASE("heads of a finished run have weights of few bits, as the evaluation saw them, or 16 when asked", "[trainer]") {
  const TempDir folder;
  RunOptions options = options_for(folder / "few");
  options.net.head_bits = 4;
  const RunResult few = train_net(options);
  options.folder = folder / "all";
  options.net.head_bits = 16;
  train_net(options);
  TensorFile rounded = result_of(folder / "few");
  TensorFile exact = result_of(folder / "all");
  CHECK(rounded.get("b.head.linear").shape == std::vector<std::size_t>{10, 4, 4});
  CHECK(rounded.get("b.head.linear_step").dtype == DType::i16);
  CHECK(exact.get("b.head.linear").dtype == DType::i16);
  CHECK_FALSE(exact.contains("b.head.linear_step"));
  // Nothing else differs: bits are taken after the training.
  for (TensorFile* file : {&rounded, &exact}) {
    for (const std::string layer : {"a", "b"}) {
      for (const std::string matrix : {".head.linear", ".head.input", ".head.output"}) {
        CHECK(file->tensors.erase(layer + matrix) == 1);
        file->tensors.erase(layer + matrix + "_step");
      }
    }
  }
  CHECK(difference(rounded, exact) == "");
  mpi::Comm comm;
  const Model model = Model::load(folder / "few" / "model.safetensors");
  const Evaluation again = Classifier::of(simd::kernels(), model).evaluate(comm, splits().test, {});
  CHECK(again.confusion == few.test.confusion);
  CHECK(again.loss == few.test.loss);
}

// It was that of all of the stage's heads, some of which only help lower layers to learn.
TEST_CASE("the accuracy of a stage is that of the heads that the net classifies with", "[trainer]") {
  NetSpec net = two_layers_again();
  net.stages.erase(net.stages.begin(), net.stages.end() - 1);
  net.stages[0].heads = {"a", "b"};
  net.stages[0].epochs = 4;
  std::set<double> accuracies;
  for (const std::vector<std::string>& classifier : std::vector<std::vector<std::string>>{{"a"}, {"b"}, {"a", "b"}}) {
    const TempDir folder;
    net.classifier = classifier;
    const RunResult result = train_net(options_for(folder / "run", net));
    CHECK(result.stages.back().validation_accuracy == result.validation.accuracy());
    accuracies.insert(result.validation.accuracy());
  }
  CHECK(accuracies.size() > 1);
}

// There was no checkpoint after the last stage, and nothing asked whether to stop.
TEST_CASE("an evaluation at the end that is broken off is done again alone", "[trainer]") {
  for (const NetSpec& net : {two_layers(), two_layers_again()}) {
    const TempDir folder;
    RunOptions options = options_for(folder / "run", net);
    bool trained = false;
    options.stop = [&] {
      const fs::path file = folder / "run" / progress_file_name;
      trained = fs::exists(file) && nlohmann::json::parse(read_file(file))["stage"] == net.stages.size();
      return trained;
    };
    CHECK(has(complaint(ErrorKind::interrupted, options), "interrupted after the evaluation of 16 of 20 images"));
    CHECK(trained);
    CHECK_FALSE(fs::exists(folder / "run" / "model.safetensors"));
    options.stop = nullptr;
    Lines lines;
    mpi::Comm comm;
    const RunResult result = train(simd::kernels(), comm, resumed(options), splits(), lines);
    CHECK(result.steps == 0);
    CHECK(result.stages.size() == net.stages.size());
    CHECK(result.test.images == 20);
    CHECK(difference(undisturbed(net), result_of(folder / "run")) == "");
    CHECK_FALSE(fs::exists(folder / "run" / "checkpoint.safetensors"));
  }
}
