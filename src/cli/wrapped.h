// Text in lines that fit the screen.
#pragma once

#include <cstddef>
#include <string>

namespace bitloom::cli {

// `text` in lines of at most `columns`, broken between words, all but the first behind `indent` spaces; empty lines stay. The
// first begins in column `indent`. A word that is longer has a line of its own.
std::string wrapped(const std::string& text, std::size_t columns, std::size_t indent);

// Columns of the screen that shows the results, at most those of help that goes elsewhere, 100.
std::size_t columns_of_help();

}  // namespace bitloom::cli
