// Common parts of commands that classify images with a trained model, whatever its kind.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/terminal.h"
#include "data/dataset.h"
#include "layerwise/model.h"
#include "models/cnn/evaluate.h"
#include "models/cnn/model_file.h"
#include "nn/engine.h"

namespace bitloom::cli {

// The part of a data set that --split names. Throws Error(data) for one without images.
const data::Dataset& choose_split(const data::DataSplits& splits, const std::string& split);
// Throws Error(data) unless images and classes of a set are those of a model.
void check_fit(const data::Dataset& set, const data::ImageShape& shape, const std::vector<std::string>& class_names);

// Throws Error(data) that names `spec` unless there are images of two classes to train on.
void require_classes(const std::string& spec, const data::Dataset& train);

// A line per class and one for all.
void print_evaluation(Terminal& terminal, const std::string& split, const std::vector<std::string>& class_names,
                      const layerwise::Evaluation& result);
nlohmann::json evaluation_json(const std::string& split, const layerwise::Evaluation& result);

// Number of views of an image that a convolutional net averages over.
std::size_t view_count(const models::CnnViews& views);

// Options that ask for other views of an image than a model's own.
struct ViewOptions {
  std::string mirror = "model";
  std::size_t shift = 0;
  double sure = 1;

  // binary_alone: the command takes no convolutional nets.
  void declare(Options& options, bool binary_alone = false);
  // The views that are asked for, or those of the model.
  layerwise::Views over(layerwise::Views views, const Options& options) const;
};

// A convolutional net in a file, ready to classify, and the options by which it does.
struct CnnUse {
  std::string values = "f32", device = "cpu", backend;
  // Options that these are; --dtype, --device and --backend are declared by the command.
  models::CnnViews views{.mirror = true, .shift = 1};
};
class OpenCnn {
 public:
  // Throws Error(data) for a file that is none, Error(usage) for options that it does not allow.
  OpenCnn(const std::filesystem::path& file, const CnnUse& use);
  const models::CnnDescription& description() const { return loaded_.description; }
  models::CnnClassifier& classifier() { return *classifier_; }
  models::Cnn& net() { return *loaded_.net; }
  nn::Engine& engine() { return engine_; }

 private:
  nn::Engine engine_;
  models::LoadedCnn loaded_;
  std::unique_ptr<models::CnnClassifier> classifier_;
};

}  // namespace bitloom::cli
