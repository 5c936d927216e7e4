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

}  // namespace bitloom::report
