#include "data/dataset_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/error.h"

namespace bitloom::data {
namespace {

using Json = nlohmann::json;

constexpr const char* description_key = "bitloom.images";

void put(TensorFile& file, const std::string& name, const Dataset& set) {
  file.put(name + ".pixels", {set.size(), set.shape.channels, set.shape.height, set.shape.width}, set.pixels);
  file.put(name + ".labels", {set.size()}, set.labels);
}

Dataset get(const TensorFile& file, const std::string& name, const Dataset& like) {
  Dataset set = like;
  const auto labels = file.get(name + ".labels").as<std::uint16_t>();
  const auto pixels =
      file.get(name + ".pixels", DType::u8, {labels.size(), set.shape.channels, set.shape.height, set.shape.width})
          .as<std::uint8_t>();
  if (std::any_of(labels.begin(), labels.end(), [&](std::uint16_t label) { return label >= set.classes(); })) {
    fail(ErrorKind::data, "{}: a label is beyond the {} classes", name, set.classes());
  }
  set.labels.assign(labels.begin(), labels.end());
  set.pixels.assign(pixels.begin(), pixels.end());
  return set;
}

}  // namespace

TensorFile to_tensors(const DataSplits& splits) {
  const Dataset& train = splits.train;
  TensorFile file;
  file.metadata[description_key] = Json{
      {"name", train.name},
      {"height", train.shape.height},
      {"width", train.shape.width},
      {"channels", train.shape.channels},
      {"classes", train.class_names}}.dump(-1, ' ', false, Json::error_handler_t::replace);
  put(file, "train", train);
  put(file, "validation", splits.validation);
  put(file, "test", splits.test);
  return file;
}

DataSplits from_tensors(const TensorFile& file) {
  Dataset like;
  try {
    const Json json = Json::parse(file.get_metadata(description_key));
    like.name = json.at("name");
    like.shape.height = json.at("height");
    like.shape.width = json.at("width");
    like.shape.channels = json.at("channels");
    like.class_names = json.at("classes").get<std::vector<std::string>>();
  } catch (const Json::exception& error) {
    fail(ErrorKind::data, "images: their description is damaged: {}", error.what());
  }
  return {get(file, "train", like), get(file, "validation", like), get(file, "test", like)};
}

}  // namespace bitloom::data
