#include "data/text/token_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "core/text.h"

namespace bitloom::data {
namespace {

constexpr const char* format_key = "bitloom.format";
constexpr const char* format_name = "tokens 1";
constexpr const char* vocabulary_key = "bitloom.vocabulary";
constexpr const char* tokenizer_key = "bitloom.tokenizer";
constexpr const char* words_key = "bitloom.words";
constexpr const char* bytes_key = "bitloom.bytes";
constexpr std::size_t largest_16_bit_vocabulary = std::size_t{std::numeric_limits<std::uint16_t>::max()} + 1;

// Reads the parts of one mapped file; `name` stands for it in messages.
struct Reader {
  const TensorMapping& mapping;
  const std::string& name;

  const std::string& text(const char* key) const {
    const auto found = mapping.metadata.find(key);
    if (found == mapping.metadata.end()) fail(ErrorKind::data, "'{}' is no good token file: no metadata '{}'", name, key);
    return found->second;
  }

  std::uint64_t number(const char* key, std::int64_t low, std::int64_t high) const {
    const std::string& value = text(key);
    const auto parsed = parse_int(value);
    if (!parsed || *parsed < low || *parsed > high) {
      fail(ErrorKind::data, "'{}' is no good token file: {} is '{}', expected a number from {} to {}", name, key, value, low,
           high);
    }
    return static_cast<std::uint64_t>(*parsed);
  }

  const TensorMapping::View& array(const char* tensor, DType dtype) const {
    const auto found = mapping.tensors.find(tensor);
    if (found == mapping.tensors.end()) fail(ErrorKind::data, "'{}' is no good token file: no tensor '{}'", name, tensor);
    const TensorMapping::View& view = found->second;
    if (view.dtype != dtype || view.shape.size() != 1) {
      fail(ErrorKind::data, "'{}' is no good token file: the tensor '{}' is {} with {} dimensions, expected {} with 1", name,
           tensor, dtype_name(view.dtype), view.shape.size(), dtype_name(dtype));
    }
    return view;
  }
};

DType token_type(std::size_t vocabulary) { return vocabulary <= largest_16_bit_vocabulary ? DType::u16 : DType::i32; }

[[noreturn]] void fail_writing(const std::filesystem::path& path) {
  fail(ErrorKind::io, "cannot write '{}': {}", path.string(), std::strerror(errno));
}

}  // namespace

TokenFile::TokenFile(Content content)
    : owned_tokens_(std::move(content.tokens)),
      tokens_(std::as_bytes(std::span<const std::int32_t>(owned_tokens_))),
      document_ends_(std::move(content.document_ends)),
      vocabulary_(content.vocabulary),
      tokenizer_hash_(std::move(content.tokenizer_hash)),
      words_(content.words),
      bytes_(content.bytes) {
  check_ends(ErrorKind::internal);
}

TokenFile TokenFile::open(const std::filesystem::path& path) {
  TokenFile file;
  file.source_ = path.string();
  file.mapping_ = TensorMapping::open(path);
  const Reader reader{file.mapping_, file.source_};
  const auto format = file.mapping_.metadata.find(format_key);
  if (format == file.mapping_.metadata.end() || format->second != format_name) {
    fail(ErrorKind::data, "'{}' is no token file: {} is '{}', expected '{}'", file.source_, format_key,
         format == file.mapping_.metadata.end() ? "" : format->second, format_name);
  }
  constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();
  file.vocabulary_ = reader.number(vocabulary_key, 1, std::numeric_limits<std::int32_t>::max());
  file.tokenizer_hash_ = reader.text(tokenizer_key);
  file.words_ = reader.number(words_key, 0, any);
  file.bytes_ = reader.number(bytes_key, 0, any);
  const DType type = token_type(file.vocabulary_);
  file.tokens_ = reader.array("tokens", type).bytes;
  file.token_bytes_ = dtype_size(type);
  const std::span<const std::byte> ends = reader.array("documents", DType::u64).bytes;
  file.document_ends_.resize(ends.size() / sizeof(std::uint64_t));
  if (!ends.empty()) std::memcpy(file.document_ends_.data(), ends.data(), ends.size());
  file.check_ends(ErrorKind::data);
  return file;
}

void TokenFile::check_ends(ErrorKind kind) const {
  std::uint64_t previous = 0;
  for (std::size_t i = 0; i < document_ends_.size(); ++i) {
    if (document_ends_[i] <= previous || document_ends_[i] > size()) {
      fail(kind, "'{}': document {} ends at token {}, expected more than {} and at most {}", source_, i, document_ends_[i],
           previous, size());
    }
    previous = document_ends_[i];
  }
  if (previous != size()) {
    fail(kind, "'{}': the documents end at token {}, expected the number of tokens, {}", source_, previous, size());
  }
}

std::size_t TokenFile::size() const { return tokens_.size() / token_bytes_; }
std::size_t TokenFile::documents() const { return document_ends_.size(); }
std::size_t TokenFile::vocabulary() const { return vocabulary_; }
const std::string& TokenFile::tokenizer_hash() const { return tokenizer_hash_; }
std::uint64_t TokenFile::words() const { return words_; }
std::uint64_t TokenFile::bytes() const { return bytes_; }

std::uint64_t TokenFile::document_begin(std::size_t i) const { return i == 0 ? 0 : document_end(i - 1); }

std::uint64_t TokenFile::document_end(std::size_t i) const {
  if (i >= document_ends_.size()) {
    fail(ErrorKind::internal, "'{}': there is no document {} of {}", source_, i, document_ends_.size());
  }
  return document_ends_[i];
}

void TokenFile::read(std::uint64_t begin, std::span<std::int32_t> out) const {
  if (begin > size() || out.size() > size() - begin) {
    fail(ErrorKind::internal, "'{}': there are no tokens {} to {} of {}", source_, begin, begin + out.size(), size());
  }
  const std::byte* from = tokens_.data() + begin * token_bytes_;
  for (std::size_t i = 0; i < out.size(); ++i, from += token_bytes_) {
    if (token_bytes_ == sizeof(std::uint16_t)) {
      std::uint16_t token;
      std::memcpy(&token, from, sizeof token);
      out[i] = token;
    } else {
      std::memcpy(&out[i], from, sizeof out[i]);
    }
    if (out[i] < 0 || static_cast<std::size_t>(out[i]) >= vocabulary_) {
      fail(ErrorKind::data, "'{}': token {} at place {} is beyond the vocabulary of {}", source_, out[i], begin + i,
           vocabulary_);
    }
  }
}

void ContentSink::add(std::span<const std::int32_t> tokens) {
  content_->tokens.insert(content_->tokens.end(), tokens.begin(), tokens.end());
}

void ContentSink::end_document(std::int32_t end_of_text, std::uint64_t words, std::uint64_t bytes) {
  content_->tokens.push_back(end_of_text);
  content_->document_ends.push_back(content_->tokens.size());
  content_->words += words;
  content_->bytes += bytes;
}

TokenFileWriter::TokenFileWriter(std::filesystem::path path, std::size_t vocabulary, std::string tokenizer_hash)
    : path_(std::move(path)), vocabulary_(vocabulary), tokenizer_hash_(std::move(tokenizer_hash)) {
  const std::filesystem::path name = fmt::format("{}.{}.tmp", path_.string(), ::getpid());
  tokens_.open(name, std::ios::in | std::ios::out | std::ios::binary | std::ios::trunc);
  if (!tokens_) fail_writing(path_);
  // It lasts as long as it is open, so that nothing is left of it when the process is killed.
  std::error_code ignored;
  std::filesystem::remove(name, ignored);
}

void TokenFileWriter::add(std::span<const std::int32_t> tokens) {
  const auto write = [&](const auto& values) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
    tokens_.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  };
  if (token_type(vocabulary_) == DType::u16) {
    write(std::vector<std::uint16_t>(tokens.begin(), tokens.end()));
  } else {
    write(tokens);
  }
  if (!tokens_) fail_writing(path_);
  size_ += tokens.size();
}

void TokenFileWriter::end_document(std::int32_t end_of_text, std::uint64_t words, std::uint64_t bytes) {
  add({&end_of_text, 1});
  document_ends_.push_back(size_);
  words_ += words;
  bytes_ += bytes;
}

void TokenFileWriter::finish() {
  if (!tokens_.flush()) fail_writing(path_);
  const auto read_tokens = [this](const TakeBytes& take) {
    tokens_.clear();
    tokens_.seekg(0);
    std::vector<char> part(std::size_t{1} << 20U);
    while (tokens_) {
      tokens_.read(part.data(), static_cast<std::streamsize>(part.size()));
      take(std::as_bytes(std::span(part.data(), static_cast<std::size_t>(tokens_.gcount()))));
    }
  };
  const auto read_ends = [this](const TakeBytes& take) { take(std::as_bytes(std::span(document_ends_))); };
  save_streamed(path_,
                {{format_key, format_name},
                 {vocabulary_key, fmt::format("{}", vocabulary_)},
                 {tokenizer_key, tokenizer_hash_},
                 {words_key, fmt::format("{}", words_)},
                 {bytes_key, fmt::format("{}", bytes_)}},
                {{"tokens", {token_type(vocabulary_), {size_}, read_tokens}},
                 {"documents", {DType::u64, {document_ends_.size()}, read_ends}}});
}

}  // namespace bitloom::data
