// bitloom import: weights as other programs keep them, made a model.
#include <filesystem>

#include "cli/command.h"
#include "cli/model_source.h"
#include "cli/options.h"
#include "core/error.h"
#include "models/cnn/model_file.h"
#include "models/gpt/hugging_face.h"
#include "models/gpt/model_file.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<data::Tokenizer> find_tokenizer(const std::string& spec, const fs::path& folder) {
  if (!spec.empty()) return data::load_tokenizer(spec);
  if (fs::exists(folder / "vocab.json") && fs::exists(folder / "merges.txt")) return data::load_tokenizer(folder.string());
  fail(ErrorKind::usage, "--tokenizer: missing; {} has no vocab.json and merges.txt", folder.string());
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

// The net that a file's metadata describe, or that of another model.
models::CnnDescription describe(const TensorFile& file, const fs::path& path, const std::string& like) {
  if (!like.empty()) {
    const fs::path model = find_model(like);
    return models::cnn_description_of(TensorFile::load(model), model.string());
  }
  if (!file.metadata.contains(models::kind_key)) {
    fail(ErrorKind::usage, "--like: missing; the metadata of {} describe no net", path.string());
  }
  return models::cnn_description_of(file, path.string());
}

void import_pytorch(Terminal& terminal, const fs::path& path, const std::string& like, const fs::path& out) {
  const TensorFile file = TensorFile::load(path);
  const models::CnnDescription description = describe(file, path, like);
  nn::Engine engine;
  models::Cnn net(description.config);
  nn::make_parameters(engine, nn::parameters_of(*net.layers), DType::f32);
  models::load_pytorch_values(engine, file, net, path.string());
  models::save_cnn(engine, net, DType::f32, description).save(out);
  terminal.print("{}: net '{}', {} parameters ({})", out.string(), net.config.name, format_count(net.parameters()),
                 format_bytes(fs::file_size(out)));
}

}  // namespace

int import_cnn(Session& session, std::span<const std::string> args) {
  std::vector<std::string> arguments;
  std::string out;
  std::string like;
  Options options("bitloom import cnn FILE --out MODEL [--like MODEL|RUN]",
                  "Makes a model of a PyTorch module's state_dict in a safetensors file, in f32, f16 or bf16, with the names "
                  "that\n`bitloom export` writes (see scripts/torch_cnn.py).");
  options.arguments(arguments, "FILE", 1, 1);
  options.text("out", out, "MODEL", "Model file to write");
  options.text("like", like, "MODEL|RUN",
               "Model whose net, classes and scale of pixels these are; without it: those in the metadata of FILE");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  if (out.empty()) fail(ErrorKind::usage, "--out: missing; expected the model file to write");
  session.on_root([&] { import_pytorch(session.terminal, arguments.front(), like, out); });
  return exit_done;
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
    import_gpt2(session.terminal, folder, tokenizer, out);
  });
  return exit_done;
}

}  // namespace bitloom::cli
