#include "cli/text_source.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "core/error.h"
#include "core/hash.h"
#include "data/text/documents.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

// The sizes, the tokenizer and the tokens at both ends: to read all of a large file would take as long as an epoch.
std::string fingerprint_of(const TextSource& source) {
  constexpr std::size_t looked_at = 1 << 16;
  Hasher hasher;
  for (const data::TokenFile* file : {&source.train, &source.validation}) {
    hasher.update(file->size()).update(file->documents()).update(std::string_view(file->tokenizer_hash()));
    std::vector<std::int32_t> tokens(std::min(file->size(), looked_at));
    for (const std::uint64_t begin : {std::uint64_t{0}, static_cast<std::uint64_t>(file->size() - tokens.size())}) {
      file->read(begin, tokens);
      for (const std::int32_t token : tokens) hasher.update(token);
    }
  }
  return hasher.finish().hex();
}

}  // namespace

TextSource open_text(Terminal& /*terminal*/, const GptSettings& settings) {
  TextSource source;
  source.tokenizer = data::load_tokenizer(settings.tokenizer);
  data::TokenFile::Content all;
  all.vocabulary = source.tokenizer->size();
  all.tokenizer_hash = data::tokenizer_hash(*source.tokenizer);
  data::TextInput input;
  input.files = {settings.data};
  data::for_each_document(input, [&](const data::Document& document) {
    source.tokenizer->encode(document.text, all.tokens);
    all.tokens.push_back(source.tokenizer->end_of_text());
    all.document_ends.push_back(all.tokens.size());
  });
  const std::size_t n = all.tokens.size() - all.tokens.size() / std::stoul(settings.validation);
  data::TokenFile::Content validation = all;
  validation.tokens.assign(all.tokens.begin() + static_cast<std::ptrdiff_t>(n), all.tokens.end());
  all.tokens.resize(n);
  validation.document_ends = {validation.tokens.size()};
  all.document_ends = {n};
  source.train = data::TokenFile(all);
  source.validation = data::TokenFile(validation);
  source.fingerprint = fingerprint_of(source);
  return source;
}

}  // namespace bitloom::cli
