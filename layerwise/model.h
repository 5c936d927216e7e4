// A trained net: encoder, layers, heads that vote, and its file (safetensors; Python's safetensors opens it).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "layerwise/encoder.h"
#include "layerwise/forward.h"
#include "layerwise/head.h"
#include "layerwise/layer.h"
#include "layerwise/net.h"
#include "mpi/comm.h"

namespace bitloom::layerwise {

// The version of the model file as it is written, and the oldest that is read: in 1 all weights of heads have 16 bits, which 2
// has too.
inline constexpr int model_format = 2;
inline constexpr int oldest_model_format = 1;

// Beside a run's model: heads that do not vote, and only gave layers their learning signal.
inline constexpr const char* heads_name = "heads.safetensors";

struct Model {
  NetSpec net;
  std::vector<std::string> class_names;
  Encoder encoder;
  std::vector<BinaryLayer> layers;           // in the order of net.layers
  std::map<std::string, Head> heads;         // by layer; at least those of net.classifier
  std::map<std::string, std::string> notes;  // free-form: data set, seed, accuracy, ... stored as metadata

  // Tensors: sign bits packed 64 to a word (U64), thresholds I32, heads I16; the net's description and the class names are
  // JSON in the metadata.
  void save(const std::filesystem::path& path) const;
  // Throws data errors: not a Bitloom model, another version, missing or misshapen tensors, damaged.
  static Model load(const std::filesystem::path& path);

  // Takes the heads that do not vote out of the model.
  std::map<std::string, Head> take_other_heads();
  // The same as load(), and of a model in a run's folder all heads. Throws data errors of either file.
  static Model load_with_all_heads(const std::filesystem::path& path);

  // Indices of the layers whose heads make up the ensemble, in the order of net.classifier.
  std::vector<std::size_t> ensemble() const;

  std::size_t weight_bits() const;
  std::size_t bit_macs() const;   // per view of an image
  std::size_t head_macs() const;  // integer multiply-adds, per view
  std::size_t head_bytes() const;
};

// The file of heads that lies beside a model.
void save_heads(const std::map<std::string, Head>& heads, const std::filesystem::path& path);

// -log of the probability from which on an image needs no more views (Views::sure): the same number on every machine.
float most_doubt(const Views& views);

// Throws Error(usage), which starts with `named`, for a shift that is not smaller than the images.
void check_views(const Views& views, const data::ImageShape& shape, std::string_view named = "`shift`");

// An image that was classified wrongly.
struct Mistake {
  std::size_t image = 0, label = 0;  // the class that it was taken for
  float probability = 0;             // of that class
};

struct Evaluation {
  static constexpr std::size_t most_mistakes = 24;
  static constexpr std::size_t most_confused_classes = 2048;  // of more there is no matrix, which takes 8 bytes for every two

  std::size_t images = 0;
  std::size_t correct = 0;
  std::size_t correct_plain = 0;        // by the vote on the image as it is, without its mirror and shifted images
  double loss = 0;                      // mean negative log-probability of the vote, in nats
  std::vector<std::int64_t> confusion;  // (classes, classes): rows true, columns predicted; or none
  std::vector<Mistake> mistakes;        // the surest, at most most_mistakes; of equals, the first in the set
  double views = 0;                     // of an image, the mean
  double seconds = 0;
  double accuracy() const { return images == 0 ? 0 : static_cast<double>(correct) / static_cast<double>(images); }
  double plain_accuracy() const { return images == 0 ? 0 : static_cast<double>(correct_plain) / static_cast<double>(images); }
};

// Collective: the surest of the mistakes of all ranks.
std::vector<Mistake> surest_of_all(mpi::Comm& comm, std::vector<Mistake> own);

// Told of an evaluation while it lasts.
struct EvaluationWatch {
  // Images that all ranks together are known to have done; many times a second, by one thread.
  std::function<void(std::size_t images)> alive;
  // Asked on each rank, about once a second: whether to end by Error(interrupted).
  std::function<bool()> stop;
};

// Classifies images with the heads of `members` (layer names): the log-probabilities of all heads in all views are summed.
class Classifier {
 public:
  Classifier(const simd::Kernels& kernels, const Encoder& encoder, const std::vector<BinaryLayer>& layers,
             std::vector<const Head*> heads, std::vector<std::size_t> head_layers, const Views& views);
  static Classifier of(const simd::Kernels& kernels, const Model& model);
  static Classifier of(const simd::Kernels& kernels, const Model& model, const std::vector<std::string>& members,
                       const Views& views);

  // Scores (classes): the mean over votes of the log-probabilities. One thread per workspace. `plain_label` gets the class that
  // the votes on the image as it is choose. Returns how many views have voted: Views::sure may leave the last ones out.
  std::size_t scores(const std::uint8_t* image, ForwardWorkspace& work, std::vector<float>& out,
                     std::size_t* plain_label = nullptr) const;
  ForwardWorkspace make_workspace() const { return forward_.make_workspace(needed_); }

  // The accuracy of each head by itself, of the image as it is, in one pass; collective like evaluate().
  std::vector<double> head_accuracies(mpi::Comm& comm, const data::Dataset& dataset, const EvaluationWatch& watch = {}) const;

  // All ranks take a share of the images; every rank gets the result.
  Evaluation evaluate(mpi::Comm& comm, const data::Dataset& dataset, const EvaluationWatch& watch = {}) const;

 private:
  void run_layers(ForwardWorkspace& work) const;  // of the image that was encoded
  void head_logits(std::size_t h, const ForwardWorkspace& work, std::vector<std::int16_t>& counts,
                   std::vector<float>& logits) const;
  bool is_sure(const std::vector<float>& sums, std::size_t votes) const;

  const simd::Kernels& kernels_;
  const Encoder& encoder_;
  const std::vector<BinaryLayer>& layers_;
  NetForward forward_;
  std::vector<const Head*> heads_;
  std::vector<std::size_t> head_layers_;
  std::vector<bool> needed_;
  Views views_;
};

}  // namespace bitloom::layerwise
