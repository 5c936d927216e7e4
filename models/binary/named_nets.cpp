#include "models/binary/named_nets.h"

#include "core/error.h"
#include "core/file.h"
#include "core/suggest.h"
#include "models/binary/net_texts.h"

namespace bitloom::models {

std::vector<std::string> binary_net_names() {
  std::vector<std::string> names;
  for (const NetText& net : binary_net_texts()) names.emplace_back(net.name);
  return names;
}

layerwise::NetSpec find_binary_net(const std::string& name_or_file) {
  for (const NetText& net : binary_net_texts()) {
    if (name_or_file == net.name) return layerwise::parse_net(net.text, fmt::format("net '{}'", net.name));
  }
  if (name_or_file.find_first_of("/.") == std::string::npos) {
    fail(ErrorKind::usage, "unknown net '{}'{}; a file's name needs a '/' or a '.'", name_or_file,
         did_you_mean(name_or_file, binary_net_names()));
  }
  std::string text;
  try {
    text = read_text(name_or_file);
  } catch (const Error& error) {
    fail(ErrorKind::usage, "net file {}", error.what());
  }
  return layerwise::parse_net(text, name_or_file);
}

}  // namespace bitloom::models
