#include "cli/export_gguf.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "cli/model_source.h"
#include "core/error.h"
#include "core/text.h"
#include "models/gpt/gguf.h"
#include "models/gpt/model_file.h"

namespace bitloom::cli {
namespace {

GgufType gguf_type_of(const std::string& name) {
  const auto found = std::ranges::find(gguf_types(), name, &gguf_type_name);
  if (found == gguf_types().end()) fail(ErrorKind::internal, "there is no GGUF type '{}'", name);
  return *found;
}

// Name of the run's folder, or of the model's file: what a user knows it by.
std::string name_of(const std::filesystem::path& model) {
  const std::filesystem::path full = std::filesystem::absolute(model).lexically_normal();
  const bool is_of_run = full.filename() == model_file || full.filename().string().starts_with("checkpoint");
  return printable((is_of_run ? full.parent_path().filename() : full.stem()).string());
}

}  // namespace

std::vector<std::string> gguf_type_choices() {
  std::vector<std::string> names;
  for (const GgufType type : gguf_types()) names.emplace_back(gguf_type_name(type));
  return names;
}

void export_gguf(Terminal& terminal, const ExportRequest& request) {
  nn::Engine engine;
  const models::LoadedGpt loaded = models::load_gpt(engine, request.model);
  const models::GgufSummary summary = models::save_gguf(engine, *loaded.net, *loaded.tokenizer, gguf_type_of(request.type),
                                                        name_of(request.model), request.out);
  terminal.print("{}: {} tensors, matrices in {}, and the tokenizer", request.out.string(), summary.tensors, request.type);
  if (summary.in_f16.empty()) return;
  terminal.print("{} matrices are in f16, since their rows are no multiple of {} numbers: {}", summary.in_f16.size(),
                 q8_0_block, fmt::join(summary.in_f16, ", "));
}

}  // namespace bitloom::cli
