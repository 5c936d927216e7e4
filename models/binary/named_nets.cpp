#include "models/binary/named_nets.h"

#include "models/net_texts.h"

namespace bitloom::models {

std::vector<std::string> binary_net_names() {
  std::vector<std::string> names;
  for (const NetText& net : binary_net_texts()) names.emplace_back(net.name);
  return names;
}

layerwise::NetSpec find_binary_net(const std::string& name_or_file) {
  const NetSource found = find_net_text(name_or_file, binary_net_texts());
  return layerwise::parse_net(found.text, found.name);
}

}  // namespace bitloom::models
