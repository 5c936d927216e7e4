// `bitloom export --to onnx`.
#pragma once

#include <filesystem>

#include "cli/terminal.h"
#include "layerwise/model.h"

namespace bitloom::cli {

// Writes a binary net that looks at images in these views (models/binary/onnx.h) to the file `out`. Throws Error(usage) that
// names an option, Error(data) for a net that it cannot write, Error(io).
void export_onnx(Terminal& terminal, const layerwise::Model& model, const layerwise::Views& views,
                 const std::filesystem::path& out);

}  // namespace bitloom::cli
