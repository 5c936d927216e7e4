// bitloom export: a model in the layout of other programs.
#include <fmt/ranges.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/export_gguf.h"
#include "cli/model_source.h"
#include "cli/options.h"
#include "core/error.h"
#include "data/text/hugging_face_tokenizer.h"
#include "models/clip/model_file.h"
#include "models/cnn/model_file.h"
#include "models/dalle/model_file.h"
#include "models/dvae/published.h"
#include "models/gpt/hugging_face.h"
#include "models/gpt/model_file.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorKind::io, "--out: {}: {}", folder.string(), error.message());
}

void export_gpt(Terminal& terminal, const fs::path& model, const fs::path& folder) {
  nn::Engine engine;
  const models::LoadedGpt loaded = models::load_gpt(engine, model);
  make_folder(folder);
  const data::Tokenizer& tokenizer = *loaded.tokenizer;
  models::save_hugging_face(engine, *loaded.net, folder, tokenizer.end_of_text());
  const data::WrittenTokenizer written = data::write_hugging_face_tokenizer(tokenizer, loaded.net->config().context, folder);
  if (!written.reason.empty()) terminal.print("no tokenizer.json, which could not say the tokenizer: {}", written.reason);
  terminal.print("{}: config.json, model.safetensors, {}", folder.string(), fmt::join(written.files, ", "));
}

// model.safetensors as PyTorch's modules have it.
void write_pytorch(Terminal& terminal, const TensorFile& file, const fs::path& folder) {
  make_folder(folder);
  file.save(folder / model_file);
  terminal.print("{}: model.safetensors, with the names of PyTorch's layers; its metadata describe the net", folder.string());
}

void export_cnn(Terminal& terminal, const fs::path& model, const fs::path& folder) {
  const TensorFile file = TensorFile::load(model, Checksum::required);
  (void)models::cnn_description_of(file, model.string());
  write_pytorch(terminal, models::to_pytorch_names(file), folder);
}

void export_dalle(Terminal& terminal, const fs::path& model, const fs::path& folder) {
  nn::Engine engine;
  write_pytorch(terminal, models::to_pytorch(engine, models::load_dalle(engine, model)), folder);
}

void export_clip(Terminal& terminal, const fs::path& model, const fs::path& folder) {
  nn::Engine engine;
  write_pytorch(terminal, models::to_pytorch(engine, models::load_clip(engine, model)), folder);
}

void export_dvae(Terminal& terminal, const fs::path& model, const fs::path& folder) {
  nn::Engine engine;
  const models::LoadedDvae loaded = models::load_dvae(engine, model);
  const models::PublishedDvae published = models::to_published(engine, *loaded.net, loaded.description);
  make_folder(folder);
  published.encoder.save(folder / models::encoder_file);
  published.decoder.save(folder / models::decoder_file);
  terminal.print("{}: {}, {}, with the names of openai/DALL-E's two modules", folder.string(), models::encoder_file,
                 models::decoder_file);
}

struct Format {
  const char* kind;
  const char* name;
  void (*write)(Terminal& terminal, const fs::path& model, const fs::path& out);
  // Instead of it, where --type has a choice.
  void (*write_as)(Terminal& terminal, const fs::path& model, const fs::path& out, const std::string& type) = nullptr;
};
// The first of a kind is what it is exported to unless --to names another.
constexpr Format formats[] = {
    {models::clip_kind, "pytorch", &export_clip},    {models::cnn_kind, "pytorch", &export_cnn},
    {models::dalle_kind, "pytorch", &export_dalle},  {models::dvae_kind, "openai", &export_dvae},
    {models::gpt_kind, "transformers", &export_gpt}, {models::gpt_kind, "gguf", nullptr, &export_gguf}};

// Throws Error(usage) for a kind that no other program has, or not in the format `name`; empty: the kind's first.
const Format& format_of(const std::string& kind, const std::string& name, const fs::path& model) {
  std::vector<std::string> kinds;
  std::vector<std::string> names;
  for (const Format& each : formats) {
    if (each.kind != kind) {
      if (kinds.empty() || kinds.back() != each.kind) kinds.emplace_back(each.kind);
      continue;
    }
    if (name.empty() || each.name == name) return each;
    names.emplace_back(each.name);
  }
  if (!names.empty()) {
    fail(ErrorKind::usage, "--to: '{}'; a model of kind {} ({}) can be exported to {}", name, kind, model.string(),
         fmt::join(names, ", "));
  }
  fail(ErrorKind::usage, "{}: a model of kind {}; only those of kinds {} have a layout of other programs", model.string(), kind,
       fmt::join(kinds, ", "));
}

}  // namespace

int export_model(Session& session, std::span<const std::string> args) {
  std::vector<std::string> arguments;
  std::string out;
  std::string to;
  std::string type = "f32";
  static const std::vector<Options::Need> needs{{"type", "to", {"gguf"}}};
  Options options(
      "bitloom export MODEL|RUN --out FOLDER|FILE [--to FORMAT]",
      "Writes a model in the layout of other programs, in f32 without --type. A GPT as Hugging Face's transformers read it\n"
      "(AutoModelForCausalLM and AutoTokenizer.from_pretrained(FOLDER)): model.safetensors, config.json, tokenizer.json "
      "and what else there is for its tokenizer (of kind gpt2 vocab.json and merges.txt, of kind sentencepiece "
      "tokenizer.model); with --to gguf as llama.cpp reads it: one file of the architecture gpt2 with the tokenizer in it. "
      "A discrete VAE as openai/DALL-E's modules have theirs: encoder.safetensors and "
      "decoder.safetensors. Of a convolutional net, a text-to-image transformer or a contrastive model the "
      "model.safetensors with the names of PyTorch's layers (see scripts/torch_cnn.py, "
      "scripts/torch_text_to_image.py).");
  options.arguments(arguments, "MODEL|RUN", 1, 1);
  options.text("to", to, "FORMAT", "The format, where a kind of model has several; default: the first that is named above");
  options.text("out", out, "FOLDER|FILE",
               "Folder for the files, made if it is not there; files of these names in it are replaced; "
               "with --to gguf the file");
  options.choice("type", type, gguf_type_choices(),
                 "Numbers of matrices in a GGUF file. q8_0: 8 bits each and a scale for every 32 of a row; a matrix whose rows "
                 "are no multiple of 32 stays in f16. Norms, biases and positions are in f32");
  options.needs(needs);
  if (!parse_or_show_help(session, args, options)) return exit_done;
  if (out.empty()) fail(ErrorKind::usage, "--out: missing; expected the folder or file to write");
  session.on_root([&] {
    const fs::path model = find_model(arguments.front());
    const Format& format = format_of(kind_of_model(model), to, model);
    session.terminal.note(checkpoint_note(model));
    if (format.write_as != nullptr) return format.write_as(session.terminal, model, out, type);
    format.write(session.terminal, model, out);
  });
  return exit_done;
}

}  // namespace bitloom::cli
