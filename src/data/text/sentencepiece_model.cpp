#include "data/text/sentencepiece_model.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <unordered_map>

#include "core/error.h"
#include "core/text.h"

namespace bitloom::data {
namespace {

// One field of a message: a number (also a float's bits) or bytes, whichever the file holds.
struct Field {
  std::uint64_t number = 0;
  std::uint64_t value = 0;
  std::string_view bytes;

  bool flag() const { return value != 0; }
};

// The fields of a message, one after the other.
class Message {
 public:
  Message(std::string_view bytes, std::string_view name) : rest_(bytes), name_(name) {}

  // False at the end.
  bool next(Field& field) {
    if (rest_.empty()) return false;
    const std::uint64_t tag = varint();
    field = {tag >> 3U, 0, {}};
    switch (tag & 7U) {
      case 0: field.value = varint(); break;
      case 1: field.value = fixed(8); break;
      case 2: field.bytes = take(varint()); break;
      case 5: field.value = fixed(4); break;
      default: damaged();
    }
    return true;
  }

  [[noreturn]] void damaged() const { fail(ErrorKind::data, "'{}' is no good sentencepiece model: it is damaged", name_); }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1).front());
      value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
      if (byte < 0x80) return value;
    }
    damaged();
  }

  std::uint64_t fixed(std::size_t size) {
    std::uint64_t value = 0;
    std::memcpy(&value, take(size).data(), size);
    return value;
  }

  std::string_view take(std::uint64_t size) {
    if (size > rest_.size()) damaged();
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_;
  std::string_view name_;
};

SentencepieceModel::Piece read_piece(std::string_view bytes, std::string_view name) {
  SentencepieceModel::Piece piece;
  Message message(bytes, name);
  for (Field field; message.next(field);) {
    if (field.number == 1) {
      if (!is_utf8(field.bytes)) message.damaged();
      piece.text = field.bytes;
    }
    if (field.number == 2) std::memcpy(&piece.score, &field.value, sizeof piece.score);
    if (field.number == 3) {
      if (field.value < 1 || field.value > 6) message.damaged();
      piece.kind = static_cast<SentencepieceModel::PieceKind>(field.value);
    }
  }
  return piece;
}

}  // namespace

std::size_t length_by_first_byte(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

std::vector<PieceMerge> piece_merges(const SentencepieceModel& model) {
  std::vector<PieceMerge> merges;
  if (model.kind != SentencepieceModel::Kind::bpe) return merges;
  std::unordered_map<std::string_view, std::size_t> numbers;
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    if (model.pieces[i].kind == SentencepieceModel::PieceKind::normal) numbers.emplace(model.pieces[i].text, i);
  }
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const std::string_view text = model.pieces[i].text;
    if (model.pieces[i].kind != SentencepieceModel::PieceKind::normal || text.empty()) continue;
    for (std::size_t cut = length_by_first_byte(text[0]); cut < text.size(); cut += length_by_first_byte(text[cut])) {
      const auto left = numbers.find(text.substr(0, cut));
      const auto right = numbers.find(text.substr(cut));
      if (left != numbers.end() && right != numbers.end()) merges.push_back({left->second, right->second, i});
    }
  }
  std::ranges::stable_sort(merges, std::greater(), [&](const PieceMerge& merge) { return model.pieces[merge.whole].score; });
  return merges;
}

SentencepieceModel read_sentencepiece_model(std::string_view bytes, std::string_view name) {
  SentencepieceModel model;
  Message message(bytes, name);
  for (Field field; message.next(field);) {
    Message inner(field.bytes, name);
    if (field.number == 1) model.pieces.push_back(read_piece(field.bytes, name));
    if (field.number == 2) {  // how it was trained
      for (Field spec; inner.next(spec);) {
        if (spec.number == 3) {
          if (spec.value < 1 || spec.value > 4) message.damaged();
          model.kind = static_cast<SentencepieceModel::Kind>(spec.value);
        }
        if (spec.number == 24) model.treat_whitespace_as_suffix = spec.flag();
        if (spec.number == 35) model.byte_fallback = spec.flag();
      }
    }
    if (field.number == 3) {  // how text is normalised
      for (Field spec; inner.next(spec);) {
        if (spec.number == 1) model.normalizer = spec.bytes;
        if (spec.number == 2) model.charsmap = spec.bytes;
        if (spec.number == 3) model.add_dummy_prefix = spec.flag();
        if (spec.number == 4) model.remove_extra_whitespaces = spec.flag();
        if (spec.number == 5) model.escape_whitespaces = spec.flag();
      }
    }
  }
  if (model.pieces.empty()) fail(ErrorKind::data, "'{}' is no sentencepiece model: it has no pieces", name);
  return model;
}

}  // namespace bitloom::data
