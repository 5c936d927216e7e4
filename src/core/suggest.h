// Suggestions for misspelt names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace bitloom {

// The known word with the smallest edit distance (insertions, deletions, substitutions, swaps of neighbours; letter case
// ignored), the first of equals; "" if that distance exceeds max(2, word length / 3) or nothing of the word would remain.
std::string closest(std::string_view word, std::span<const std::string> known);

// The end of an error message about an unknown `word`: "; did you mean 'x'?", or "; known: a, b, c" if nothing is close.
std::string did_you_mean(std::string_view word, std::span<const std::string> known);

}  // namespace bitloom
