#include "data/text/hugging_face_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/file.h"
#include "core/text.h"
#include "data/text/gpt2_files.h"
#include "data/text/sentencepiece_model.h"
#include "data/text/tokenizer_tables.h"

namespace bitloom::data {
namespace {

using HfJson = nlohmann::json;
using HfPiece = SentencepieceModel::Piece;
using HfPieceKind = SentencepieceModel::PieceKind;

constexpr const char* space_piece = "\xE2\x96\x81";  // U+2581, which stands for a space in pieces

HfJson added_token(std::size_t number, const std::string& text) {
  return {{"id", number},    {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

// The keys of tokenizer.json; those that are not given are null.
HfJson tokenizer_json(HfJson added, HfJson normalizer, HfJson pre_tokenizer, HfJson decoder, HfJson model) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added)},
          {"normalizer", std::move(normalizer)},
          {"pre_tokenizer", std::move(pre_tokenizer)},
          {"post_processor", nullptr},
          {"decoder", std::move(decoder)},
          {"model", std::move(model)}};
}

HfJson bpe_model(const std::vector<std::string>& tokens, const std::vector<std::string>& merges, const HfJson& unknown,
                 bool byte_fallback) {
  HfJson vocabulary = HfJson::object();
  for (std::size_t i = 0; i < tokens.size(); ++i) vocabulary[tokens[i]] = i;
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", unknown},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", true},
          {"byte_fallback", byte_fallback},
          {"ignore_merges", false},
          {"vocab", std::move(vocabulary)},
          {"merges", merges}};
}

HfJson byte_level_json(const ByteLevelTables& tables) {
  HfJson added = HfJson::array();
  for (std::size_t i = 0; i < tables.tokens.size(); ++i) {
    if (tables.is_added[i]) added.push_back(added_token(i, tables.tokens[i]));
  }
  const auto step = [](bool cuts_words) -> HfJson {
    return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", cuts_words}};
  };
  return tokenizer_json(added, nullptr, step(!tables.merges.empty()), step(true),
                        bpe_model(tables.tokens, tables.merges, nullptr, false));
}

// --- sentencepiece ---

std::string reason_against(const SentencepieceModel& model) {
  using enum SentencepieceModel::Kind;
  if (model.kind != bpe && model.kind != unigram) return "its model is neither of type bpe nor unigram";
  if (!model.escape_whitespaces) return "its pieces have spaces (escape_whitespaces is false)";
  if (model.treat_whitespace_as_suffix) return "it has spaces behind words (treat_whitespace_as_suffix is true)";
  for (const HfPiece& piece : model.pieces) {
    if (piece.kind == HfPieceKind::user_defined) return "it has pieces that its user defined, such as '" + piece.text + "'";
    if (piece.kind == HfPieceKind::unused) return "it has pieces that are not used, such as '" + piece.text + "'";
  }
  return "";
}

HfJson replacement(const HfJson& replaced, const char* by) {
  return {{"type", "Replace"}, {"pattern", replaced}, {"content", by}};
}

// In the order in which sentencepiece's Normalizer does it.
HfJson sentencepiece_normalizer(const SentencepieceModel& model) {
  HfJson list = HfJson::array();
  if (!model.charsmap.empty()) {
    list.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", base64(model.charsmap)}});
  }
  if (model.remove_extra_whitespaces) {
    // Not {"type": "Strip"}, which takes line ends, too.
    list.push_back(replacement({{"Regex", "\\A +| +\\z"}}, ""));
    list.push_back(replacement({{"Regex", " {2,}"}}, " "));
  }
  if (model.add_dummy_prefix) list.push_back({{"type", "Prepend"}, {"prepend", space_piece}});
  list.push_back(replacement({{"String", " "}}, space_piece));
  return {{"type", "Sequence"}, {"normalizers", std::move(list)}};
}

HfJson sentencepiece_decoder(const SentencepieceModel& model) {
  HfJson list = HfJson::array({replacement({{"String", space_piece}}, " ")});
  if (model.byte_fallback) list.push_back({{"type", "ByteFallback"}});
  list.push_back({{"type", "Fuse"}});
  if (model.add_dummy_prefix) list.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", std::move(list)}};
}

HfJson unigram_model(const SentencepieceModel& model, std::size_t unknown) {
  HfJson pieces = HfJson::array();
  for (const HfPiece& piece : model.pieces) pieces.push_back({piece.text, piece.score});
  return {{"type", "Unigram"}, {"unk_id", unknown}, {"vocab", std::move(pieces)}, {"byte_fallback", model.byte_fallback}};
}

HfJson merge_model(const SentencepieceModel& model, std::size_t unknown) {
  std::vector<std::string> tokens;
  for (const HfPiece& piece : model.pieces) tokens.push_back(piece.text);
  std::vector<std::string> merges;
  for (const PieceMerge& merge : piece_merges(model)) merges.push_back(tokens[merge.left] + " " + tokens[merge.right]);
  return bpe_model(tokens, merges, tokens[unknown], model.byte_fallback);
}

HfJson sentencepiece_json(const SentencepieceModel& model, std::size_t unknown) {
  HfJson added = HfJson::array();
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const HfPiece& piece = model.pieces[i];
    if (i == unknown || piece.kind == HfPieceKind::control) added.push_back(added_token(i, piece.text));
  }
  return tokenizer_json(
      added, sentencepiece_normalizer(model), nullptr, sentencepiece_decoder(model),
      model.kind == SentencepieceModel::Kind::bpe ? merge_model(model, unknown) : unigram_model(model, unknown));
}

// --- folders ---

class TokenizerFolder {
 public:
  TokenizerFolder(std::filesystem::path folder, std::size_t context) : folder_(std::move(folder)), context_(context) {}

  void write(const char* name, const std::string& text) {
    write_atomically(folder_ / name, text);
    written_.files.emplace_back(name);
  }

  // end: spelling of the end of text. unknown: that of the token for what has none; null: none.
  void write_json(const HfJson& json, const std::string& end, const HfJson& unknown) {
    HfJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                     {"bos_token", end},
                     {"eos_token", end},
                     {"clean_up_tokenization_spaces", false},
                     {"model_max_length", context_}};
    if (!unknown.is_null()) config["unk_token"] = unknown;
    write("tokenizer.json", json.dump() + "\n");
    write("tokenizer_config.json", config.dump(2) + "\n");
  }

  void write_byte_level(const Tokenizer& tokenizer) {
    if (tokenizer.kind() == "gpt2") {
      write_gpt2_files(tokenizer, folder_);
      written_.files = {"vocab.json", "merges.txt"};
    }
    const ByteLevelTables tables = byte_level_tables(tokenizer);
    write_json(byte_level_json(tables), tables.tokens.at(static_cast<std::size_t>(tokenizer.end_of_text())), nullptr);
  }

  void write_sentencepiece(const Tokenizer& tokenizer) {
    const std::string file = sentencepiece_file(tokenizer);
    write("tokenizer.model", file);
    const SentencepieceModel model = read_sentencepiece_model(file, "tokenizer.model");
    written_.reason = reason_against(model);
    if (!written_.reason.empty()) return;
    const auto unknown = std::ranges::find(model.pieces, HfPieceKind::unknown, &HfPiece::kind);  // its library insists on one
    write_json(sentencepiece_json(model, static_cast<std::size_t>(unknown - model.pieces.begin())),
               model.pieces.at(static_cast<std::size_t>(tokenizer.end_of_text())).text, unknown->text);
  }

  const WrittenTokenizer& written() const { return written_; }

 private:
  std::filesystem::path folder_;
  std::size_t context_;
  WrittenTokenizer written_;
};

}  // namespace

WrittenTokenizer write_hugging_face_tokenizer(const Tokenizer& tokenizer, std::size_t context,
                                              const std::filesystem::path& folder) {
  TokenizerFolder files(folder, context);
  if (is_byte_level(tokenizer)) {
    files.write_byte_level(tokenizer);
  } else {
    files.write_sentencepiece(tokenizer);
  }
  return files.written();
}

}  // namespace bitloom::data
