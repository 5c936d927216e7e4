// The only file that knows the library sentencepiece (Kudo and Richardson 2018).
#include <fmt/ranges.h>

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/progress.h"
#include "core/text.h"
#include "data/text/sentencepiece_model.h"
#include "data/text/tokenizer_kinds.h"
#include "data/text/tokenizer_training.h"

namespace bitloom::data {
namespace {

namespace sp = sentencepiece;
using PieceKind = SentencepieceModel::PieceKind;

constexpr std::string_view space_symbol = "\xE2\x96\x81";  // U+2581, which stands for a space in pieces
constexpr std::size_t byte_pieces = 256;
constexpr std::size_t most_bytes_at_once = std::size_t{64} << 20U;  // the library's memory grows faster than the text

class SentencepieceTokenizer final : public Tokenizer {
 public:
  SentencepieceTokenizer(std::string_view bytes, std::string_view name)
      : bytes_(bytes), model_(read_sentencepiece_model(bytes, name)) {
    const sp::util::Status status = processor_.LoadFromSerializedProto(bytes);
    if (!status.ok()) fail(ErrorKind::data, "'{}' is no good sentencepiece model: {}", name, status.message());
    end_of_text_ = processor_.eos_id();
    if (end_of_text_ < 0) fail(ErrorKind::data, "'{}': the model has no end-of-sentence piece, which ends documents", name);
    index_pieces();
    by_line_ = model_.is_exact() && std::none_of(model_.pieces.begin(), model_.pieces.end(),
                                                 [](const auto& piece) { return piece.text.find('\n') != std::string::npos; });
  }

  std::string_view kind() const override { return "sentencepiece"; }
  std::size_t size() const override { return model_.pieces.size(); }
  std::int32_t end_of_text() const override { return end_of_text_; }

  void encode(std::string_view text, std::vector<std::int32_t>& tokens, const MergeDropout& dropout) const override {
    if (!is_utf8(text)) fail(ErrorKind::data, "a text is not UTF-8, which the tokenizer, a sentencepiece model, expects");
    DropoutDraws draws = dropout_draws(dropout, text);
    if (!by_line_ && text.size() > most_bytes_at_once) {
      fail(ErrorKind::data,
           "a document of {}; a sentencepiece model that changes white space takes one as a whole: expected at most {}, "
           "with {} or in more files",
           format_bytes(text.size()), format_bytes(most_bytes_at_once), marked_field("documents"));
    }
    if (dropout.rate > 0 && merges_.size() == 0) require_no_dropout(dropout, "sentencepiece, here without byte pairs");
    MergeTable::Scratch scratch;
    // The library's memory and time grow faster than the text, so it gets a line at a time where that changes nothing.
    while (!text.empty()) {
      const std::size_t end = by_line_ ? std::min(text.find('\n'), text.size() - 1) + 1 : text.size();
      encode_part(text.substr(0, end), tokens, dropout.rate > 0 ? &draws : nullptr, scratch);
      text.remove_prefix(end);
    }
  }

  bool divides_at(std::string_view /*text*/, std::size_t /*size*/) const override { return by_line_; }

  std::string decode(std::span<const std::int32_t> tokens) const override {
    std::vector<int> known;
    for (const std::int32_t token : tokens) {
      checked_token(token, size());
      if (token != end_of_text_) known.push_back(token);
    }
    std::string text;
    if (!model_.is_exact()) {
      require(processor_.Decode(known, &text));
      return text;
    }
    for (const int token : known) text += texts_[static_cast<std::size_t>(token)];
    return text;
  }

  std::string serialize() const override { return envelope(kind(), bytes_); }

 private:
  // Tables from the pieces: bytes, texts, and for byte-pair models the merges.
  void index_pieces() {
    for (std::size_t i = 0; i < model_.pieces.size(); ++i) {
      const auto token = static_cast<std::int32_t>(i);
      const SentencepieceModel::Piece& piece = model_.pieces[i];
      texts_.push_back(text_of(piece));
      if (piece.kind == PieceKind::byte && texts_[i].size() == 1) bytes_of_[static_cast<unsigned char>(texts_[i][0])] = token;
      if (piece.kind == PieceKind::normal) numbers_.emplace(piece.text, token);
    }
    for (const PieceMerge& merge : piece_merges(model_)) {
      merges_.add(static_cast<std::int32_t>(merge.left), static_cast<std::int32_t>(merge.right),
                  static_cast<std::int32_t>(merge.whole), -model_.pieces[merge.whole].score);
    }
  }

  static std::string text_of(const SentencepieceModel::Piece& piece) {
    if (piece.kind == PieceKind::control) return "";
    if (piece.kind == PieceKind::unknown) return "\xEF\xBF\xBD";  // U+FFFD, the replacement character
    if (piece.kind == PieceKind::byte) {                          // "<0x0A>"
      unsigned value = 0;
      for (const char digit : piece.text.substr(std::min<std::size_t>(3, piece.text.size()), 2)) {
        value = value * 16 + static_cast<unsigned>(digit >= 'A' ? digit - 'A' + 10 : digit - '0');
      }
      return {static_cast<char>(value)};
    }
    std::string text = piece.text;
    for (std::size_t at = 0; (at = text.find(space_symbol, at)) != std::string::npos; ++at) {
      text.replace(at, space_symbol.size(), " ");
    }
    return text;
  }

  // `part` may hold U+2581, which the library would take for a space: an exact model spells it in bytes.
  void encode_part(std::string_view part, std::vector<std::int32_t>& tokens, DropoutDraws* draws,
                   MergeTable::Scratch& scratch) const {
    while (model_.is_exact()) {
      const std::size_t at = part.find(space_symbol);
      if (at == std::string_view::npos) break;
      encode_plain(part.substr(0, at), tokens, draws, scratch);
      spell(part.substr(at, space_symbol.size()), tokens);
      part.remove_prefix(at + space_symbol.size());
    }
    encode_plain(part, tokens, draws, scratch);
  }

  void encode_plain(std::string_view text, std::vector<std::int32_t>& tokens, DropoutDraws* draws,
                    MergeTable::Scratch& scratch) const {
    if (text.empty()) return;
    std::vector<int> ids;
    require(processor_.Encode(text, &ids));
    if (draws == nullptr) {
      tokens.insert(tokens.end(), ids.begin(), ids.end());
      return;
    }
    // The library's SampleEncode() draws from a generator per thread that is seeded once, when the thread first draws: neither
    // thread nor history may matter here. So its tokens only give the normalised text, which is merged again.
    std::vector<std::int32_t> symbols;
    for (const int id : ids) split(id, symbols);
    merges_.merge(symbols, scratch, draws);
    tokens.insert(tokens.end(), symbols.begin(), symbols.end());
  }

  // Into the tokens of the characters that it was merged from.
  void split(std::int32_t token, std::vector<std::int32_t>& symbols) const {
    const SentencepieceModel::Piece& piece = model_.pieces[static_cast<std::size_t>(token)];
    if (piece.kind != PieceKind::normal) {
      symbols.push_back(token);
      return;
    }
    const std::size_t before = symbols.size();
    for (std::size_t at = 0; at < piece.text.size();) {
      const std::size_t length = length_by_first_byte(piece.text[at]);
      const auto found = numbers_.find(piece.text.substr(at, length));
      if (found == numbers_.end()) {  // a character that is in the vocabulary only within pieces
        symbols.resize(before);
        symbols.push_back(token);
        return;
      }
      symbols.push_back(found->second);
      at += length;
    }
  }

  void spell(std::string_view text, std::vector<std::int32_t>& tokens) const {
    for (const char c : text) tokens.push_back(bytes_of_[static_cast<unsigned char>(c)]);
  }

  static void require(const sp::util::Status& status) {
    if (!status.ok()) fail(ErrorKind::internal, "sentencepiece: {}", status.message());
  }

  std::string bytes_;
  SentencepieceModel model_;
  sp::SentencePieceProcessor processor_;
  std::int32_t end_of_text_ = 0;
  bool by_line_ = false;
  std::vector<std::string> texts_;  // by token: what it decodes to, in an exact model
  std::array<std::int32_t, byte_pieces> bytes_of_{};
  std::unordered_map<std::string, std::int32_t> numbers_;  // numbers of normal pieces
  MergeTable merges_;
};

// Feeds the trainer the lines of documents, cut so that none is longer than it takes.
class Lines final : public sp::SentenceIterator {
 public:
  void add(std::string_view document) {
    while (!document.empty()) {
      const std::size_t line = std::min(document.find('\n'), document.size());
      if (line > 0) add_line(document.substr(0, line));
      document.remove_prefix(std::min(line + 1, document.size()));
    }
  }
  bool empty() const { return lines_.empty(); }

  bool done() const override { return next_ == lines_.size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return lines_[next_]; }
  sp::util::Status status() const override { return {}; }

 private:
  void add_line(std::string_view line) {
    constexpr std::size_t longest = 4000;  // the trainer leaves out what is longer than 4192 bytes
    while (line.size() > longest) {
      std::size_t cut = line.rfind(' ', longest);
      if (cut == std::string_view::npos || cut == 0) {
        cut = longest;
        while ((static_cast<unsigned char>(line[cut]) & 0xC0U) == 0x80U) --cut;  // not within a character
      }
      lines_.emplace_back(line.substr(0, cut));
      line.remove_prefix(cut);
    }
    lines_.emplace_back(line);
  }

  std::vector<std::string> lines_;
  std::size_t next_ = 0;
};

// The trainer's reason, without the file and line of its source that stand in front.
std::string reason(const sp::util::Status& status) {
  const std::string message = status.message();
  const std::size_t bracket = message.rfind("] ");
  const std::size_t begin = bracket == std::string::npos ? 0 : bracket + 2;
  // It goes on with advice that names options of its own program.
  const std::size_t advice = message.find(". Increase ", begin);
  return message.substr(begin, advice == std::string::npos ? advice : advice - begin);
}

}  // namespace

std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view body, std::string_view name) {
  return std::make_unique<SentencepieceTokenizer>(body, name);
}

std::unique_ptr<Tokenizer> train_tokenizer(const TextInput& input, std::size_t vocabulary) {
  constexpr std::size_t special = 2;  // unknown, end of text
  constexpr std::size_t largest = 1U << 20U;
  if (vocabulary <= byte_pieces + special || vocabulary > largest) {
    fail(ErrorKind::usage,
         "a vocabulary of {} tokens is impossible; expected {} (256 bytes, 2 special ones, and characters) to {}", vocabulary,
         byte_pieces + special + 1, largest);
  }
  Lines lines;
  for_each_document(input, [&](const Document& document) { lines.add(document.text); });
  if (lines.empty()) fail(ErrorKind::data, "there is no text in '{}'", fmt::join(input.files, "', '"));
  const std::unordered_map<std::string, std::string> settings{
      {"model_type", "bpe"},
      {"vocab_size", fmt::format("{}", vocabulary)},
      {"character_coverage", "0.9995"},
      {"byte_fallback", "true"},
      {"normalization_rule_name", "identity"},
      {"add_dummy_prefix", "false"},
      {"remove_extra_whitespaces", "false"},
      {"unk_id", "0"},
      {"eos_id", "1"},
      {"bos_id", "-1"},
      {"pad_id", "-1"},
      {"num_threads", "1"},
      {"minloglevel", "4"},  // above "fatal": nothing is printed
  };
  std::string model;
  const sp::util::Status status = sp::SentencePieceTrainer::Train(settings, &lines, &model);
  if (!status.ok())
    fail(ErrorKind::usage, "a vocabulary of {} tokens is impossible for this text: {}", vocabulary, reason(status));
  return parse_sentencepiece(model, "the trained tokenizer");
}

}  // namespace bitloom::data
