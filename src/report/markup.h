// Text from files on its way into HTML and SVG.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace bitloom::report {

// `text` as it may stand in XML and HTML text and in quoted attributes: & < > " ' become references; bytes that are not UTF-8
// and characters that XML forbids (controls, surrogates, U+FFFE and U+FFFF) become U+FFFD.
std::string escape(std::string_view text);

// Characters (code points) of UTF-8 text.
std::size_t count_characters(std::string_view text);

// At most `limit` characters; a longer text ends with an ellipsis.
std::string shorten(std::string_view text, std::size_t limit);

// The same with the ellipsis in the middle: where the ends of names tell them apart.
std::string shorten_middle(std::string_view text, std::size_t limit);

// An upper estimate of the width of a line of sans-serif text, in the unit of `font_size`.
double text_width(std::string_view text, double font_size);

}  // namespace bitloom::report
