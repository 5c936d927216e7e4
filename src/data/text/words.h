// Words as white space separates them.
#pragma once

#include <cstddef>
#include <string_view>

namespace bitloom::data {

// White space of ASCII: what separates the tokens of corpora that come tokenized, such as WikiText.
inline bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

inline std::size_t count_words(std::string_view text) {
  std::size_t words = 0;
  bool in_word = false;
  for (const char c : text) {
    words += !is_space(c) && !in_word ? 1U : 0U;
    in_word = !is_space(c);
  }
  return words;
}

}  // namespace bitloom::data
