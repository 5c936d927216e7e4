// Tokenizers in GGUF files, as llama.cpp has them (src/llama-vocab.cpp).
#pragma once

#include "core/gguf.h"
#include "data/text/tokenizer.h"

namespace bitloom::models {

// Sets the keys tokenizer.ggml.*. `model` there is
//   gpt2    for kinds "gpt2" and "bytes": merges of bytes, none for "bytes"
//   llama   for sentencepiece models of type bpe, which llama.cpp merges by the scores of the pieces
//   t5      for those of type unigram
// The end of text begins and ends what a model writes; nothing is added to a prompt. Throws Error(usage) that says what
// llama.cpp lacks for a sentencepiece model that it would give other tokens.
void set_gguf_tokenizer(GgufFile& file, const data::Tokenizer& tokenizer);

}  // namespace bitloom::models
