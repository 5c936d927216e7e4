// How GPT-2 cuts text before it merges bytes.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

namespace bitloom::data {

// Contractions, words with the space before them, numbers, runs of anything else, white space: the expression in `encoder.py`
// of github.com/openai/gpt-2. May be used by several threads at once.
class Gpt2Words {
 public:
  Gpt2Words();
  ~Gpt2Words();

  // Calls take(word) for all of `text`, in order. Throws Error(data) if it is not UTF-8.
  void cut(std::string_view text, const std::function<void(std::string_view word)>& take) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace bitloom::data
