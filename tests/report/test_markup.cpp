#include "report/markup.h"
#include "tests/support/catch.h"

using namespace bitloom::report;

TEST_CASE("escape leaves no markup and no broken characters") {
  CHECK(escape("a<b>&\"'") == "a&lt;b&gt;&amp;&quot;&#39;");
  CHECK(escape("Zürich 猫 😀\n") == "Zürich 猫 😀\n");
  const std::string bad = "\xEF\xBF\xBD";
  CHECK(escape(std::string("a\0b", 3)) == "a" + bad + "b");
  CHECK(escape("\x1B[31m") == bad + "[31m");
  CHECK(escape("\xFF") == bad);
  CHECK(escape("\xC3") == bad);                                // cut off
  CHECK(escape("\xC0\xBC") == bad + bad);                      // "<" in two bytes
  CHECK(escape("\xE0\x80\xBC") == bad + bad + bad);            // "<" in three bytes
  CHECK(escape("\xED\xA0\x80") == bad + bad + bad);            // a surrogate
  CHECK(escape("\xEF\xBF\xBE") == bad + bad + bad);            // U+FFFE
  CHECK(escape("\xF4\x90\x80\x80") == bad + bad + bad + bad);  // beyond U+10FFFF
  CHECK(escape("\xE7\x8C<") == bad + bad + "&lt;");            // the cut character does not swallow what follows
}

TEST_CASE("shorten counts characters, not bytes") {
  CHECK(shorten("layer1", 6) == "layer1");
  CHECK(shorten("layer12", 6) == "layer…");
  CHECK(shorten("üüüü", 4) == "üüüü");
  CHECK(shorten("üüüüü", 4) == "üüü…");
  CHECK(shorten("ab", 1) == "…");
  CHECK(shorten_middle("run-1", 5) == "run-1");
  CHECK(shorten_middle("a-run-number-1", 6) == "a-…r-1");
  CHECK(shorten_middle("a-run-number-12", 7) == "a-r…-12");
  CHECK(shorten_middle("üüüüüäöü", 6) == "üü…äöü");
  CHECK(shorten_middle("abc", 1) == "…");
  CHECK(count_characters("a猫😀") == 3);
  CHECK(text_width("wider", 12) > text_width("wide", 12));
}
