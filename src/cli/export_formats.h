// Request to a format of `bitloom export`.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "cli/terminal.h"
#include "layerwise/net.h"

namespace bitloom::cli {

struct ExportRequest {
  std::filesystem::path model, out;
  // Given the views that a binary net is made for: those to average over.
  std::function<layerwise::Views(layerwise::Views)> views;
  std::string type;  // of a GPT's matrices, in GGUF and ONNX files
};

}  // namespace bitloom::cli
