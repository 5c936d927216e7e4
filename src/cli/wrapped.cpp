#include "cli/wrapped.h"

#include <algorithm>
#include <sstream>

#include "cli/terminal.h"

namespace bitloom::cli {

std::string wrapped(const std::string& text, std::size_t columns, std::size_t indent) {
  std::string lines;
  std::size_t column = indent;
  std::istringstream paragraphs(text);
  for (std::string line; std::getline(paragraphs, line);) {
    if (line.empty()) {
      lines += "\n\n";
      column = columns;
      continue;
    }
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      const bool is_first = lines.empty() || lines.ends_with('\n');
      if (!is_first && column + 1 + word.size() > columns) {
        lines += "\n" + std::string(indent, ' ');
        column = indent;
      } else if (!is_first) {
        lines += ' ';
        ++column;
      }
      lines += word;
      column += word.size();
    }
  }
  return lines;
}

std::size_t columns_of_help() {
  constexpr std::size_t most = 100;
  return std::clamp<std::size_t>(columns_of_screen(most), 40, most);
}

}  // namespace bitloom::cli
