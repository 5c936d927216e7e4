// A check that markup is well-formed XML: what the report promises, and what SVG inside it needs. By Expat: pugixml reads what
// is not well-formed, an attribute twice say, without a complaint.
#pragma once

#include <expat.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

namespace bitloom::report {

// The first thing wrong with `text`, or "" when it is well-formed.
inline std::string xml_problem(std::string_view text) {
  const std::unique_ptr<XML_ParserStruct, decltype(&XML_ParserFree)> parser(XML_ParserCreate("UTF-8"), XML_ParserFree);
  if (XML_Parse(parser.get(), text.data(), static_cast<int>(text.size()), XML_TRUE) == XML_STATUS_OK) return "";
  const XML_Index place = std::max<XML_Index>(XML_GetCurrentByteIndex(parser.get()), 0);  // -1: there is no text
  return std::string(XML_ErrorString(XML_GetErrorCode(parser.get()))) +
         " near: " + std::string(text.substr(static_cast<std::size_t>(place), 80));
}

inline std::size_t count_of(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace bitloom::report
