// Properties of a sentencepiece model file that its library keeps from its users: the kind of model, the kind
// of every piece, the treatment of spaces. The fields are those of sentencepiece_model.proto, read as protocol buffers
// (protobuf.dev/programming-guides/encoding).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace bitloom::data {

struct SentencepieceModel {
  // The numbers of sentencepiece_model.proto.
  enum class Kind { unigram = 1, bpe = 2, word = 3, character = 4 };
  enum class PieceKind { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    PieceKind kind = PieceKind::normal;
  };

  Kind kind = Kind::unigram;
  std::vector<Piece> pieces;
  bool byte_fallback = false;
  std::string normalizer;  // its name
  std::string charsmap;    // its rules, compiled (a Darts trie and the texts that it leads to); "": none
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool treat_whitespace_as_suffix = false;

  // Whether spaces, line ends and every character come back as they were.
  bool is_exact() const {
    return byte_fallback && escape_whitespaces && normalizer == "identity" && !add_dummy_prefix && !remove_extra_whitespaces;
  }
};

// Bytes of the UTF-8 character that begins with `first`.
std::size_t length_by_first_byte(char first);

// Two normal pieces of a byte-pair model that make a third, by their numbers.
struct PieceMerge {
  std::size_t left = 0, right = 0, whole = 0;
};
// All of them, in the order in which the model prefers them: by falling score of the third piece, then by its number, then with
// the shorter left piece first. None of models of other kinds.
std::vector<PieceMerge> piece_merges(const SentencepieceModel& model);

// Throws Error(data) that names `name`.
SentencepieceModel read_sentencepiece_model(std::string_view bytes, std::string_view name);

}  // namespace bitloom::data
