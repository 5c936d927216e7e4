// bitloom import: weights as other programs keep them, made a model.
#include <fmt/ranges.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/model_source.h"
#include "cli/options.h"
#include "core/error.h"
#include "models/clip/model_file.h"
#include "models/cnn/model_file.h"
#include "models/dalle/model_file.h"
#include "models/dvae/published.h"
#include "models/gpt/hugging_face.h"
#include "models/gpt/model_file.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<data::Tokenizer> find_tokenizer(const std::string& spec, const fs::path& folder) {
  if (!spec.empty()) return data::load_tokenizer(spec);
  if (fs::exists(folder / "vocab.json") && fs::exists(folder / "merges.txt")) return data::load_tokenizer(folder.string());
  const fs::path sentencepiece = folder / "tokenizer.model";
  if (fs::exists(sentencepiece)) return data::load_tokenizer(sentencepiece.string());
  fail(ErrorKind::usage,
       "--tokenizer: missing; {} has neither vocab.json and merges.txt nor tokenizer.model; expected one of these, or bytes",
       folder.string());
}

void import_gpt2(Terminal& terminal, const fs::path& folder, const std::string& spec, const fs::path& out) {
  const models::GptConfig config = models::read_hugging_face_config(folder);
  const auto tokenizer = find_tokenizer(spec, folder);
  if (tokenizer->size() != config.vocabulary) {
    fail(ErrorKind::data, "{}: a net of {} tokens, but the tokenizer{} has {}", folder.string(), config.vocabulary,
         spec.empty() ? " there" : " " + spec, tokenizer->size());
  }
  nn::Engine engine;
  models::Gpt net(config);
  nn::make_parameters(engine, nn::parameters_of(net), DType::f32);
  models::load_hugging_face(engine, folder, net);
  models::save_gpt(engine, net, *tokenizer).save(out);
  terminal.print("{}: {} parameters, {} layers of width {}, context {}; {} tokenizer, {} tokens ({})", out.string(),
                 format_count(config.parameters()), config.layers, config.width, config.context, tokenizer->kind(),
                 config.vocabulary, format_bytes(fs::file_size(out)));
}

// Description of the net whose numbers a file holds: the file's own metadata, or another model.
struct Described {
  TensorFile file;
  std::string name;
};
Described described_by(const TensorFile& file, const fs::path& path, const std::string& like) {
  if (!like.empty()) {
    const fs::path model = find_model(like);
    return {TensorFile::load(model), model.string()};
  }
  if (!file.metadata.contains(models::kind_key)) {
    fail(ErrorKind::usage, "--like: missing; the metadata of {} describe no net", path.string());
  }
  return {file, path.string()};
}

void import_pytorch(Terminal& terminal, const fs::path& path, const std::string& like, const fs::path& out) {
  const TensorFile file = TensorFile::load(path);
  const Described described = described_by(file, path, like);
  const models::CnnDescription description = models::cnn_description_of(described.file, described.name);
  nn::Engine engine;
  models::Cnn net(description.config);
  nn::make_parameters(engine, nn::parameters_of(*net.layers), DType::f32);
  models::load_pytorch_values(engine, file, net, path.string());
  models::save_cnn(engine, net, DType::f32, description).save(out);
  terminal.print("{}: net '{}', {} parameters ({})", out.string(), net.config.name, format_count(net.parameters()),
                 format_bytes(fs::file_size(out)));
}

void import_dalle_file(Terminal& terminal, const fs::path& path, const std::string& like, const fs::path& out) {
  const TensorFile file = TensorFile::load(path);
  const Described described = described_by(file, path, like);
  nn::Engine engine;
  const models::LoadedDalle loaded = models::load_pytorch_dalle(engine, file, path.string(), described.file, described.name);
  models::save_dalle(engine, loaded).save(out);
  const models::DalleConfig& config = loaded.net->config();
  terminal.print("{}: {} parameters, {} layers of width {}, {} + {} tokens ({})", out.string(),
                 format_count(config.parameters()), config.layers, config.width, config.text, config.image(),
                 format_bytes(fs::file_size(out)));
}

void import_clip_file(Terminal& terminal, const fs::path& path, const std::string& like, const fs::path& out) {
  const TensorFile file = TensorFile::load(path);
  const Described described = described_by(file, path, like);
  nn::Engine engine;
  const models::LoadedClip loaded = models::load_pytorch_clip(engine, file, path.string(), described.file, described.name);
  models::save_clip(engine, loaded).save(out);
  const models::ClipConfig& config = loaded.net->config();
  terminal.print("{}: images of {} x {} pixels and texts of {} tokens as {} numbers ({})", out.string(),
                 config.image.image.width, config.image.image.height, config.text, config.embedding(),
                 format_bytes(fs::file_size(out)));
}

void import_published(Terminal& terminal, const std::vector<std::string>& arguments, std::size_t side, const fs::path& out) {
  const std::vector<fs::path> paths(arguments.begin(), arguments.end());
  const std::string name = fmt::format("{}", fmt::join(arguments, ", "));
  const TensorFile file = models::read_published(paths);
  const models::DvaeDescription description = models::description_of_published(file, side, name);
  nn::Engine engine;
  models::Dvae net(description.config);
  nn::make_parameters(engine, nn::parameters_of(*net.layers), DType::f32);
  models::load_published(engine, file, net, name);
  models::save_dvae(engine, net, description).save(out);
  const models::DvaeConfig& config = description.config;
  terminal.print("{}: {} x {} pixels become {} x {} tokens of {} codes; {} + {} parameters ({})", out.string(), config.side,
                 config.side, config.grid(), config.grid(), config.codes, format_count(net.encoder_parameters()),
                 format_count(net.decoder_parameters()), format_bytes(fs::file_size(out)));
}

// Throws Error(usage) where what is to be written is one of the inputs, or a file of an input folder.
void require_no_input(const std::string& out, std::span<const std::string> inputs) {
  for (const std::string& input : inputs) {
    require_other_output("--out", out, input);
    if (!fs::is_directory(input)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(input)) require_other_output("--out", out, entry.path());
  }
}

// Options of imports of one file that another model may describe.
int import_file(Session& session, std::span<const std::string> args, const std::string& kind, const std::string& what,
                void (*make)(Terminal&, const fs::path&, const std::string&, const fs::path&)) {
  std::vector<std::string> arguments;
  std::string out;
  std::string like;
  Options options(fmt::format("bitloom import {} FILE --out MODEL [--like MODEL|RUN]", kind),
                  fmt::format("Makes a model of {} in a safetensors file, in f32, f16 or bf16, with the names that\n"
                              "`bitloom export` writes.",
                              what));
  options.arguments(arguments, "FILE", 1, 1);
  options.text("out", out, "MODEL", "Model file to write");
  options.text("like", like, "MODEL|RUN",
               "Model whose net, and tokenizer or classes and scale of pixels, these are; without it: those in FILE");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  if (out.empty()) fail(ErrorKind::usage, "--out: missing; expected the model file to write");
  session.on_root([&] {
    require_no_input(out, arguments);
    if (!like.empty()) require_other_output("--out", out, find_model(like));
    make(session.terminal, arguments.front(), like, out);
  });
  return exit_done;
}

}  // namespace

int import_clip(Session& session, std::span<const std::string> args) {
  return import_file(session, args, "clip", "a contrastive model's state_dict of PyTorch (see scripts/torch_text_to_image.py)",
                     &import_clip_file);
}

int import_dalle(Session& session, std::span<const std::string> args) {
  return import_file(session, args, "dalle",
                     "a text-to-image transformer's state_dict of PyTorch (see scripts/torch_text_to_image.py)",
                     &import_dalle_file);
}

int import_dvae(Session& session, std::span<const std::string> args) {
  std::vector<std::string> arguments;
  std::string out;
  std::size_t side = 0;
  Options options("bitloom import dvae FOLDER|FILE|ENCODER DECODER --out MODEL [--side N]",
                  "Makes a model of a discrete VAE's weights with the names of openai/DALL-E's modules, in f32, f16 or bf16:\n"
                  "a folder with encoder.safetensors and decoder.safetensors, as `bitloom export` writes them, the two files, "
                  "or one\nfile with the tensors of both behind 'encoder.' and 'decoder.'. Shapes tell the net's sizes. "
                  "`scripts/torch_text_to_image.py convert encoder.pkl decoder.pkl FOLDER` makes such a folder of the "
                  "published modules.");
  options.arguments(arguments, "FOLDER|FILE", 1, 2);
  options.text("out", out, "MODEL", "Model file to write");
  options.count("side", side, 0, 1024,
                "Height and width of images in pixels, which no shape tells; 0: as the metadata of the files say, else 256");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  if (out.empty()) fail(ErrorKind::usage, "--out: missing; expected the model file to write");
  session.on_root([&] {
    require_no_input(out, arguments);
    import_published(session.terminal, arguments, side, out);
  });
  return exit_done;
}

int import_cnn(Session& session, std::span<const std::string> args) {
  return import_file(session, args, "cnn", "a convolutional net's state_dict of PyTorch (see scripts/torch_cnn.py)",
                     &import_pytorch);
}

int import_gpt(Session& session, std::span<const std::string> args) {
  std::vector<std::string> arguments;
  std::string out;
  std::string tokenizer;
  Options options("bitloom import gpt FOLDER --out FILE [--tokenizer SPEC]",
                  "Makes a model of GPT-2's weights as Hugging Face's transformers keep them: FOLDER/config.json and\n"
                  "FOLDER/model.safetensors, in f32, f16 or bf16.");
  options.arguments(arguments, "FOLDER", 1, 1);
  options.text("out", out, "FILE", "Model file to write");
  options.text("tokenizer", tokenizer, "SPEC",
               "Tokenizer: bytes, a file of `bitloom tokenizer train`, a sentencepiece model, or a folder with vocab.json and "
               "merges.txt; "
               "without it: those in FOLDER");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  if (out.empty()) fail(ErrorKind::usage, "--out: missing; expected the model file to write");
  session.on_root([&] {
    const fs::path folder = arguments.front();
    if (!fs::is_directory(folder)) fail(ErrorKind::data, "{}: there is no such folder", folder.string());
    require_no_input(out, arguments);
    import_gpt2(session.terminal, folder, tokenizer, out);
  });
  return exit_done;
}

}  // namespace bitloom::cli
