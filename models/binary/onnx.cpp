#include "models/binary/onnx.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "models/binary/onnx_parts.h"

namespace bitloom::models {

using layerwise::BinaryLayer;
using layerwise::Downsample;
using layerwise::LayerGeometry;

namespace {

using Sizes = std::vector<std::int64_t>;

constexpr const char* image_name = "image";

// Where each of `size` pixels of a moved image comes from: `by` further on, reflected at the edge without repeating it.
Sizes moved_places(std::size_t size, int by) {
  Sizes places;
  const auto last = static_cast<std::int64_t>(size) - 1;
  for (std::int64_t i = by; i <= last + by; ++i) places.push_back(last - std::abs(last - std::abs(i)));
  return places;
}

// A way to see an image (onnx.h).
struct OnnxView {
  int down = 0, right = 0;
  bool mirror = false;
};

// In the order of Classifier::scores().
std::vector<OnnxView> onnx_views(const layerwise::Views& views) {
  const auto far = static_cast<int>(views.shift);
  std::vector<OnnxView> result;
  for (const auto& [down, right] : std::array<std::array<int, 2>, 5>{{{0, 0}, {far, 0}, {-far, 0}, {0, far}, {0, -far}}}) {
    result.push_back({down, right, false});
    if (views.mirror) result.push_back({down, right, true});
    if (far == 0) break;
  }
  return result;
}

class NetGraph {
 public:
  NetGraph(const layerwise::Model& model, const layerwise::Views& views, std::unique_ptr<OnnxMaps> (*maps_of)(OnnxGraph& graph))
      : model_(model), views_(onnx_views(views)), shape_(model.encoder.image_shape()), numbers_(maps_of(graph_)) {}

  std::string file();

 private:
  std::string gather(const std::string& images, std::int64_t axis, const Sizes& places);
  std::string seen_images();
  std::string pooled(const std::string& map, std::size_t factor, Downsample pool);
  std::string input_of(const BinaryLayer& layer);
  void run_layers(const std::string& images, const std::vector<std::size_t>& wanted);
  void vote(const std::vector<std::size_t>& ensemble);
  std::string votes_text() const;

  const layerwise::Model& model_;
  const std::vector<OnnxView> views_;
  const data::ImageShape shape_;
  OnnxGraph graph_;
  const std::unique_ptr<OnnxMaps> numbers_;
  std::vector<std::string> maps_;  // of the encoder, then of each layer; "" for those that no head needs
};

// Rows (axis 2) or columns (axis 3) of images from other places.
std::string NetGraph::gather(const std::string& images, std::int64_t axis, const Sizes& places) {
  return graph_.node("Gather", {images, graph_.constant({static_cast<std::int64_t>(places.size())}, places)}, {{"axis", axis}});
}

// All views of all images as one batch, view by view.
std::string NetGraph::seen_images() {
  graph_.scope("views");
  std::vector<std::string> all;
  for (const OnnxView& view : views_) {
    std::string image = image_name;
    Sizes columns = moved_places(shape_.width, view.right);
    if (view.mirror) std::reverse(columns.begin(), columns.end());
    if (view.down != 0) image = gather(image, 2, moved_places(shape_.height, view.down));
    if (view.right != 0 || view.mirror) image = gather(image, 3, columns);
    all.push_back(image);
  }
  return onnx_concat(graph_, all, 0);
}

// A map reduced by `factor` in both directions; the order of its channels is that of FORMAT.md.
std::string NetGraph::pooled(const std::string& map, std::size_t factor, Downsample pool) {
  if (factor == 1) return map;
  const auto f = static_cast<std::int64_t>(factor);
  if (pool == Downsample::space_to_depth) return graph_.node("SpaceToDepth", {map}, {{"blocksize", f}});
  const std::vector<OnnxAttribute> cells = {{"kernel_shape", Sizes{f, f}}, {"strides", Sizes{f, f}}};
  if (pool == Downsample::all) {
    const std::string sum = graph_.scalar(numbers_->set_plus_unset());
    return graph_.node("Sub", {sum, graph_.node("MaxPool", {graph_.node("Sub", {sum, map})}, cells)});
  }
  if (pool == Downsample::majority) {
    // Between the counts n / 2, rounded down, and the next one: however the mean is rounded.
    const auto pixels = static_cast<float>(f * f);
    const float half = (static_cast<float>(f * f / 2) + 0.5F) / pixels;
    return numbers_->above(graph_.node("AveragePool", {map}, cells), half);
  }
  return graph_.node("MaxPool", {map}, cells);
}

std::string NetGraph::input_of(const BinaryLayer& layer) {
  std::vector<std::string> parts;
  for (const LayerGeometry::Source& source : layer.geometry().sources) {
    const std::string& map = maps_[static_cast<std::size_t>(source.layer + 1)];
    const std::size_t channels = source.shape.channels / source.planes;
    // Space to depth copies pixels, so that planes are summed before; OR, AND and majority act on the bits of each plane.
    parts.push_back(layer.spec().pool == Downsample::space_to_depth
                        ? pooled(numbers_->levels(map, source.planes, channels), source.factor, layer.spec().pool)
                        : numbers_->levels(pooled(map, source.factor, layer.spec().pool), source.planes, channels));
  }
  return onnx_concat(graph_, parts, 1);
}

void NetGraph::run_layers(const std::string& images, const std::vector<std::size_t>& wanted) {
  const std::vector<bool> needed = layerwise::needed_layers(model_.layers, wanted);
  maps_.push_back(numbers_->from_bits(onnx_encoder(graph_, model_.encoder, images)));
  for (std::size_t i = 0; i < model_.layers.size(); ++i) {
    const BinaryLayer& layer = model_.layers[i];
    graph_.scope(layer.spec().name);
    maps_.push_back(needed[i] ? numbers_->layer(layer, input_of(layer)) : "");
  }
}

// FORMAT.md, section 7, from the logits on.
void NetGraph::vote(const std::vector<std::size_t>& ensemble) {
  const auto classes = static_cast<std::int64_t>(model_.class_names.size());
  const auto views = static_cast<std::int64_t>(views_.size());
  std::vector<std::string> heads;  // (views, N, 1, L)
  for (const std::size_t i : ensemble) {
    const BinaryLayer& layer = model_.layers[i];
    const layerwise::Head& head = model_.heads.at(layer.spec().name);
    graph_.scope(layer.spec().name + "/head");
    const std::string bits = numbers_->to_bits(maps_[i + 1]);
    heads.push_back(
        onnx_reshape(graph_, onnx_head(graph_, *numbers_, head, layer.geometry().output, bits), {views, -1, 1, classes}));
  }
  graph_.scope("votes");
  const std::string by_view = graph_.node("Transpose", {onnx_concat(graph_, heads, 2)}, {{"perm", Sizes{1, 0, 2, 3}}});
  const std::int64_t votes = views * static_cast<std::int64_t>(heads.size());
  const std::string shape = graph_.constant<std::int64_t>({3}, {-1, votes, classes});
  graph_.output({"scores",
                 OnnxType::f32,
                 {numbers_->batch(), classes},
                 "mean log-probabilities of the votes; the largest is that of the class"});
  graph_.output(
      {"logits", OnnxType::f32, {numbers_->batch(), votes, classes}, "logits of each vote, for each view those of each head"});
  graph_.output_node("logits", "Reshape", {by_view, shape});
  const std::string exact = onnx_cast(graph_, "logits", OnnxType::f64);
  const std::string terms = graph_.node("LogSoftmax", {exact}, {{"axis", std::int64_t{-1}}});
  const std::string mean = graph_.node("ReduceMean", {terms}, {{"axes", Sizes{1}}, {"keepdims", std::int64_t{0}}});
  graph_.output_node("scores", "Cast", {mean}, {{"to", static_cast<std::int64_t>(OnnxType::f32)}});
}

std::string NetGraph::votes_text() const {
  nlohmann::json votes = nlohmann::json::array();
  for (const OnnxView& view : views_) {
    for (const std::string& name : model_.net.classifier) {
      votes.push_back({{"layer", name}, {"down", view.down}, {"right", view.right}, {"mirror", view.mirror}});
    }
  }
  return votes.dump();
}

std::string NetGraph::file() {
  const auto colours = static_cast<std::int64_t>(shape_.channels);
  const auto height = static_cast<std::int64_t>(shape_.height), width = static_cast<std::int64_t>(shape_.width);
  graph_.input({image_name, OnnxType::u8, {numbers_->batch(), colours, height, width}, "images, a byte per pixel and colour"});
  const std::vector<std::size_t> wanted = model_.ensemble();
  run_layers(seen_images(), wanted);
  vote(wanted);
  const std::string doc = fmt::format(
      "Binary net '{}' of Bitloom. Input: image, u8 (N, {} colours, {}, {}). Outputs: scores, f32 (N, {} classes), mean "
      "log-probabilities; logits, f32 (N, {} votes, classes). Metadata: classes, the names of the classes; votes, layer and "
      "view "
      "of each vote.",
      model_.net.name, colours, height, width, model_.class_names.size(), views_.size() * wanted.size());
  return graph_.file(doc, {{"classes", nlohmann::json(model_.class_names).dump()}, {"votes", votes_text()}});
}

}  // namespace

std::string to_onnx(const layerwise::Model& model, const layerwise::Views& views) {
  layerwise::check_views(views, model.encoder.image_shape());
  return NetGraph(model, views, &standard_maps).file();
}

std::string to_qonnx(const layerwise::Model& model, const layerwise::Views& views) {
  layerwise::check_views(views, model.encoder.image_shape());
  return NetGraph(model, views, &bipolar_maps).file();
}

}  // namespace bitloom::models
