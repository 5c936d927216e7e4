#include "cli/text_source.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "cli/text_options.h"
#include "core/error.h"
#include "core/hash.h"
#include "data/text/prepare.h"

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

// Opens the files that `bitloom data text` left in a folder.
void open_folder(const fs::path& folder, TextSource& source) {
  for (const char* name : {train_tokens_file, validation_tokens_file, tokenizer_file}) {
    if (!fs::exists(folder / name)) {
      fail(ErrorKind::data, "--data: {}: there is no {}; expected a folder that `bitloom data text` made", folder.string(),
           name);
    }
  }
  source.tokenizer = data::load_tokenizer((folder / tokenizer_file).string());
  source.train = open_tokens(folder / train_tokens_file, *source.tokenizer, "the folder");
  source.validation = open_tokens(folder / validation_tokens_file, *source.tokenizer, "the folder");
}

}  // namespace

data::TokenFile open_tokens(const fs::path& file, const data::Tokenizer& tokenizer, const std::string& owner) {
  data::TokenFile tokens = data::TokenFile::open(file);
  const std::string hash = data::tokenizer_hash(tokenizer);
  if (tokens.tokenizer_hash() != hash || tokens.vocabulary() != tokenizer.size()) {
    fail(ErrorKind::data, "--data: {}: the tokens of another tokenizer ({}, {} tokens) than {} has ({}, {} tokens)",
         file.string(), tokens.tokenizer_hash(), tokens.vocabulary(), owner, hash, tokenizer.size());
  }
  return tokens;
}

TextSource open_text(Terminal& terminal, const GptSettings& settings) {
  TextSource source;
  if (!fs::exists(settings.data)) fail(ErrorKind::data, "--data: {}: there is no such file or folder", settings.data);
  if (fs::is_directory(settings.data)) {
    open_folder(settings.data, source);
  } else if (fs::path(settings.data).extension() == ".tokens") {
    fail(ErrorKind::data, "--data: {}: a token file; expected the folder that it is in, or a file of text", settings.data);
  } else {
    source.tokenizer = data::load_tokenizer(settings.tokenizer);
    const data::TextInput input{{settings.data}, settings.documents, settings.field};
    data::TokenSplits splits =
        data::prepare_text(input, *source.tokenizer, parse_share(settings.validation), settings.split_seed, &terminal);
    source.train = data::TokenFile(std::move(splits.train));
    source.validation = data::TokenFile(std::move(splits.validation));
  }
  source.fingerprint = fingerprint_of(source);
  return source;
}

}  // namespace bitloom::cli
