// bitloom export --to gguf.
#pragma once

#include <string>
#include <vector>

#include "cli/export_formats.h"

namespace bitloom::cli {

// Values of --type.
std::vector<std::string> gguf_type_choices();

// FILE: a GPT's model file or checkpoint as GGUF.
void export_gguf(Terminal& terminal, const ExportRequest& request);

}  // namespace bitloom::cli
