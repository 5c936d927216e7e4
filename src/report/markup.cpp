#include "report/markup.h"

#include <algorithm>
#include <cstdint>

#include "core/text.h"

namespace bitloom::report {

namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";  // U+FFFD

bool continues(unsigned char byte) { return (byte & 0xC0U) == 0x80U; }

// The length in bytes of the character at the start of `text`, 0 when it is not valid UTF-8, or a control character or another
// one that XML forbids (XML 1.0, production 2).
std::size_t shown_length(std::string_view text) {
  const std::size_t length = character_length(text);
  const auto first = static_cast<unsigned char>(text.front());
  if (length == 1) return (first >= 0x20 && first != 0x7F) || first == '\t' || first == '\n' || first == '\r' ? 1 : 0;
  const bool is_control = first == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0;
  const bool is_no_character = text.starts_with("\xEF\xBF\xBE") || text.starts_with("\xEF\xBF\xBF");
  return is_control || is_no_character ? 0 : length;
}

}  // namespace

std::string escape(std::string_view text) {
  std::string result;
  result.reserve(text.size() + text.size() / 8);
  while (!text.empty()) {
    const std::size_t length = shown_length(text);
    if (length == 0) {
      result += replacement;
      text.remove_prefix(1);
      continue;
    }
    switch (text[0]) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      case '\'': result += "&#39;"; break;
      default: result += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return result;
}

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !continues(static_cast<unsigned char>(c)); }));
}

std::string shorten(std::string_view text, std::size_t limit) {
  if (count_characters(text) <= limit) return std::string(text);
  std::size_t end = 0;
  for (std::size_t kept = 0; end < text.size(); ++end) {
    if (continues(static_cast<unsigned char>(text[end]))) continue;
    if (kept + 1 == limit) break;
    ++kept;
  }
  return std::string(text.substr(0, end)) + "…";
}

std::string shorten_middle(std::string_view text, std::size_t limit) {
  const std::size_t length = count_characters(text);
  if (length <= limit || limit < 2) return shorten(text, limit);
  std::size_t begin = text.size();
  for (std::size_t kept = 0; kept < limit / 2; --begin)
    kept += continues(static_cast<unsigned char>(text[begin - 1])) ? 0U : 1U;
  return shorten(text, limit - limit / 2) + std::string(text.substr(begin));
}

double text_width(std::string_view text, double font_size) {
  return 0.58 * font_size * static_cast<double>(count_characters(text));
}

}  // namespace bitloom::report
