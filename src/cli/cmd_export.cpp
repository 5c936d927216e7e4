// bitloom export: a model in the layout of other programs.
#include <filesystem>

#include "cli/command.h"
#include "cli/model_source.h"
#include "cli/options.h"
#include "core/error.h"
#include "data/text/gpt2_files.h"
#include "models/cnn/model_file.h"
#include "models/gpt/hugging_face.h"
#include "models/gpt/model_file.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

void export_gpt(Terminal& terminal, const fs::path& model, const fs::path& folder) {
  nn::Engine engine;
  const models::LoadedGpt loaded = models::load_gpt(engine, model);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorKind::io, "--out: {}: {}", folder.string(), error.message());
  const data::Tokenizer& tokenizer = *loaded.tokenizer;
  models::save_hugging_face(engine, *loaded.net, folder, tokenizer.end_of_text());
  std::string files = "config.json, model.safetensors";
  if (tokenizer.kind() == "gpt2") {
    data::write_gpt2_files(tokenizer, folder);
    files += ", vocab.json, merges.txt";
  } else {
    terminal.print("no files for the tokenizer: that layout has none for those of kind '{}'", tokenizer.kind());
  }
  terminal.print("{}: {}", folder.string(), files);
}

void export_cnn(Terminal& terminal, const fs::path& model, const fs::path& folder) {
  const TensorFile file = TensorFile::load(model, Checksum::required);
  (void)models::cnn_description_of(file, model.string());
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorKind::io, "--out: {}: {}", folder.string(), error.message());
  models::to_pytorch_names(file).save(folder / model_file);
  terminal.print("{}: model.safetensors, with the names of PyTorch's layers; its metadata describe the net", folder.string());
}

}  // namespace

int export_model(Session& session, std::span<const std::string> args) {
  std::vector<std::string> arguments;
  std::string out;
  Options options("bitloom export MODEL|RUN --out FOLDER",
                  "Writes a GPT as Hugging Face's transformers read it (GPT2LMHeadModel.from_pretrained(FOLDER)): "
                  "model.safetensors\nin f32, config.json and, for a tokenizer of kind gpt2, vocab.json and merges.txt. Of a "
                  "convolutional net the\nmodel.safetensors with the names of PyTorch's layers.");
  options.arguments(arguments, "MODEL|RUN", 1, 1);
  options.text("out", out, "FOLDER", "Folder for the files, made if it is not there; files of these names in it are replaced");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  if (out.empty()) fail(ErrorKind::usage, "--out: missing; expected the folder to write");
  session.on_root([&] {
    const fs::path model = find_model(arguments.front());
    const std::string kind = kind_of_model(model);
    if (kind != models::gpt_kind && kind != models::cnn_kind) {
      fail(ErrorKind::usage, "{}: a model of kind {}; only those of kinds {} and {} have a layout of other programs",
           model.string(), kind, models::cnn_kind, models::gpt_kind);
    }
    session.terminal.note(checkpoint_note(model));
    kind == models::gpt_kind ? export_gpt(session.terminal, model, out) : export_cnn(session.terminal, model, out);
  });
  return exit_done;
}

}  // namespace bitloom::cli
