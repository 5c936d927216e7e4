// The descriptions of named nets that are compiled in, how a net is found by its name or in a file; and the texts that binary
// nets are exported to C with.
#pragma once

#include <span>
#include <string>

namespace bitloom::models {

struct NetText {
  const char* name;
  const char* text;
};
// In the order of their size. Written by CMake from models/*/nets/*.json.
std::span<const NetText> binary_net_texts();
std::span<const NetText> cnn_texts();

// Where a name stands between two '@', what it stands for is filled in.
struct CTexts {
  const char *header, *source;
};
CTexts c_net_texts();

// A description and how messages call its source.
struct NetSource {
  std::string text, name;
};
// That of a name in the table, or of a file (its name has a '/' or a '.'). Throws usage errors: an unknown name, with a
// suggestion; a file that cannot be read.
NetSource find_net_text(const std::string& name_or_file, std::span<const NetText> table);

}  // namespace bitloom::models
