#include "cli/export_binary.h"

#include <string>
#include <system_error>

#include "cli/run_folder.h"
#include "core/error.h"
#include "core/file.h"
#include "layerwise/model.h"
#include "models/binary/c_source.h"
#include "models/binary/onnx.h"

namespace bitloom::cli {
namespace {

// The names that the C of a file begins with: its own, as far as letters and digits go.
std::string identifier_of(const std::string& stem) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  std::string name = is_letter(stem[0]) ? "" : "net_";  // names that begin with '_' are the compiler's
  for (const char c : stem) name += is_letter(c) || (c >= '0' && c <= '9') ? c : '_';
  return name == "bitloom" ? "bitloom_net" : name;  // libbitloom has bitloom_scores()
}

}  // namespace

void export_c(Terminal& terminal, const ExportRequest& request) {
  std::error_code ignored;
  if (request.out.extension() != ".c" || request.out.stem().empty() || std::filesystem::is_directory(request.out, ignored)) {
    fail(ErrorKind::usage, "--out: {}; expected a file whose name ends in .c", request.out.string());
  }
  const std::string file = request.out.filename().string();
  if (file.find_first_of("\"\\\n") != std::string::npos) {
    fail(ErrorKind::usage, "--out: {}; expected a name that #include of C can have, without quotes and backslashes", file);
  }
  const layerwise::Model model = layerwise::Model::load(request.model);
  std::filesystem::path header = request.out;
  header.replace_extension(".h");
  if (std::filesystem::is_directory(header, ignored)) {
    fail(ErrorKind::usage, "--out: {}; {}, where its header is to be, is a folder", request.out.string(), header.string());
  }
  const std::string name = identifier_of(request.out.stem().string());
  const models::CSource source = models::c_source(model, request.views(model.net.views), name, header.filename().string());
  // The header last: a header without its source would be noticed later.
  write_atomically(request.out, source.source);
  write_atomically(header, source.header);
  terminal.print("{}, {}: {}_scores(), {:.1f} KiB of constants, {:.1f} KiB of working memory", request.out.string(),
                 header.filename().string(), name, static_cast<double>(source.constant_bytes) / 1024,
                 static_cast<double>(source.memory_bytes) / 1024);
  terminal.print("cc -O2 -march=native -DBITLOOM_MAIN {} -lm    makes a program that classifies {} images",
                 shell_word(request.out.string()), model.encoder.image_shape().channels == 1 ? "PGM" : "PPM");
}

namespace {

// says: the format. images: how many there may be.
void write_graph(Terminal& terminal, const ExportRequest& request, const char* says, const char* images,
                 std::string (*graph_of)(const layerwise::Model& model, const layerwise::Views& views)) {
  const layerwise::Model model = layerwise::Model::load(request.model);
  const layerwise::Views views = request.views(model.net.views);
  if (views.stop_early()) {
    terminal.note(
        fmt::format("a graph gives every image all {} views; `bitloom predict` stops at a probability of {}, and has "
                    "other scores then",
                    views.count(), views.sure));
  }
  const std::string file = graph_of(model, views);
  write_atomically(request.out, file);
  const data::ImageShape& shape = model.encoder.image_shape();
  terminal.print(
      "{}: {}, {} KiB. Input image, bytes ({}, {}, {}, {}); output scores, log-probabilities ({}, {}), the mean of {} votes",
      request.out.string(), says, file.size() / 1024, images, shape.channels, shape.height, shape.width, images,
      model.class_names.size(), views.count() * model.net.classifier.size());
}

}  // namespace

void export_onnx(Terminal& terminal, const ExportRequest& request) {
  write_graph(terminal, request, "ONNX", "N", &models::to_onnx);
}

void export_qonnx(Terminal& terminal, const ExportRequest& request) {
  write_graph(terminal, request, "QONNX", "1", &models::to_qonnx);
}

}  // namespace bitloom::cli
