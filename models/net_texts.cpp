#include "models/net_texts.h"

#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/suggest.h"

namespace bitloom::models {

NetSource find_net_text(const std::string& name_or_file, std::span<const NetText> table) {
  std::vector<std::string> names;
  for (const NetText& net : table) {
    if (name_or_file == net.name) return {net.text, fmt::format("net '{}'", net.name)};
    names.emplace_back(net.name);
  }
  if (name_or_file.find_first_of("/.") == std::string::npos) {
    fail(ErrorKind::usage, "unknown net '{}'{}; a file's name needs a '/' or a '.'", name_or_file,
         did_you_mean(name_or_file, names));
  }
  try {
    return {read_text(name_or_file), name_or_file};
  } catch (const Error& error) {
    fail(ErrorKind::usage, "net file {}", error.what());
  }
}

}  // namespace bitloom::models
