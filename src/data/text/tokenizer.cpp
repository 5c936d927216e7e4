#include "data/text/tokenizer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/text.h"
#include "data/text/tokenizer_kinds.h"

namespace bitloom::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view magic = "bitloom tokenizer 1 ";
constexpr std::size_t byte_values = 256;

Hash128 hash_text(std::string_view text) { return hash_bytes(std::as_bytes(std::span(text.data(), text.size()))); }

// Every byte is a token; 256 ends a document.
class ByteTokenizer final : public Tokenizer {
 public:
  std::string_view kind() const override { return "bytes"; }
  std::size_t size() const override { return byte_values + 1; }
  std::int32_t end_of_text() const override { return byte_values; }

  void encode(std::string_view text, std::vector<std::int32_t>& tokens, const MergeDropout& dropout) const override {
    require_no_dropout(dropout, kind());
    tokens.reserve(tokens.size() + text.size());
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  }

  bool divides_at(std::string_view /*text*/, std::size_t /*size*/) const override { return true; }

  std::string decode(std::span<const std::int32_t> tokens) const override {
    std::string text;
    for (const std::int32_t token : tokens) {
      const std::size_t index = checked_token(token, size());
      if (index < byte_values) text.push_back(static_cast<char>(index));
    }
    return text;
  }

  std::string serialize() const override { return envelope(kind(), ""); }
};

struct KindRow {
  std::string_view name;
  std::unique_ptr<Tokenizer> (*parse)(std::string_view body, std::string_view name);
};
constexpr std::array<KindRow, 3> tokenizer_kinds{
    {{"bytes", &parse_bytes_tokenizer}, {"sentencepiece", &parse_sentencepiece}, {"gpt2", &parse_gpt2}}};

std::unique_ptr<Tokenizer> load_file(const fs::path& path) {
  const std::string text = read_text(path);
  if (text.starts_with(magic)) return parse_tokenizer(text, path.string());
  if (path.extension() == ".model") return parse_sentencepiece(text, path.string());
  fail(ErrorKind::data, "'{}' is no tokenizer: neither written by Bitloom nor sentencepiece's (*.model)", path.string());
}

std::unique_ptr<Tokenizer> load_folder(const fs::path& folder) {
  if (fs::exists(folder / "tokenizer")) return load_file(folder / "tokenizer");
  const fs::path vocab = folder / "vocab.json";
  const fs::path merges = folder / "merges.txt";
  if (!fs::exists(vocab) || !fs::exists(merges)) {
    fail(ErrorKind::data, "'{}' holds no tokenizer: expected vocab.json and merges.txt, or a file 'tokenizer'",
         folder.string());
  }
  return read_gpt2(read_text(vocab), vocab.string(), read_text(merges), merges.string());
}

}  // namespace

std::string envelope(std::string_view kind, std::string_view body) {
  return fmt::format("{}{} {} {}\n{}", magic, kind, body.size(), hash_text(body).hex(), body);
}

std::unique_ptr<Tokenizer> parse_bytes_tokenizer(std::string_view body, std::string_view name) {
  if (!body.empty()) fail(ErrorKind::data, "'{}' is a damaged tokenizer: {} bytes where none belong", name, body.size());
  return std::make_unique<ByteTokenizer>();
}

DropoutDraws dropout_draws(const MergeDropout& dropout, std::string_view text) {
  if (!(dropout.rate >= 0 && dropout.rate <= 1)) {
    fail(ErrorKind::usage, "a merge dropout of {} is no probability; expected 0 to 1", dropout.rate);
  }
  const Hash128 hash = hash_text(text);
  return {dropout.rate, Random(dropout.seed, Stream::merge_dropout, hash.low, hash.high)};
}

void require_no_dropout(const MergeDropout& dropout, std::string_view kind) {
  if (dropout.rate == 0) return;
  fail(ErrorKind::usage, "merge dropout {} does not go with a tokenizer of kind {}, which merges nothing", dropout.rate, kind);
}

std::size_t checked_token(std::int32_t token, std::size_t size) {
  if (token < 0 || static_cast<std::size_t>(token) >= size) {
    fail(ErrorKind::usage, "there is no token {}; expected 0 to {}", token, size - 1);
  }
  return static_cast<std::size_t>(token);
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& spec) {
  if (spec == "bytes") return std::make_unique<ByteTokenizer>();
  if (fs::is_directory(spec)) return load_folder(spec);
  if (fs::exists(spec)) return load_file(spec);
  fail(ErrorKind::usage,
       "tokenizer '{}': there is no such file or folder; expected bytes, a file of `bitloom tokenizer train`, a sentencepiece "
       "model (*.model), or a folder with GPT-2's vocab.json and merges.txt",
       spec);
}

std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view serialized, std::string_view name) {
  const auto damaged = [&](std::string_view reason) { fail(ErrorKind::data, "'{}' is no good tokenizer: {}", name, reason); };
  const std::size_t line = serialized.find('\n');
  if (!serialized.starts_with(magic) || line == std::string_view::npos) damaged("it does not begin as one that Bitloom wrote");
  const std::vector<std::string> fields = split(serialized.substr(magic.size(), line - magic.size()), ' ');
  const std::string_view body = serialized.substr(line + 1);
  if (fields.size() != 3) damaged("its first line is damaged");
  if (parse_int(fields[1]) != static_cast<std::int64_t>(body.size())) damaged("it is cut off, or something follows its end");
  if (fields[2] != hash_text(body).hex()) damaged("its checksum does not match: the file is damaged");
  for (const KindRow& row : tokenizer_kinds) {
    if (row.name == fields[0]) return row.parse(body, name);
  }
  fail(ErrorKind::data, "'{}' is a tokenizer of the unknown kind '{}'", name, fields[0]);
}

std::string tokenizer_hash(const Tokenizer& tokenizer) { return hash_text(tokenizer.serialize()).hex(); }

std::vector<std::int32_t> encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> tokens;
  tokenizer.encode(text, tokens);
  return tokens;
}

}  // namespace bitloom::data
