// Suggestions for misspelt names.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bitloom {

// The known word with the smallest edit distance (insertions, deletions, substitutions, swaps of neighbours; letter case
// ignored), the first of equals; "" if that distance exceeds max(2, word length / 3) or nothing of the word would remain.
std::string closest(std::string_view word, std::span<const std::string> known);

// The end of an error message about an unknown `word`: "; did you mean 'x'?", or "; known: a, b, c" if nothing is close.
std::string did_you_mean(std::string_view word, std::span<const std::string> known);

// Throws Error(usage) about a word that is none of those known: "ARGUMENT: 'wrod'; did you mean 'word'?".
[[noreturn]] void fail_unknown(std::string_view argument, std::string_view word, std::span<const std::string> known);

// Names of the rows of a table, each of which has a `name`.
template <typename Table>
std::vector<std::string> names_of(const Table& table) {
  std::vector<std::string> names;
  for (const auto& row : table) names.emplace_back(row.name);
  return names;
}

// The row of a table that has a name. Throws Error(usage) as fail_unknown() does if there is none.
template <typename Table>
const auto& find_named(const Table& table, std::string_view name, std::string_view argument) {
  for (const auto& row : table) {
    if (name == row.name) return row;
  }
  fail_unknown(argument, name, names_of(table));
}

}  // namespace bitloom
