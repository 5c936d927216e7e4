// How good a language model is: perplexity by overlapping windows and cloze accuracy (Shoeybi et al. 2019, "WikiText103" and
// "LAMBADA").
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "data/text/tokenizer.h"
#include "models/gpt/forward.h"

namespace bitloom::models {

// Called between batches with what is done and all there is to do, on every process; false of one of them stops all.
using EvaluationProgress = std::function<bool(std::uint64_t done, std::uint64_t all)>;

struct PerplexityOptions {
  std::size_t advance = 32;  // tokens by which windows move on
  std::size_t windows = 8;   // at once
};

struct Perplexity {
  double loss = 0;            // the sum, in nats, over tokens
  std::uint64_t tokens = 0;   // whose loss is in it
  std::uint64_t windows = 0;  // that took
  bool is_complete = true;    // false: the progress callback stopped it

  // exp(loss / count): perplexity by token, or, with the number T_o of tokens of the original tokenization, Shoeybi et al.
  // 2019's.
  double by(std::uint64_t count) const;
  double per_token() const { return by(tokens); }
  // bytes: of the text that the tokens stand for.
  double bits_per_byte(std::uint64_t bytes) const;
};

// Copies tokens begin .. begin + out.size() - 1.
using TokenReader = std::function<void(std::uint64_t begin, std::span<std::int32_t> out)>;

// The loss of every token but the first of `size` tokens, which are one text. Windows of w inputs, the net's, begin at the
// multiples of `advance`; the first counts the losses of all its w targets, every other one those of its last `advance`, so
// that each token counts once, given at least w - advance tokens before it, or all there are. The last window may be cut
// off: what a token's loss is does not depend on what follows it. To have the first token count too, put the end-of-text token
// before it. Sums are formed by windows, in their order.
//
// Collective, as all below: rank 0 of a grid reads the text, data ranks divide the windows, and all get the result. Stages and
// data ranks do not change a bit of it.
//
// Throws Error(usage) for an advance that is not 1 to w, or no windows; Error(data) for fewer than 2 tokens or one that is not
// in the vocabulary.
Perplexity evaluate_perplexity(GptForward net, std::uint64_t size, const TokenReader& read,
                               const PerplexityOptions& options = {}, const EvaluationProgress& on_progress = {});

// A text of which the last `target` tokens are to be predicted.
struct ClozePassage {
  std::vector<std::int32_t> tokens;
  std::size_t target = 1;
};

struct ClozeAccuracy {
  std::vector<char> correct;  // by passage, 0 or 1; as many as were looked at before it was stopped
  std::uint64_t passages = 0;
  std::uint64_t right = 0;
  bool is_complete = true;

  double accuracy() const { return passages == 0 ? 0 : static_cast<double>(right) / static_cast<double>(passages); }
};

// A passage is correct if each of its target tokens, given all tokens before it, is the most likely one, the first of equals
// (teacher forcing). Of a passage longer than the net's tokens + 1 the end is kept. at_once: passages. All processes give the
// same passages.
//
// Throws Error(usage) for none at once; Error(data), which names the passage, counted from 1, if it has no target, nothing
// before it, more of it than fit the context, or a token that is not in the vocabulary.
ClozeAccuracy evaluate_cloze(GptForward net, std::span<const ClozePassage> passages, std::size_t at_once = 8,
                             const EvaluationProgress& on_progress = {});

// The last word of `text`, what follows its last white space, is the target, together with that one character: so do tokens of
// GPT-2 and of SentencePiece begin words. White space at the end of the text is dropped. The text and
// its part before the target are tokenized; the tokens of the first behind those that both begin with are the target's. Where
// a token reaches across the border, the tokens of the part are no beginning of those of the text: then that token and all
// after it are the target. Throws Error(data) for fewer than two words.
ClozePassage cloze_passage(const data::Tokenizer& tokenizer, std::string_view text);

// Logits (T,vocabulary) behind each of T tokens, without the padding of the vocabulary. Throws Error(usage) for no tokens, more
// than the context, or one that is not in the vocabulary.
std::vector<float> token_logits(GptForward net, std::span<const std::int32_t> tokens);

}  // namespace bitloom::models
