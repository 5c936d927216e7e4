// Discrete VAEs in the layout of openai/DALL-E: there and back, sizes that shapes tell, and what is refused; other nets under
// PyTorch's names.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "models/clip/model_file.h"
#include "models/dalle/model_file.h"
#include "models/dvae/published.h"
#include "models/saved_values.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::models;
using bitloom::test::has;
using bitloom::test::message_of;

namespace {

namespace fs = std::filesystem;

DvaeConfig odd_dvae() { return {.name = "odd", .side = 24, .codes = 10, .groups = 3, .blocks = 2, .hidden = 12, .init = 5}; }

struct Made {
  Made() : net(odd_dvae()) { nn::initialise(engine, nn::parameters_of(*net.layers), DType::f32, 5); }

  PublishedDvae published() { return to_published(engine, net, description); }
  TensorFile model() { return save_dvae(engine, net, description); }

  nn::Engine engine;
  Dvae net;
  DvaeDescription description{odd_dvae(), -3};
};

// A model of files in the published layout.
TensorFile imported(const std::vector<fs::path>& paths, std::size_t side = 0) {
  nn::Engine engine;
  const TensorFile file = read_published(paths);
  const DvaeDescription description = description_of_published(file, side, "it");
  Dvae net(description.config);
  nn::make_parameters(engine, nn::parameters_of(*net.layers), DType::f32);
  load_published(engine, file, net, "it");
  return save_dvae(engine, net, description);
}

bool same_tensors(const TensorFile& a, const TensorFile& b) {
  return std::ranges::equal(a.tensors, b.tensors, [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.shape == y.second.shape &&
           std::ranges::equal(x.second.bytes.span(), y.second.bytes.span());
  });
}

}  // namespace

TEST_CASE("a discrete VAE goes to the layout of openai/DALL-E and back", "[dvae]") {
  const test::TempDir folder;
  Made made;
  const PublishedDvae published = made.published();
  // Names and layouts of encoder.py and decoder.py: weights are (outputs, inputs, height, width), both halves begin at blocks.
  const auto shape = [](const TensorFile& file, const char* name) { return file.get(name).shape; };
  using Shape = std::vector<std::size_t>;
  CHECK(shape(published.encoder, "blocks.input.w") == Shape{12, 3, 7, 7});
  CHECK(shape(published.encoder, "blocks.input.b") == Shape{12});
  CHECK(shape(published.encoder, "blocks.group_1.block_1.res_path.conv_1.w") == Shape{3, 12, 3, 3});
  CHECK(shape(published.encoder, "blocks.group_2.block_1.id_path.w") == Shape{24, 12, 1, 1});
  CHECK(shape(published.encoder, "blocks.group_3.block_2.res_path.conv_4.w") == Shape{48, 12, 1, 1});
  CHECK(shape(published.encoder, "blocks.output.conv.w") == Shape{10, 48, 1, 1});
  CHECK(shape(published.decoder, "blocks.input.w") == Shape{5, 10, 1, 1});
  CHECK(shape(published.decoder, "blocks.group_1.block_1.res_path.conv_1.w") == Shape{12, 5, 1, 1});
  CHECK(shape(published.decoder, "blocks.group_3.block_2.res_path.conv_4.w") == Shape{12, 3, 3, 3});
  CHECK(shape(published.decoder, "blocks.output.conv.b") == Shape{6});
  CHECK_FALSE(published.encoder.contains("blocks.group_1.block_1.id_path.w"));
  published.encoder.save(folder / encoder_file);
  published.decoder.save(folder / decoder_file);
  const TensorFile back = imported({folder.path()});
  CHECK(back.serialize() == made.model().serialize());
  CHECK(imported({folder / encoder_file, folder / decoder_file}).serialize() == back.serialize());
  CHECK(dvae_description_of(back, "it").least_log_b == -3);
  CHECK(dvae_description_of(imported({folder.path()}, 48), "it").config.side == 48);
}

TEST_CASE("shapes tell the sizes of a discrete VAE", "[dvae]") {
  const test::TempDir folder;
  Made made;
  PublishedDvae published = made.published();
  published.encoder.metadata.clear();
  published.decoder.metadata.clear();
  published.encoder.save(folder / encoder_file);
  published.decoder.save(folder / decoder_file);
  const TensorFile back = imported({folder.path()}, 24);
  CHECK(same_tensors(back, made.model()));
  const DvaeConfig config = dvae_description_of(back, "it").config;
  CHECK(config.groups == 3);
  CHECK(config.blocks == 2);
  CHECK(config.hidden == 12);
  CHECK(config.init == 5);
  CHECK(config.codes == 10);
  CHECK(config.side == 24);
  // That of images none tells.
  CHECK(dvae_description_of(imported({folder.path()}), "it").config.side == 256);

  const auto refusal = [&](const std::function<void(TensorFile & encoder, TensorFile & decoder)>& change) {
    PublishedDvae changed = made.published();
    changed.encoder.metadata.clear();
    changed.decoder.metadata.clear();
    change(changed.encoder, changed.decoder);
    changed.encoder.save(folder / encoder_file);
    changed.decoder.save(folder / decoder_file);
    return message_of(ErrorKind::data, [&] { imported({folder.path()}, 24); });
  };
  const auto floats = [](std::size_t count) { return std::vector<float>(count); };
  CHECK(refusal([](TensorFile&, TensorFile&) {}) == "no error");
  CHECK(has(refusal([](TensorFile& encoder, TensorFile&) { encoder.tensors.erase("blocks.input.w"); }),
            "it: the tensor 'encoder.blocks.input.w' is missing; expected one of shape (outputs, 3, 7, 7)"));
  CHECK(has(refusal([&](TensorFile& encoder, TensorFile&) {
              encoder.put("blocks.input.w", {12, 1, 7, 7}, floats(588));
            }),
            "it: the tensor 'encoder.blocks.input.w' has the shape (12, 1, 7, 7); expected (outputs, 3, 7, 7)"));
  CHECK(has(refusal([&](TensorFile&, TensorFile& decoder) {
              decoder.put("blocks.input.w", {5, 9, 1, 1}, floats(45));
            }),
            "it: the tensor 'decoder.blocks.input.w' has the shape (5, 9, 1, 1); expected (outputs, 10, 1, 1)"));
  CHECK(has(refusal([](TensorFile& encoder, TensorFile&) { encoder.tensors.erase("blocks.group_2.block_1.id_path.b"); }),
            "it: the tensor 'encoder.blocks.group_2.block_1.id_path.b' is missing; expected one of shape (24)"));
  CHECK(has(refusal([&](TensorFile&, TensorFile& decoder) { decoder.put("blocks.output.conv.b", {3}, floats(3)); }),
            "it: the tensor 'decoder.blocks.output.conv.b' has the shape (3); expected (6)"));
  CHECK(has(refusal([&](TensorFile& encoder, TensorFile&) { encoder.put("blocks.more.w", {1}, floats(1)); }),
            "it: the tensor 'encoder.blocks.more.w' has no place in a discrete VAE of 3 groups of 2 blocks"));
  CHECK(has(
      refusal([&](TensorFile& encoder, TensorFile&) { encoder.put("blocks.input.b", {12}, std::vector<std::int32_t>(12)); }),
      "it: the tensor 'encoder.blocks.input.b' is of type I32; expected F32, F16 or BF16"));
  CHECK(has(message_of(ErrorKind::data, [&] { description_of_published(made.model(), 25, "it"); }),
            "\"side\": 25; expected a multiple of 4"));
  fs::remove(folder / decoder_file);
  CHECK(has(message_of(ErrorKind::io, [&] { imported({folder.path()}); }), "decoder.safetensors"));
  // One half alone says not which it is.
  CHECK(has(message_of(ErrorKind::data, [&] { imported({folder / encoder_file}); }),
            "expected names that begin with 'encoder.' or 'decoder.'"));
}

TEST_CASE("a text-to-image transformer and a contrastive model go to PyTorch's names and back", "[dalle][clip]") {
  nn::Engine engine;
  const auto bytes = [] { return data::load_tokenizer("bytes"); };
  LoadedDalle dalle;
  DalleConfig config = config_of(find_dalle("tiny"));
  dalle.tokenizer = bytes();
  config.text_vocabulary = dalle.tokenizer->size();
  dalle.dvae = "a codebook";
  dalle.net = std::make_unique<Dalle>(config);
  nn::initialise(engine, nn::parameters_of(dalle.net->layers()), DType::f32, 5);
  const TensorFile theirs = to_pytorch(engine, dalle);
  // Matrices are (outputs, inputs) there.
  using Shape = std::vector<std::size_t>;
  CHECK(theirs.get("blocks.0.attention.qkv.weight").shape == Shape{96, 32});
  CHECK(theirs.get("blocks.1.feed_forward.second.weight").shape == Shape{32, 128});
  CHECK(theirs.get("head.codes.weight").shape == Shape{16, 32});
  CHECK(theirs.get("embedding.rows.weight").shape == Shape{4, 32});
  CHECK(theirs.contains("norm.weight"));
  const TensorFile ours = save_dalle(engine, dalle);
  const auto turned = theirs.get("blocks.0.attention.qkv.weight").as<float>();
  const auto matrix = ours.get("blocks.0.attention.qkv.weight").as<float>();
  CHECK(turned[5 * 32 + 3] == matrix[3 * 96 + 5]);
  CHECK(save_dalle(engine, load_pytorch_dalle(engine, theirs, "it", theirs, "it")).serialize() == ours.serialize());
  CHECK(save_dalle(engine, load_pytorch_dalle(engine, theirs, "it", ours, "that")).serialize() == ours.serialize());

  TensorFile other = theirs;
  other.tensors.erase("blocks.1.attention.norm.bias");
  CHECK(has(message_of(ErrorKind::data, [&] { load_pytorch_dalle(engine, other, "it", theirs, "that"); }),
            "it: the tensor 'blocks.1.attention.norm.bias' is missing; expected one of shape (32)"));
  other = theirs;
  other.put("blocks.1.attention.qkv.weight", {32, 96}, std::vector<float>(32 * 96));
  CHECK(has(message_of(ErrorKind::data, [&] { load_pytorch_dalle(engine, other, "it", theirs, "that"); }),
            "it: the tensor 'blocks.1.attention.qkv.weight' has the shape (32, 96); expected (96, 32)"));

  LoadedClip clip;
  ClipConfig towers = find_clip("tiny", 16);
  clip.tokenizer = bytes();
  towers.text_vocabulary = clip.tokenizer->size();
  clip.net = std::make_unique<ClipTowers>(towers);
  nn::initialise(engine, nn::parameters_of(*clip.net), DType::f32, 5);
  const TensorFile model = save_clip(engine, clip);
  const TensorFile exported = to_pytorch(engine, clip);
  CHECK(exported.get("embedding.tokens.weight").shape == Shape{towers.text_vocabulary + 2, 16});
  CHECK(exported.get("projection.weight").shape == Shape{16, 16});
  CHECK(exported.contains("layers.1.running_mean"));
  CHECK(exported.contains("log_scale"));
  CHECK(save_clip(engine, load_pytorch_clip(engine, exported, "it", exported, "it")).serialize() == model.serialize());
  TensorFile more = exported;
  more.put("layers.9.weight", {1}, std::vector<float>(1));
  CHECK(has(message_of(ErrorKind::data, [&] { load_pytorch_clip(engine, more, "it", exported, "it"); }),
            "it: the tensor 'layers.9.weight' has no place in the net"));
}
