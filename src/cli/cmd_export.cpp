// bitloom export: a model in the layout of other programs.
#include <fmt/ranges.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/export_binary.h"
#include "cli/image_evaluation.h"
#include "cli/model_source.h"
#include "cli/options.h"
#include "core/error.h"
#include "data/text/gpt2_files.h"
#include "models/clip/model_file.h"
#include "models/cnn/model_file.h"
#include "models/dalle/model_file.h"
#include "models/dvae/published.h"
#include "models/gpt/hugging_face.h"
#include "models/gpt/model_file.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

void export_gpt(Terminal& terminal, const ExportRequest& request) {
  const fs::path& model = request.model;
  const fs::path& folder = request.out;
  nn::Engine engine;
  const models::LoadedGpt loaded = models::load_gpt(engine, model);
  make_export_folder(folder);
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

// model.safetensors as PyTorch's modules have it.
void write_pytorch(Terminal& terminal, const TensorFile& file, const fs::path& folder) {
  make_export_folder(folder);
  file.save(folder / model_file);
  terminal.print("{}: model.safetensors, with the names of PyTorch's layers; its metadata describe the net", folder.string());
}

void export_cnn(Terminal& terminal, const ExportRequest& request) {
  const fs::path& model = request.model;
  const fs::path& folder = request.out;
  const TensorFile file = TensorFile::load(model, Checksum::required);
  (void)models::cnn_description_of(file, model.string());
  write_pytorch(terminal, models::to_pytorch_names(file), folder);
}

void export_dalle(Terminal& terminal, const ExportRequest& request) {
  const fs::path& model = request.model;
  const fs::path& folder = request.out;
  nn::Engine engine;
  write_pytorch(terminal, models::to_pytorch(engine, models::load_dalle(engine, model)), folder);
}

void export_clip(Terminal& terminal, const ExportRequest& request) {
  const fs::path& model = request.model;
  const fs::path& folder = request.out;
  nn::Engine engine;
  write_pytorch(terminal, models::to_pytorch(engine, models::load_clip(engine, model)), folder);
}

void export_dvae(Terminal& terminal, const ExportRequest& request) {
  const fs::path& model = request.model;
  const fs::path& folder = request.out;
  nn::Engine engine;
  const models::LoadedDvae loaded = models::load_dvae(engine, model);
  const models::PublishedDvae published = models::to_published(engine, *loaded.net, loaded.description);
  make_export_folder(folder);
  published.encoder.save(folder / models::encoder_file);
  published.decoder.save(folder / models::decoder_file);
  terminal.print("{}: {}, {}, with the names of openai/DALL-E's two modules", folder.string(), models::encoder_file,
                 models::decoder_file);
}

struct Format {
  const char* kind;
  const char* name;
  const char* ending;  // of the file; "" for a folder
  void (*write)(Terminal& terminal, const ExportRequest& request);
  bool has_views = false;  // averages over views of an image
};
// The first of a kind is what it is exported to unless --to or the ending of --out says otherwise.
constexpr Format formats[] = {{"binary", "c", ".c", &export_c, true},
                              {"binary", "onnx", ".onnx", &export_onnx, true},
                              {models::clip_kind, "pytorch", "", &export_clip},
                              {models::cnn_kind, "pytorch", "", &export_cnn},
                              {models::dalle_kind, "pytorch", "", &export_dalle},
                              {models::dvae_kind, "openai", "", &export_dvae},
                              {models::gpt_kind, "transformers", "", &export_gpt}};

// Throws Error(usage) if a model of this kind has no format of this name; without one, the file's ending or the kind decides.
const Format& format_of(const std::string& kind, const std::string& name, const ExportRequest& request) {
  const Format* chosen = nullptr;
  std::vector<std::string> names;
  std::vector<std::string> endings;
  for (const Format& each : formats) {
    if (each.kind != kind) continue;
    names.emplace_back(each.name);
    endings.emplace_back(each.ending);
    const bool fits = name.empty() ? chosen == nullptr || each.ending == request.out.extension() : name == each.name;
    if (fits) chosen = &each;
  }
  if (chosen != nullptr && name.empty() && *chosen->ending != '\0' && chosen->ending != request.out.extension()) {
    fail(ErrorKind::usage, "--out: {}; expected a file whose name ends in {}, or --to", request.out.string(),
         fmt::join(endings, " or "));
  }
  if (chosen == nullptr) {
    fail(ErrorKind::usage, "--to: '{}'; expected {}, to which a model of kind {} can be exported ({})", name,
         fmt::join(names, " or "), kind, request.model.string());
  }
  return *chosen;
}

}  // namespace

void make_export_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorKind::io, "--out: {}: {}", folder.string(), error.message());
}

int export_model(Session& session, std::span<const std::string> args) {
  std::vector<std::string> arguments;
  std::string out;
  std::string to;
  ViewOptions views;
  Options options(
      "bitloom export MODEL|RUN --out FILE|FOLDER [--to FORMAT]",
      "Writes a model for other programs. A binary net: c, FILE.c and FILE.h, C99 that needs nothing else and gives the "
      "scores\n"
      "of `bitloom predict` to the bit; or onnx, FILE.onnx of standard operators, which computes with the same integers. The "
      "others in f32. A GPT: transformers, a folder as Hugging Face's library reads it "
      "(GPT2LMHeadModel.from_pretrained(FOLDER)): model.safetensors, config.json and, for a tokenizer of kind gpt2, "
      "vocab.json and merges.txt. A discrete VAE: openai, as openai/DALL-E's modules have theirs: encoder.safetensors and "
      "decoder.safetensors. A convolutional net, a text-to-image transformer or a contrastive model: pytorch, the "
      "model.safetensors with the names of PyTorch's layers (see scripts/torch_cnn.py, "
      "scripts/torch_text_to_image.py).");
  options.arguments(arguments, "MODEL|RUN", 1, 1);
  options.text("to", to, "FORMAT",
               "One of those named above; default: what the ending of --out says, or the first of the kind");
  options.text("out", out, "PATH",
               "The file, or the folder for the files, made if it is not there; files of these names are replaced");
  options.group("Binary nets");
  views.declare(options);
  if (!parse_or_show_help(session, args, options)) return exit_done;
  if (out.empty()) fail(ErrorKind::usage, "--out: missing; expected the file or folder to write");
  session.on_root([&] {
    const ExportRequest request = {find_model(arguments.front()), out,
                                   [&](const layerwise::Views& own) { return views.over(own, options); }};
    const Format& format = format_of(kind_of_model(request.model), to, request);
    for (const char* name : {"mirror", "shift"}) {
      if (!format.has_views && options.is_asked_for(name)) {
        fail(ErrorKind::usage, "--{}: has no effect on the format '{}', which leaves views of an image to its reader", name,
             format.name);
      }
    }
    session.terminal.note(checkpoint_note(request.model));
    format.write(session.terminal, request);
  });
  return exit_done;
}

}  // namespace bitloom::cli
