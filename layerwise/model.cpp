#include "layerwise/model.h"

#include <fmt/ranges.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/text.h"
#include "run/folder.h"

namespace bitloom::layerwise {
namespace {

constexpr const char* format_key = "bitloom.format";
constexpr const char* net_key = "bitloom.net";
constexpr const char* classes_key = "bitloom.classes";
constexpr const char* note_prefix = "note.";

// Those that the model does not have yet; of a layer that several stages train under a head, the last one's.
void read_heads(const TensorFile& file, Model& model) {
  std::map<std::string, Head> read;
  for (const StageSpec& stage : model.net.stages) {
    for (const std::string& name : stage.heads) {
      if (model.heads.contains(name) || !file.contains(name + ".head.centre")) continue;
      for (const BinaryLayer& layer : model.layers) {
        if (layer.spec().name != name) continue;
        // Before there is room for them.
        if (const Tensor& biases = file.get(name + ".head.linear_bias");
            biases.shape != std::vector{model.class_names.size()}) {
          fail(ErrorKind::data, "{}.head.linear_bias: shape [{}]; expected one for each of {} classes", name,
               fmt::join(biases.shape, ", "), model.class_names.size());
        }
        Head head(stage.head, layer.geometry().output, model.class_names.size(), 0, 0);
        head.load(file, name + ".head", false);
        read.insert_or_assign(name, std::move(head));
      }
    }
  }
  model.heads.merge(read);
}

}  // namespace

void Model::save(const std::filesystem::path& path) const {
  TensorFile file;
  file.metadata[format_key] = fmt::format("binary {}", model_format);
  file.metadata[net_key] = to_json(net).dump();
  file.metadata[classes_key] = nlohmann::json(class_names).dump();
  for (const auto& [key, value] : notes) file.metadata[note_prefix + key] = value;
  encoder.save(file);
  for (const BinaryLayer& layer : layers) layer.save(file);
  for (const auto& [name, head] : heads) head.save(file, name + ".head", false);
  file.save(path);
}

void save_heads(const std::map<std::string, Head>& heads, const std::filesystem::path& path) {
  TensorFile file;
  for (const auto& [name, head] : heads) head.save(file, name + ".head", false);
  file.save(path);
}

std::map<std::string, Head> Model::take_other_heads() {
  std::map<std::string, Head> others;
  for (auto head = heads.begin(); head != heads.end();) {
    const auto next = std::next(head);
    if (!contains(net.classifier, head->first)) others.insert(heads.extract(head));
    head = next;
  }
  return others;
}

Model Model::load(const std::filesystem::path& path) {
  const TensorFile file = TensorFile::load(path);
  const auto format = file.metadata.find(format_key);
  if (format == file.metadata.end())
    fail(ErrorKind::data, "{}: not a Bitloom model: the metadata has no '{}'", path.string(), format_key);
  int version = oldest_model_format;
  while (version <= model_format && format->second != fmt::format("binary {}", version)) ++version;
  if (version > model_format) {
    fail(ErrorKind::data, "{}: the model's format is '{}'; this program reads 'binary {}' to 'binary {}'", path.string(),
         format->second, oldest_model_format, model_format);
  }
  Model model;
  try {
    model.net = net_from_json(nlohmann::json::parse(file.get_metadata(net_key)), path.string());
    model.class_names = nlohmann::json::parse(file.get_metadata(classes_key)).get<std::vector<std::string>>();
    if (model.class_names.empty()) fail(ErrorKind::data, "there are no names of classes");
    if (model.net.classifier.empty()) fail(ErrorKind::data, "no head of the net classifies");
    model.encoder = Encoder::load(file);
    check_views(model.net.views, model.encoder.image_shape());
    const MapShape input = model.encoder.output();
    const auto geometry = derive_geometry(model.net, input.height, input.width, input.channels);
    for (std::size_t i = 0; i < geometry.size(); ++i) {
      model.layers.push_back(BinaryLayer::read(model.net.layers[i], geometry[i], file));
    }
    read_heads(file, model);
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorKind::data, "{}: the description of the net cannot be read: {}", path.string(), error.what());
  } catch (const Error& error) {
    // A description that this program would refuse from a user is, in a model file, bad data.
    fail(ErrorKind::data, "{}: {}", path.string(), error.what());
  }
  for (const std::string& name : model.net.classifier) {
    if (!model.heads.contains(name))
      fail(ErrorKind::data, "{}: the head of layer '{}', which is part of the ensemble, is missing", path.string(), name);
  }
  for (const auto& [key, value] : file.metadata) {
    if (key.starts_with(note_prefix)) model.notes[key.substr(std::string(note_prefix).size())] = value;
  }
  return model;
}

Model Model::load_with_all_heads(const std::filesystem::path& path) {
  Model model = load(path);
  const std::filesystem::path others = path.parent_path() / heads_name;
  if (path.filename() != run::model_name || !std::filesystem::exists(others)) return model;
  const TensorFile file = TensorFile::load(others);
  try {
    read_heads(file, model);
  } catch (const Error& error) {
    fail(ErrorKind::data, "{}: {}", others.string(), error.what());
  }
  return model;
}

std::vector<std::size_t> Model::ensemble() const {
  std::vector<std::size_t> indices;
  for (const std::string& name : net.classifier)
    indices.push_back(static_cast<std::size_t>(&net.layer(name) - net.layers.data()));
  return indices;
}

std::size_t Model::weight_bits() const {
  std::size_t bits = 0;
  for (const BinaryLayer& layer : layers) bits += layer.weight_bits();
  return bits;
}

std::size_t Model::bit_macs() const {
  std::size_t macs = 0;
  for (const BinaryLayer& layer : layers) macs += layer.bit_macs();
  return macs;
}

std::size_t Model::head_macs() const {
  std::size_t macs = 0;
  for (const std::string& name : net.classifier) macs += heads.at(name).macs();
  return macs;
}

std::size_t Model::head_bytes() const {
  std::size_t bytes = 0;
  for (const std::string& name : net.classifier) bytes += heads.at(name).bytes();
  return bytes;
}

}  // namespace bitloom::layerwise
