#include "data/pairs/caption_filter.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "core/text.h"
#include "data/text/words.h"

namespace bitloom::data {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Words in small letters without the punctuation around them; what is punctuation alone is no word.
std::vector<std::string> plain_words(std::string_view caption) {
  std::vector<std::string> words(1);
  for (const char c : caption) {
    if (is_space(c)) {
      words.emplace_back();
    } else {
      words.back() += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  const auto is_part = [](char c) { return is_letter(c) || is_digit(c) || static_cast<unsigned char>(c) >= 0x80; };
  for (std::string& word : words) {
    const auto first = std::find_if(word.begin(), word.end(), is_part);
    const auto last = std::find_if(word.rbegin(), word.rend(), is_part).base();
    word = first < last ? std::string(first, last) : std::string();
  }
  std::erase(words, "");
  return words;
}

using Words = std::span<const std::string_view>;

bool among(std::string_view word, Words known) { return std::find(known.begin(), known.end(), word) != known.end(); }

// Frequent words that are not frequent in English, and English ones. "die", "con" or "het" would hit English captions.
constexpr std::array<std::string_view, 58> foreign_words{
    "der", "das", "und", "mit", "ist",  "ein", "eine", "einer", "einem", "auf", "dem",  "nicht", "für",  "von", "zu",
    "le",  "la",  "les", "des", "et",   "est", "avec", "dans",  "sur",   "une", "du",   "pour",  "aux",  "el",  "los",
    "las", "una", "y",   "por", "para", "del", "il",   "gli",   "della", "nel", "che",  "di",    "sono", "os",  "uma",
    "com", "em",  "da",  "dos", "na",   "não", "een",  "en",    "van",   "op",  "voor", "zijn",  "naar"};
constexpr std::array<std::string_view, 36> english_words{
    "the", "a",    "an", "of",   "in",   "on",  "at",    "to",  "and",   "with", "for",   "from",
    "is",  "are",  "by", "this", "that", "his", "her",   "its", "their", "over", "under", "near",
    "up",  "down", "as", "or",   "into", "out", "while", "it",  "not",   "no",   "my",    "your"};

// UTF-8 bytes that begin a character beyond ASCII count as letters of other scripts, but for those of punctuation and symbols
// (U+2000 to U+2BFF begin with 0xe2; emoji, with 0xf0).
bool is_english(std::string_view caption) {
  std::size_t ascii = 0, others = 0;
  for (const char c : caption) {
    const auto byte = static_cast<unsigned char>(c);
    ascii += is_letter(c) ? 1U : 0U;
    others += byte >= 0xc3 && byte < 0xf0 && byte != 0xe2 ? 1U : 0U;
  }
  if (4 * ascii < 3 * (ascii + others)) return false;
  std::size_t foreign = 0, english = 0;
  for (const std::string& word : plain_words(caption)) {
    foreign += among(word, foreign_words) ? 1U : 0U;
    english += among(word, english_words) ? 1U : 0U;
  }
  return foreign < 2 || foreign <= english;
}

constexpr std::array<std::string_view, 20> photo_words{
    "photographed", "photograph", "photo",    "photos", "picture", "pictures",  "image", "images",   "taken",    "uploaded",
    "posted",       "created",    "captured", "shot",   "scanned", "published", "added", "modified", "recorded", "dated"};
constexpr std::array<std::string_view, 6> link_words{"on", "at", "in", "the", "of", "date"};
constexpr std::array<std::string_view, 30> date_words{
    "january",  "february", "march", "april", "may",    "june",    "july",      "august",   "september", "october",
    "november", "december", "jan",   "feb",   "mar",    "apr",     "jun",       "jul",      "aug",       "sep",
    "sept",     "oct",      "nov",   "dec",   "monday", "tuesday", "wednesday", "thursday", "friday",    "saturday"};

// A number such as 2012, 3rd, 2012-05-03, 3/5/12 or 14:30.
bool is_date_number(std::string_view word) {
  const auto digits = std::count_if(word.begin(), word.end(), is_digit);
  const bool ordinal = word.ends_with("st") || word.ends_with("nd") || word.ends_with("rd") || word.ends_with("th");
  const std::string_view number = ordinal ? word.substr(0, word.size() - 2) : word;
  return digits > 0 && std::all_of(number.begin(), number.end(),
                                   [](char c) { return is_digit(c) || c == '-' || c == '/' || c == '.' || c == ':'; });
}

bool is_date_word(std::string_view word) { return is_date_number(word) || among(word, date_words) || word == "sunday"; }

}  // namespace

std::size_t boilerplate_words(std::string_view caption) {
  const std::vector<std::string> words = plain_words(caption);
  std::size_t found = 0;
  for (std::size_t begin = 0; begin < words.size();) {
    // Words of photography, then "on", then a date of at least one number.
    std::size_t at = begin;
    while (at < words.size() && among(words[at], photo_words)) ++at;
    const bool photo = at > begin;
    while (photo && at < words.size() && among(words[at], link_words)) ++at;
    bool number = false;
    while (photo && at < words.size() &&
           (is_date_word(words[at]) ||
            (number && (words[at] == "of" || words[at] == "at") && at + 1 < words.size() && is_date_word(words[at + 1])))) {
      number = number || is_date_number(words[at]);
      ++at;
    }
    if (number) found += at - begin;
    begin = number ? at : begin + 1;
  }
  return found;
}

std::string_view reason_against(std::string_view caption, const CaptionRules& rules) {
  if (trim(caption).empty()) return "empty caption";
  if (count_words(caption) < rules.min_words) return "caption too short";
  if (rules.english && !is_english(caption)) return "caption not English";
  if (rules.boilerplate && 2 * boilerplate_words(caption) > plain_words(caption).size()) return "boilerplate caption";
  return "";
}

std::string lower_cased(std::string_view caption) { return lower_case(caption); }

}  // namespace bitloom::data
