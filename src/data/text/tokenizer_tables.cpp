#include "data/text/tokenizer_tables.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/text/tokenizer_kinds.h"

namespace bitloom::data {
namespace {

// Behind the line with kind, length and hash.
std::string body_of(const Tokenizer& tokenizer) {
  const std::string serialized = tokenizer.serialize();
  return serialized.substr(serialized.find('\n') + 1);
}

}  // namespace

bool is_byte_level(const Tokenizer& tokenizer) { return tokenizer.kind() == "gpt2" || tokenizer.kind() == "bytes"; }

ByteLevelTables byte_level_tables(const Tokenizer& tokenizer) {
  ByteLevelTables tables;
  if (tokenizer.kind() == "bytes") {
    for (unsigned byte = 0; byte < 256; ++byte) tables.tokens.push_back(gpt2_spelling(static_cast<unsigned char>(byte)));
    tables.tokens.emplace_back(gpt2_end_of_text);
  } else if (tokenizer.kind() == "gpt2") {
    const nlohmann::json content = nlohmann::json::parse(body_of(tokenizer));
    content.at("tokens").get_to(tables.tokens);
    content.at("merges").get_to(tables.merges);
  } else {
    fail(ErrorKind::usage, "a tokenizer of kind '{}' does not merge bytes; expected one of kind 'gpt2' or 'bytes'",
         tokenizer.kind());
  }
  const auto end = static_cast<std::size_t>(tokenizer.end_of_text());
  for (std::size_t i = 0; i < tables.tokens.size(); ++i) {
    tables.is_added.push_back(i == end || !is_gpt2_spelling(tables.tokens[i]));
  }
  return tables;
}

std::string sentencepiece_file(const Tokenizer& tokenizer) {
  if (tokenizer.kind() != "sentencepiece") {
    fail(ErrorKind::usage, "a tokenizer of kind '{}' is no sentencepiece model", tokenizer.kind());
  }
  return body_of(tokenizer);
}

}  // namespace bitloom::data
