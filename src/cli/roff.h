// Pages of `man`, in roff (man 7 groff_man).
#pragma once

#include <string>

namespace bitloom::cli {

// Text in which nothing is an instruction: backslashes and hyphens escaped, no line that begins with '.' or an apostrophe;
// lines stay lines, empty lines begin paragraphs.
std::string roff(const std::string& text);

// The first line of a page of section 1.
std::string roff_title(const std::string& page);

}  // namespace bitloom::cli
