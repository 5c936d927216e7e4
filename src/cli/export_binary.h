// Files that `bitloom export` writes of binary nets.
#pragma once

#include "cli/export_formats.h"

namespace bitloom::cli {

// FILE.c and FILE.h: the net as C99 that needs nothing else. Throws usage errors: FILE does not end in .c, or is a folder.
void export_c(Terminal& terminal, const ExportRequest& request);

// FILE: the net as ONNX or QONNX (models/binary/onnx.h).
void export_onnx(Terminal& terminal, const ExportRequest& request);
void export_qonnx(Terminal& terminal, const ExportRequest& request);

}  // namespace bitloom::cli
