#include "data/text/gpt2_files.h"

#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "core/file.h"

namespace bitloom::data {

void write_gpt2_files(const Tokenizer& tokenizer, const std::filesystem::path& folder) {
  if (tokenizer.kind() != "gpt2") {
    fail(ErrorKind::usage, "a tokenizer of kind '{}' has no vocab.json and merges.txt; expected one of kind 'gpt2'",
         tokenizer.kind());
  }
  // Behind the first line is what gpt2.cpp keeps: tokens, spelt as in vocab.json, by number, and merges by rank.
  const std::string serialized = tokenizer.serialize();
  const nlohmann::json content = nlohmann::json::parse(serialized.substr(serialized.find('\n') + 1));
  nlohmann::json vocabulary = nlohmann::json::object();
  for (const nlohmann::json& token : content.at("tokens")) {
    const std::size_t number = vocabulary.size();
    vocabulary[token.get<std::string>()] = number;
  }
  std::string merges = "#version: 0.2\n";
  for (const nlohmann::json& merge : content.at("merges")) merges += merge.get<std::string>() + "\n";
  write_atomically(folder / "vocab.json", vocabulary.dump());
  write_atomically(folder / "merges.txt", merges);
}

}  // namespace bitloom::data
