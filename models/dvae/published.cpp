#include "models/dvae/published.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "models/foreign_tensors.h"

namespace bitloom::models {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view encoder_prefix = "encoder.";
constexpr std::string_view decoder_prefix = "decoder.";
constexpr std::size_t published_side = 256;

// With the prefix: "encoder.blocks.input.weight" is "encoder.blocks.input.w".
std::string published_name(const std::string& ours) {
  const std::size_t dot = ours.rfind('.');
  return ours.substr(0, dot + 2);
}

bool has_prefix(const std::string& name) { return name.starts_with(encoder_prefix) || name.starts_with(decoder_prefix); }

// Adds the tensors of a file under names with the prefix.
void add(TensorFile& all, TensorFile&& half, std::string_view prefix) {
  for (auto& [name, tensor] : half.tensors) {
    all.tensors.insert_or_assign(name.starts_with(prefix) ? name : std::string(prefix) + name, std::move(tensor));
  }
  all.metadata.merge(half.metadata);
}

// Shapes of tensors that tell sizes.
class Shapes {
 public:
  Shapes(const TensorFile& file, const std::string& name) : file_(file), name_(name) {}

  bool has(const std::string& tensor) const { return file_.contains(tensor); }
  // First length of the shape of a convolution's weights; inputs: that it has to have, 0: any.
  std::size_t outputs(const std::string& tensor, std::size_t inputs, std::size_t kernel) const {
    const std::string expected =
        fmt::format("(outputs, {}, {}, {})", inputs == 0 ? "inputs" : fmt::format("{}", inputs), kernel, kernel);
    const auto found = file_.tensors.find(tensor);
    if (found == file_.tensors.end()) {
      fail(ErrorKind::data, "{}: the tensor '{}' is missing; expected one of shape {}", name_, tensor, expected);
    }
    const std::vector<std::size_t>& shape = found->second.shape;
    if (shape.size() != 4 || (inputs != 0 && shape[1] != inputs) || shape[2] != kernel || shape[3] != kernel) {
      fail(ErrorKind::data, "{}: the tensor '{}' has the shape ({}); expected {}", name_, tensor, fmt::join(shape, ", "),
           expected);
    }
    return shape[0];
  }

 private:
  const TensorFile& file_;
  const std::string& name_;
};

}  // namespace

PublishedDvae to_published(nn::Engine& engine, Dvae& net, const DvaeDescription& description) {
  TensorFile all = to_pytorch(engine, *net.layers, DType::f32, &published_name);
  PublishedDvae published;
  for (TensorFile* half : {&published.encoder, &published.decoder}) add_description(*half, description);
  for (auto& [name, tensor] : all.tensors) {
    const bool is_encoder = name.starts_with(encoder_prefix);
    TensorFile& half = is_encoder ? published.encoder : published.decoder;
    half.tensors.emplace(name.substr((is_encoder ? encoder_prefix : decoder_prefix).size()), std::move(tensor));
  }
  return published;
}

TensorFile read_published(std::span<const fs::path> paths) {
  TensorFile all;
  if (paths.size() == 2) {
    add(all, TensorFile::load(paths[0]), encoder_prefix);
    add(all, TensorFile::load(paths[1]), decoder_prefix);
    return all;
  }
  if (fs::is_directory(paths.front())) {
    const std::vector<fs::path> halves{paths.front() / encoder_file, paths.front() / decoder_file};
    return read_published(halves);
  }
  all = TensorFile::load(paths.front());
  for (const auto& [name, tensor] : all.tensors) {
    if (!has_prefix(name)) {
      fail(ErrorKind::data,
           "{}: the tensor '{}'; expected names that begin with '{}' or '{}', or a file of the encoder's and one of the "
           "decoder's",
           paths.front().string(), name, encoder_prefix, decoder_prefix);
    }
  }
  return all;
}

DvaeDescription description_of_published(const TensorFile& file, std::size_t side, const std::string& name) {
  DvaeDescription description;
  if (file.metadata.contains(kind_key)) {
    description = dvae_description_of(file, name);
  } else {
    const Shapes shapes(file, name);
    DvaeConfig& config = description.config;
    config.name = "imported";
    config.side = published_side;
    config.hidden = shapes.outputs("encoder.blocks.input.w", 3, 7);
    config.codes = shapes.outputs("encoder.blocks.output.conv.w", 0, 1);
    config.init = shapes.outputs("decoder.blocks.input.w", config.codes, 1);
    const auto first_conv = [](std::size_t group, std::size_t block) {
      return fmt::format("encoder.blocks.group_{}.block_{}.res_path.conv_1.w", group, block);
    };
    for (config.groups = 1; shapes.has(first_conv(config.groups + 1, 1));) ++config.groups;
    for (config.blocks = 1; shapes.has(first_conv(1, config.blocks + 1));) ++config.blocks;
  }
  if (side != 0) description.config.side = side;
  // The limits of all descriptions.
  description.config = parse_dvae_model(architecture_of(description.config).dump(), name);
  return description;
}

void load_published(nn::Engine& engine, const TensorFile& file, Dvae& net, const std::string& name) {
  load_pytorch(engine, file, *net.layers, DType::f32, &published_name, name,
               fmt::format("a discrete VAE of {} groups of {} blocks", net.config.groups, net.config.blocks));
}

}  // namespace bitloom::models
