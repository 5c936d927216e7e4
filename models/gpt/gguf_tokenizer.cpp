#include "models/gpt/gguf_tokenizer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "data/text/sentencepiece_model.h"
#include "data/text/tokenizer_tables.h"

namespace bitloom::models {
namespace {

using data::SentencepieceModel;

// Types of tokens in llama.cpp are those of sentencepiece's pieces.
std::int32_t token_type(SentencepieceModel::PieceKind kind) { return static_cast<std::int32_t>(kind); }

void set_byte_level(GgufFile& file, const data::Tokenizer& tokenizer) {
  data::ByteLevelTables tables = data::byte_level_tables(tokenizer);
  std::vector<std::int32_t> types;
  for (const bool is_added : tables.is_added) {
    types.push_back(token_type(is_added ? SentencepieceModel::PieceKind::control : SentencepieceModel::PieceKind::normal));
  }
  file.set("tokenizer.ggml.model", std::string("gpt2"));
  file.set("tokenizer.ggml.pre", std::string("gpt-2"));  // how text is cut into words
  file.set("tokenizer.ggml.tokens", std::move(tables.tokens));
  file.set("tokenizer.ggml.token_type", std::move(types));
  file.set("tokenizer.ggml.merges", std::move(tables.merges));
}

// `value`: as it is in the model. A message of what would give other tokens.
[[noreturn]] void refuse(const char* field, const std::string& value, const std::string& expected) {
  fail(ErrorKind::usage,
       "the tokenizer, a sentencepiece model, has {} {}; in a GGUF file llama.cpp would read other tokens: "
       "expected {}",
       field, value, expected);
}

std::string type_of(const SentencepieceModel& model) {
  constexpr const char* names[] = {"unigram", "bpe", "word", "char"};
  return names[static_cast<std::size_t>(model.kind) - 1];
}

void require_flag(const SentencepieceModel& model, const char* field, bool value, bool expected) {
  if (value == expected) return;
  refuse(field, value ? "true" : "false", fmt::format("{} for the type {}", expected, type_of(model)));
}

// Refuses what llama.cpp does not have for the model's type.
void check_expressible(const SentencepieceModel& model) {
  const bool is_bpe = model.kind == SentencepieceModel::Kind::bpe;
  if (!is_bpe && model.kind != SentencepieceModel::Kind::unigram) refuse("the type", type_of(model), "bpe or unigram");
  require_flag(model, "byte_fallback", model.byte_fallback, is_bpe);
  require_flag(model, "escape_whitespaces", model.escape_whitespaces, true);
  require_flag(model, "treat_whitespace_as_suffix", model.treat_whitespace_as_suffix, false);
  if (!is_bpe) return;
  require_flag(model, "remove_extra_whitespaces", model.remove_extra_whitespaces, false);
  if (!model.charsmap.empty()) refuse("the normalization rule", model.normalizer, "identity for the type bpe");
}

void set_sentencepiece(GgufFile& file, const data::Tokenizer& tokenizer) {
  const SentencepieceModel model = data::read_sentencepiece_model(data::sentencepiece_file(tokenizer), "tokenizer");
  check_expressible(model);
  const bool is_bpe = model.kind == SentencepieceModel::Kind::bpe;
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<std::int32_t> types;
  for (const SentencepieceModel::Piece& piece : model.pieces) {
    tokens.push_back(piece.text);
    scores.push_back(piece.score);
    types.push_back(token_type(piece.kind));
  }
  const auto unknown =
      std::ranges::find(model.pieces, SentencepieceModel::PieceKind::unknown, &SentencepieceModel::Piece::kind);
  file.set("tokenizer.ggml.model", std::string(is_bpe ? "llama" : "t5"));
  file.set("tokenizer.ggml.pre", std::string("default"));
  file.set("tokenizer.ggml.tokens", std::move(tokens));
  file.set("tokenizer.ggml.scores", std::move(scores));
  file.set("tokenizer.ggml.token_type", std::move(types));
  file.set("tokenizer.ggml.unknown_token_id", static_cast<std::uint32_t>(unknown - model.pieces.begin()));
  file.set("tokenizer.ggml.remove_extra_whitespaces", model.remove_extra_whitespaces);
  if (!model.charsmap.empty()) {
    file.set("tokenizer.ggml.precompiled_charsmap", std::vector<std::uint8_t>(model.charsmap.begin(), model.charsmap.end()));
  }
  file.set("tokenizer.ggml.add_space_prefix", model.add_dummy_prefix);
}

}  // namespace

void set_gguf_tokenizer(GgufFile& file, const data::Tokenizer& tokenizer) {
  if (data::is_byte_level(tokenizer)) {
    set_byte_level(file, tokenizer);
    file.set("tokenizer.ggml.add_space_prefix", false);
  } else {
    set_sentencepiece(file, tokenizer);
  }
  const auto end = static_cast<std::uint32_t>(tokenizer.end_of_text());
  file.set("tokenizer.ggml.bos_token_id", end);
  file.set("tokenizer.ggml.eos_token_id", end);
  file.set("tokenizer.ggml.add_bos_token", false);
  file.set("tokenizer.ggml.add_eos_token", false);
}

}  // namespace bitloom::models
