// bitloom export: a model in the layout of other programs.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "cli/command.h"
#include "cli/export_binary.h"
#include "cli/export_gguf.h"
#include "cli/export_gpt_onnx.h"
#include "cli/image_evaluation.h"
#include "cli/make_folder.h"
#include "cli/model_source.h"
#include "cli/options.h"
#include "cli/staged_files.h"
#include "core/error.h"
#include "core/text.h"
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

void export_gpt(Terminal& terminal, const ExportRequest& request) {
  const fs::path& model = request.model;
  const fs::path& folder = request.out;
  nn::Engine engine;
  const models::LoadedGpt loaded = models::load_gpt(engine, model);
  const data::Tokenizer& tokenizer = *loaded.tokenizer;
  StagedFiles staged("--out", folder);
  models::save_hugging_face(engine, *loaded.net, staged.path(), tokenizer.end_of_text());
  const data::WrittenTokenizer written =
      data::write_hugging_face_tokenizer(tokenizer, loaded.net->config().context, staged.path());
  const std::vector<fs::path> others = data::other_tokenizer_files(written, folder);
  if (!others.empty() && !fs::exists(folder / "config.json")) {
    fail(ErrorKind::usage,
         "--out: {}; expected a folder without {}, which is of no model there and would be read as this one's", folder.string(),
         others.front().filename().string());
  }
  staged.move();
  for (const fs::path& other : others) {  // of the model that was there
    std::error_code error;
    fs::remove(other, error);
    if (error) fail(ErrorKind::io, "{}: cannot be removed: {}", other.string(), error.message());
  }
  if (!written.reason.empty()) terminal.print("no tokenizer.json, which could not say the tokenizer: {}", written.reason);
  terminal.print("{}: config.json, model.safetensors, {}", folder.string(), fmt::join(written.files, ", "));
}

// model.safetensors as PyTorch's modules have it.
void write_pytorch(Terminal& terminal, const TensorFile& file, const fs::path& folder) {
  make_folder("--out", folder);
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
  StagedFiles staged("--out", folder);
  published.encoder.save(staged.path() / models::encoder_file);
  published.decoder.save(staged.path() / models::decoder_file);
  staged.move();
  terminal.print("{}: {}, {}, with the names of openai/DALL-E's two modules", folder.string(), models::encoder_file,
                 models::decoder_file);
}

struct Format {
  const char* kind;
  const char* name;
  const char* ending;  // of the file; "" for a folder
  void (*write)(Terminal& terminal, const ExportRequest& request);
  std::array<const char*, 3> options = {};  // those of some formats alone that it has
};
// The first of a kind is what it is exported to unless --to or the ending of --out says otherwise.
constexpr Format formats[] = {{"binary", "c", ".c", &export_c, {"mirror", "shift", "sure"}},
                              {"binary", "onnx", ".onnx", &export_onnx, {"mirror", "shift"}},
                              {"binary", "qonnx", ".qonnx", &export_qonnx, {"mirror", "shift"}},
                              {models::clip_kind, "pytorch", "", &export_clip},
                              {models::cnn_kind, "pytorch", "", &export_cnn},
                              {models::dalle_kind, "pytorch", "", &export_dalle},
                              {models::dvae_kind, "openai", "", &export_dvae},
                              {models::gpt_kind, "transformers", "", &export_gpt},
                              {models::gpt_kind, "gguf", ".gguf", &export_gguf, {"type"}},
                              {models::gpt_kind, "onnx", ".onnx", &export_gpt_onnx, {"type"}}};

// Throws Error(usage) if a model of this kind has no format of this name; without one, the file's ending or the kind decides.
const Format& format_of(const std::string& kind, const std::string& name, const ExportRequest& request) {
  const std::string ending = lower_case(request.out.extension().string());
  const Format* chosen = nullptr;
  std::vector<std::string> names;
  std::vector<std::string> endings;
  for (const Format& each : formats) {
    if (each.kind != kind) continue;
    names.emplace_back(each.name);
    endings.emplace_back(each.ending);
    const bool fits = name.empty() ? chosen == nullptr || each.ending == ending : name == each.name;
    if (fits) chosen = &each;
  }
  if (chosen != nullptr && name.empty() && *chosen->ending != '\0' && chosen->ending != ending) {
    fail(ErrorKind::usage, "--out: {}; expected a file whose name ends in {}, or --to", request.out.string(),
         fmt::join(endings, " or "));
  }
  // A folder of such a name would be taken for a file.
  static const std::set<std::string> of_files{".bin", ".json", ".pt", ".pth", ".safetensors"};
  const bool is_of_file = of_files.contains(ending) ||
                          std::any_of(std::begin(formats), std::end(formats),
                                      [&](const Format& each) { return *each.ending != '\0' && each.ending == ending; });
  if (name.empty() && is_of_file && *chosen->ending == '\0') {
    fail(ErrorKind::usage, "--out: {}; a model of kind {} has no such file; expected a folder, or --to", request.out.string(),
         kind);
  }
  if (chosen == nullptr) {
    fail(ErrorKind::usage, "--to: '{}'; expected {}, to which a model of kind {} can be exported ({})", name,
         fmt::join(names, " or "), kind, request.model.string());
  }
  return *chosen;
}

}  // namespace

int export_model(Session& session, std::span<const std::string> args) {
  std::vector<std::string> arguments;
  std::string out;
  std::string to;
  std::string type = "f32";
  ViewOptions views;
  Options options(
      "bitloom export MODEL|RUN --out FILE|FOLDER [--to FORMAT]",
      "Writes a model for other programs.\n"
      "A binary net: c, FILE.c and FILE.h, C99 that needs nothing else and gives the scores of `bitloom predict` to the bit; "
      "onnx, FILE.onnx of standard operators, which computes with the same integers; or qonnx, FILE.qonnx for one image at a "
      "time, in which QONNX's operators BipolarQuant make the maps and weights of 1 and -1.\n"
      "A GPT: transformers, a folder as Hugging Face's library reads it (AutoModelForCausalLM and "
      "AutoTokenizer.from_pretrained(FOLDER)): model.safetensors, config.json, tokenizer.json and what else there is for its "
      "tokenizer (of kind gpt2 vocab.json and merges.txt, of kind sentencepiece tokenizer.model); gguf, FILE.gguf as "
      "llama.cpp reads it, of the architecture gpt2 with the tokenizer in it; or onnx, FILE.onnx of standard operators, with "
      "the cache of keys and values among its inputs and outputs and tokenizer.json in its metadata.\n"
      "A discrete VAE: openai, a folder as openai/DALL-E's modules have theirs: encoder.safetensors and decoder.safetensors.\n"
      "A convolutional net, a text-to-image transformer or a contrastive model: pytorch, a folder with the model.safetensors "
      "of PyTorch's layers (see scripts/torch_cnn.py, scripts/torch_text_to_image.py).");
  options.arguments(arguments, "MODEL|RUN", 1, 1);
  options.text("to", to, "FORMAT",
               "One of those named above; default: what the ending of --out says, or the first of the kind");
  options.text("out", out, "PATH",
               "The file, or the folder for the files, made if it is not there; files of these names are replaced");
  options.choice("type", type, gguf_type_choices(),
                 "Numbers of a GPT's matrices in a GGUF or ONNX file. q8_0, of GGUF files alone: 8 bits each and a scale for "
                 "every 32 of a row; a matrix whose rows are no multiple of 32 stays in f16. Norms, biases and positions are "
                 "in f32, and so is all that ONNX computes");
  options.group("Binary nets");
  views.declare(options, true);
  if (!parse_or_show_help(session, args, options)) return exit_done;
  if (out.empty()) fail(ErrorKind::usage, "--out: missing; expected the file or folder to write");
  session.on_root([&] {
    const ExportRequest request = {find_model(arguments.front()), out,
                                   [&](const layerwise::Views& own) { return views.over(own, options); }, type};
    const Format& format = format_of(kind_of_model(request.model), to, request);
    for (const char* name : {"mirror", "shift", "sure", "type"}) {
      const bool has = std::any_of(format.options.begin(), format.options.end(),
                                   [&](const char* own) { return own != nullptr && std::string_view(own) == name; });
      if (!has && options.is_asked_for(name))
        fail(ErrorKind::usage, "--{}: {} has no effect on the format '{}'", name, options.raw(name), format.name);
    }
    if (*format.ending == '\0') {
      require_other_folder("--out", request.out, request.model);
    } else {
      require_other_output("--out", request.out, request.model);
    }
    session.terminal.note(checkpoint_note(request.model));
    format.write(session.terminal, request);
  });
  return exit_done;
}

}  // namespace bitloom::cli
