// Checks that hold for every page of src/report.
#pragma once

#include <string>

#include "tests/report/xml.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

namespace bitloom::report {

// Well-formed, without scripts, and nothing loaded from elsewhere: images are in the page itself.
inline void require_self_contained(const std::string& page) {
  REQUIRE(xml_problem(page) == "");
  REQUIRE(!test::has(page, "<script"));
  REQUIRE(!test::has(page, "<link"));
  REQUIRE(count_of(page, "src=") == count_of(page, " src=\"data:image/png;base64,"));
  REQUIRE(count_of(page, "href=") == count_of(page, " href=\"data:image/png;base64,"));
  REQUIRE(!test::has(page, "url("));
  REQUIRE(!test::has(page, "@import"));
  // The names of XML's vocabularies are no addresses to load from.
  REQUIRE(count_of(page, "http") == count_of(page, "xmlns=\"http://www.w3.org/"));
}

// Whether one of the page's line charts has, under the pointer, this line below the first one, which names a place on the x
// axis.
inline bool shows_value(const std::string& page, const std::string& place, const std::string& line) {
  const std::string opening = "<title>" + place;
  for (std::size_t at = page.find(opening); at != std::string::npos; at = page.find(opening, at + 1)) {
    std::string words = page.substr(at + 7, page.find("</title>", at) - at - 7) + "\n";
    if ((words.starts_with(place + "\n") || words.starts_with(place + ",")) && test::has(words, "\n" + line + "\n"))
      return true;
  }
  return false;
}

}  // namespace bitloom::report
