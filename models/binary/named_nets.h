// The nets that have a name. Their descriptions, models/binary/nets/*.json, are compiled in.
#pragma once

#include <string>
#include <vector>

#include "layerwise/net.h"

namespace bitloom::models {

// In the order of their size.
std::vector<std::string> binary_net_names();

// The net of that name, or the one that a file (its name has a '/' or a '.') describes. Throws usage errors: an unknown name,
// with a suggestion; a file that cannot be read; a description that is wrong.
layerwise::NetSpec find_binary_net(const std::string& name_or_file);

}  // namespace bitloom::models
