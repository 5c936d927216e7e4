// The description of a float convolutional net: its layers as JSON, the named ones, and how it is trained if nothing else is
// said.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "nn/activation.h"

namespace bitloom::models {

// A layer, or a group of them that has a name in the literature. `channels`: of its output.
struct CnnLayer {
  enum class Kind {
    whitening,
    conv,
    norm,
    activation,
    max_pool,
    global_max_pool,
    global_mean_pool,
    conv_group,
    basic_block,
    linear
  };
  Kind kind = Kind::activation;
  std::size_t channels = 0;
  std::size_t kernel = 3;  // rows and columns of a kernel; windows of max_pool
  std::size_t stride = 1;
  std::size_t convolutions = 2;  // of conv_group: the first one, then pooling, then the others; 3: the last two beside a skip
  bool bias = true;              // of linear
  double scale = 1;              // of linear: factor on its result
};

// As descriptions have it.
const char* kind_name(CnnLayer::Kind kind);

struct CnnNorm {
  double momentum = 0.1, epsilon = 1e-5;
  bool gain = true;
  double bias_rate = 1;
};

// A learning rate is for batches of `batch` images; another batch changes it in proportion, and weight decay too.
struct CnnTraining {
  double epochs = 10;
  std::size_t batch = 128;
  std::string optimizer = "sgd";
  double learning_rate = 0.1;
  double momentum = 0.9;
  double weight_decay = 0.0001;       // SGD: of a step at the peak learning rate; otherwise per learning rate
  std::string schedule = "triangle";  // one of rate_course_names()
  double label_smoothing = 0;
  std::size_t lookahead = 0;
  std::string augment = "none";  // as data::parse_augment() reads it, without flip and alternating
  std::string flip = "none";     // one of flip_names()
};

struct CnnConfig {
  std::string name;
  std::vector<CnnLayer> layers;
  std::string activation = "gelu";
  unsigned activation_bits = 0;  // bits kept of every activation's input for the backward pass; 0: all
  nn::Quantiser activation_quantiser = nn::Quantiser::few_bit;
  CnnNorm norm;
  // Convolutions begin as the identity on their first channels (Dirac), the others as random numbers.
  bool identity_start = false;
  bool decays_vectors = false;  // weight decay of biases, too
  CnnTraining training;
  data::ImageShape image;  // not in descriptions of nets, but in those of models
  std::size_t classes = 0;
};

std::vector<std::string> cnn_names();
// The net of that name, or the one that a file (its name has a '/' or a '.') describes. Throws usage errors: an unknown name,
// with a suggestion; a file that cannot be read; a description that is wrong.
CnnConfig find_cnn(const std::string& name_or_file);

// Reads a description, JSON with comments. Throws Error(usage) that names `source`, the key, its value and what was expected.
CnnConfig parse_cnn(const std::string& text, const std::string& source);
// The architecture: layers, norm, activation, image and classes, for model files. `parse_cnn_model` reads it: Error(data).
nlohmann::json architecture_of(const CnnConfig& config);
CnnConfig parse_cnn_model(const std::string& text, const std::string& source);

// Throws Error(usage) that names the field, its value and what was expected.
void check(const CnnTraining& training);

}  // namespace bitloom::models
