#include "data/text/gpt2_files.h"

#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "core/file.h"
#include "data/text/tokenizer_tables.h"

namespace bitloom::data {

void write_gpt2_files(const Tokenizer& tokenizer, const std::filesystem::path& folder) {
  if (tokenizer.kind() != "gpt2") {
    fail(ErrorKind::usage, "a tokenizer of kind '{}' has no vocab.json and merges.txt; expected one of kind 'gpt2'",
         tokenizer.kind());
  }
  const ByteLevelTables tables = byte_level_tables(tokenizer);
  nlohmann::json vocabulary = nlohmann::json::object();
  for (std::size_t i = 0; i < tables.tokens.size(); ++i) vocabulary[tables.tokens[i]] = i;
  std::string merges = "#version: 0.2\n";
  for (const std::string& merge : tables.merges) merges += merge + "\n";
  write_atomically(folder / "vocab.json", vocabulary.dump());
  write_atomically(folder / "merges.txt", merges);
}

}  // namespace bitloom::data
