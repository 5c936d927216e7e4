#include "cli/roff.h"

#include <fmt/format.h>

#include "core/version.h"

namespace bitloom::cli {

std::string roff(const std::string& text) {
  std::string result;
  bool at_start = true;
  for (const char c : text) {
    if (at_start && c == '\n') {
      result += ".PP";
    } else if (at_start && (c == '.' || c == '\'')) {
      result += "\\&";
    }
    if (!at_start && c == '\n') {  // a line of its own, as on the screen
      result += "\n.br";
    }
    at_start = c == '\n';
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
  }
  return result;
}

std::string roff_title(const std::string& page) {
  std::string name;
  for (const char c : page) name += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return fmt::format(".TH {} 1 \"\" \"Bitloom {}\" \"Bitloom\"\n", name, version);
}

}  // namespace bitloom::cli
