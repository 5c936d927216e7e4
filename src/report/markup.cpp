#include "report/markup.h"

#include <algorithm>
#include <cstdint>

namespace bitloom::report {

namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";  // U+FFFD

bool continues(unsigned char byte) { return (byte & 0xC0U) == 0x80U; }

// The length in bytes of the character at the start of `text`, 0 when it is not valid UTF-8 or XML forbids it.
// Source: RFC 3629; XML 1.0, production 2 (Char).
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 || first == '\t' || first == '\n' || first == '\r' ? (first == 0x7F ? 0 : 1) : 0;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  std::uint32_t point = first & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if (!continues(byte(i))) return 0;
    point = (point << 6) | (byte(i) & 0x3FU);
  }
  const bool overlong = (length == 3 && point < 0x800) || (length == 4 && point < 0x10000);
  const bool forbidden = point < 0xA0 || (point >= 0xD800 && point <= 0xDFFF) || point == 0xFFFE || point == 0xFFFF;
  return overlong || forbidden || point > 0x10FFFF ? 0 : length;
}

}  // namespace

std::string escape(std::string_view text) {
  std::string result;
  result.reserve(text.size() + text.size() / 8);
  while (!text.empty()) {
    const std::size_t length = character_length(text);
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
