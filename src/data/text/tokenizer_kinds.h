// The kinds of tokenizers, one file each; private to this folder. tokenizer.cpp chooses among them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/random.h"
#include "data/text/merges.h"
#include "data/text/tokenizer.h"

namespace bitloom::data {

// Result of serialize(): a line with kind, length and hash of the body, which so notices damage, and the body.
std::string envelope(std::string_view kind, std::string_view body);

// From the body of an envelope, or of sentencepiece's own file. Error(data) that names `name`.
std::unique_ptr<Tokenizer> parse_bytes_tokenizer(std::string_view body, std::string_view name);
std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view body, std::string_view name);
std::unique_ptr<Tokenizer> parse_gpt2(std::string_view body, std::string_view name);
// From GPT-2's own two files.
std::unique_ptr<Tokenizer> read_gpt2(std::string_view vocab_json, std::string_view vocab_name, std::string_view merges_text,
                                     std::string_view merges_name);

// Random draws for `text`. Throws Error(usage) for a rate that is no probability.
DropoutDraws dropout_draws(const MergeDropout& dropout, std::string_view text);
// For kinds without merges. Throws Error(usage) for a rate above 0.
void require_no_dropout(const MergeDropout& dropout, std::string_view kind);
// Throws Error(usage) that names the token.
std::size_t checked_token(std::int32_t token, std::size_t size);

// How GPT-2's vocab.json spells a byte; whether a token is spelt in such characters alone.
const std::string& gpt2_spelling(unsigned char byte);
bool is_gpt2_spelling(std::string_view token);

// Name of the end of text in gpt2.
inline constexpr std::string_view gpt2_end_of_text = "<|endoftext|>";

}  // namespace bitloom::data
