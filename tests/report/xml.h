// A small check that markup is well-formed XML: what the report promises, and what SVG inside it needs.
#pragma once

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace bitloom::report {

// The first thing wrong with `text`, or "" when it is well-formed: one root element, tags that match, attributes quoted and
// unique, no "<" or bare "&" in text. Knows what the report uses: elements, text, references and one leading <!DOCTYPE>.
inline std::string xml_problem(std::string_view text) {
  const std::string_view doctype = "<!DOCTYPE html>";
  if (text.substr(0, doctype.size()) == doctype) text.remove_prefix(doctype.size());
  std::vector<std::string> open;
  std::size_t roots = 0, i = 0;
  const auto near = [&](const std::string& what) {
    return what + " near: " + std::string(text.substr(std::min(i, text.size()), 80));
  };
  const auto is_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == ':' || c == '_'; };
  const auto name = [&] {
    const std::size_t from = i;
    while (i < text.size() && is_name(text[i])) ++i;
    return std::string(text.substr(from, i - from));
  };
  // The length of a reference at i, 0 when there is none.
  const auto reference = [&]() -> std::size_t {
    for (const std::string_view known : {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"}) {
      if (text.substr(i, known.size()) == known) return known.size();
    }
    return 0;
  };
  while (i < text.size()) {
    if (static_cast<unsigned char>(text[i]) < 0x20 && !std::isspace(static_cast<unsigned char>(text[i]))) {
      return near("control character");
    }
    if (text[i] == '&') {
      if (reference() == 0) return near("bare &");
      i += reference();
    } else if (text[i] != '<') {
      if (open.empty() && !std::isspace(static_cast<unsigned char>(text[i]))) return near("text outside of the root");
      ++i;
    } else if (text.substr(i, 2) == "</") {
      i += 2;
      const std::string closed = name();
      if (open.empty() || open.back() != closed) return near("</" + closed + "> does not match");
      if (i >= text.size() || text[i] != '>') return near("closing tag without >");
      ++i;
      open.pop_back();
    } else {
      ++i;
      const std::string element = name();
      if (element.empty()) return near("< that begins no tag");
      if (open.empty() && ++roots > 1) return near("second root");
      std::set<std::string> attributes;
      for (;;) {
        const std::size_t before = i;
        while (i < text.size() && std::isspace(static_cast<unsigned char>(text[i]))) ++i;
        if (i >= text.size()) return near("tag without end");
        if (text[i] == '>' || text[i] == '/') break;
        if (before == i) return near("attributes without a space between");
        const std::string attribute = name();
        if (attribute.empty() || !attributes.insert(attribute).second) return near("attribute " + attribute);
        if (text.substr(i, 2) != "=\"") return near("attribute without a quoted value");
        for (i += 2; i < text.size() && text[i] != '"';) {
          if (text[i] == '<') return near("< in an attribute");
          if (text[i] == '&' && reference() == 0) return near("bare & in an attribute");
          i += text[i] == '&' ? reference() : 1;
        }
        if (i++ >= text.size()) return near("value without end");
      }
      if (text[i] == '/') {
        if (text.substr(i, 2) != "/>") return near("/ in a tag");
        i += 2;
      } else {
        ++i;
        open.push_back(element);
      }
    }
  }
  if (!open.empty()) return "<" + open.back() + "> is not closed";
  return roots == 1 ? "" : "no root";
}

inline std::size_t count_of(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace bitloom::report
