// bitloom export --to onnx of GPTs.
#pragma once

#include "cli/export_formats.h"

namespace bitloom::cli {

// FILE: a GPT's model file or checkpoint as ONNX (models/gpt/onnx.h). Throws a usage error for a --type but f32 and f16.
void export_gpt_onnx(Terminal& terminal, const ExportRequest& request);

}  // namespace bitloom::cli
