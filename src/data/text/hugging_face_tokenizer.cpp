#include "data/text/hugging_face_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
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

// Contents of tokenizer.json, and what tokenizer_config.json repeats of them.
struct HfTokenizer {
  TokenizerJson file;
  std::string end;      // spelling of the end of text
  std::string unknown;  // that of the token for what has none; "": there is none
};

HfTokenizer byte_level_tokenizer(const Tokenizer& tokenizer) {
  const ByteLevelTables tables = byte_level_tables(tokenizer);
  return {{byte_level_json(tables).dump() + "\n", ""}, tables.tokens.at(static_cast<std::size_t>(tokenizer.end_of_text())), ""};
}

HfTokenizer sentencepiece_tokenizer(const Tokenizer& tokenizer) {
  const SentencepieceModel model = read_sentencepiece_model(sentencepiece_file(tokenizer), "tokenizer.model");
  std::string reason = reason_against(model);
  if (!reason.empty()) return {{"", std::move(reason)}, "", ""};
  const auto unknown = std::ranges::find(model.pieces, HfPieceKind::unknown, &HfPiece::kind);  // its library insists on one
  const HfJson json = sentencepiece_json(model, static_cast<std::size_t>(unknown - model.pieces.begin()));
  return {{json.dump() + "\n", ""}, model.pieces.at(static_cast<std::size_t>(tokenizer.end_of_text())).text, unknown->text};
}

HfTokenizer hf_tokenizer(const Tokenizer& tokenizer) {
  return is_byte_level(tokenizer) ? byte_level_tokenizer(tokenizer) : sentencepiece_tokenizer(tokenizer);
}

}  // namespace

TokenizerJson hugging_face_json(const Tokenizer& tokenizer) { return hf_tokenizer(tokenizer).file; }

WrittenTokenizer write_hugging_face_tokenizer(const Tokenizer& tokenizer, std::size_t context,
                                              const std::filesystem::path& folder) {
  WrittenTokenizer written;
  const auto write = [&](const char* name, const std::string& text) {
    write_atomically(folder / name, text);
    written.files.emplace_back(name);
  };
  if (tokenizer.kind() == "gpt2") {
    write_gpt2_files(tokenizer, folder);
    written.files = {"vocab.json", "merges.txt"};
  } else if (!is_byte_level(tokenizer)) {
    write("tokenizer.model", sentencepiece_file(tokenizer));
  }
  const HfTokenizer made = hf_tokenizer(tokenizer);
  written.reason = made.file.reason;
  if (!written.reason.empty()) return written;
  HfJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"bos_token", made.end},
                   {"eos_token", made.end},
                   {"clean_up_tokenization_spaces", false},
                   {"model_max_length", context}};
  if (!made.unknown.empty()) config["unk_token"] = made.unknown;
  write("tokenizer.json", made.file.text);
  write("tokenizer_config.json", config.dump(2) + "\n");
  return written;
}

std::vector<std::filesystem::path> other_tokenizer_files(const WrittenTokenizer& written, const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> others;
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer.model", "tokenizer.json", "tokenizer_config.json"}) {
    if (std::ranges::count(written.files, name) == 0 && std::filesystem::exists(folder / name)) others.push_back(folder / name);
  }
  return others;
}

}  // namespace bitloom::data
