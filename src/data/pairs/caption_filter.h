// Captions that say something about their image, in English (Ramesh et al. 2021, appendix C).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace bitloom::data {

// The paper gives no lengths, and takes the language from a neural classifier (cld3). The rules here are simple ones that can
// be read; each can be switched off.
struct CaptionRules {
  std::size_t min_words = 1;
  // Not English: fewer than three of four letters are ASCII, or at least two words, and more than of English, are among the
  // commonest of German, French, Spanish, Italian, Portuguese or Dutch.
  bool english = true;
  // More than half of the words belong to phrases such as "photographed on 3 May 2012".
  bool boilerplate = true;
};

// "" for a caption that stays, else the reason: "empty caption", "caption too short", "caption not English", "boilerplate
// caption". `caption` is UTF-8.
std::string_view reason_against(std::string_view caption, const CaptionRules& rules);

// Number of words in phrases of a verb or noun of photography and a date.
std::size_t boilerplate_words(std::string_view caption);

// With small ASCII letters for large ones (Ramesh et al. 2021, section 2.2: lower-case captions).
std::string lower_cased(std::string_view caption);

}  // namespace bitloom::data
