#include "cli/cnn_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "cli/image_evaluation.h"
#include "cli/inspect_cnn.h"
#include "cli/model_source.h"
#include "cli/wrong_image.h"
#include "core/error.h"
#include "train/run.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The architecture in the run's first line of metrics; none where there is no such line.
std::optional<models::CnnConfig> recorded_net(const std::vector<Json>& metrics) {
  for (const Json& line : metrics) {
    if (!line.is_object() || !line.contains("net")) continue;
    try {
      return models::parse_cnn_model(line["net"].dump(), metrics_file);
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

std::vector<report::FloatLayerRow> layers_of(const models::CnnConfig& config) {
  std::vector<report::FloatLayerRow> rows;
  const Json description = describe_cnn(config);
  for (const Json& layer : description["layers"]) {
    rows.push_back({layer["name"], layer["kind"], layer["output"], layer["parameters"], layer["macs"]});
  }
  return rows;
}

// Kernels (outputs, inputs, height, width) of the first layer, if it reads images.
report::Filters filters_of(OpenCnn& cnn) {
  const std::vector<nn::Parameter*> parameters = nn::parameters_of(*cnn.net().layers);
  const std::size_t colours = cnn.description().config.image.channels;
  if (parameters.empty() || parameters[0]->shape.axes() != 4 || parameters[0]->shape[1] != colours) return {};
  const nn::Shape& shape = parameters[0]->shape;
  report::Filters filters{shape[0], shape[2], shape[3], colours, {}};
  const std::vector<float> kernels = cnn.engine().to_host<float>(parameters[0]->value);
  const std::size_t area = shape[2] * shape[3];
  for (std::size_t k = 0; k < shape[0]; ++k) {
    for (std::size_t pixel = 0; pixel < area; ++pixel) {
      for (std::size_t c = 0; c < colours; ++c) filters.taps.push_back(kernels[(k * colours + c) * area + pixel]);
    }
  }
  return filters;
}

report::Classification classify(OpenCnn& cnn, const CnnUse& use, const data::Dataset& set, Terminal& terminal) {
  mpi::Comm alone;
  const layerwise::Evaluation found = cnn.classifier().evaluate(alone, set, [&](std::size_t done) {
    terminal.update(fmt::format("classifying the test images: {} of {}", done, set.size()));
    return true;
  });
  report::Classification test;
  test.images = found.images;
  test.correct = found.correct;
  test.views = view_count(use.views);
  test.loss = found.loss;
  test.classes = set.class_names;
  const std::size_t classes = set.classes();
  for (std::size_t row = 0; row < classes && !found.confusion.empty(); ++row) {
    const auto begin = found.confusion.begin() + static_cast<std::ptrdiff_t>(row * classes);
    test.confusion.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(classes));
  }
  for (const layerwise::Mistake& mistake : found.mistakes) {
    test.wrong.push_back(wrong_image(set, mistake.image, mistake.label, static_cast<double>(mistake.probability)));
  }
  return test;
}

}  // namespace

void add_cnn(report::ReportInput& input, const fs::path& run, Terminal& terminal) {
  const std::optional<fs::path> file = trained_file(run);
  if (!file) {
    if (const auto config = recorded_net(input.metrics)) input.float_layers = layers_of(*config);
    input.test_missing = "the run has neither a model nor a checkpoint.";
    return;
  }
  const CnnUse use;
  OpenCnn cnn(*file, use);
  const models::CnnDescription& model = cnn.description();
  input.float_layers = layers_of(model.config);
  input.filters = filters_of(cnn);
  add_test_images(input, run, [&](const data::Dataset& set) {
    check_fit(set, model.config.image, model.class_names);
    report::Classification test = classify(cnn, use, set, terminal);
    if (const auto step = train::step_of_checkpoint(TensorMapping::open(*file).metadata)) {
      test.model = fmt::format("the checkpoint after step {}", *step);
    }
    return test;
  });
}

}  // namespace bitloom::cli
