#include "core/protobuf.h"

#include <bit>

namespace bitloom {
namespace {

// Wire types.
constexpr unsigned wire_varint = 0, wire_64 = 1, wire_length = 2, wire_32 = 5;

}  // namespace

void ProtoMessage::varint(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7U) bytes_ += static_cast<char>((value & 0x7FU) | 0x80U);
  bytes_ += static_cast<char>(value);
}

void ProtoMessage::integer(unsigned field, std::int64_t value) {
  varint(field << 3U | wire_varint);
  varint(static_cast<std::uint64_t>(value));
}

void ProtoMessage::open(unsigned field, std::uint64_t bytes) {
  varint(field << 3U | wire_length);
  varint(bytes);
}

void ProtoMessage::text(unsigned field, std::string_view value) {
  open(field, value.size());
  bytes_ += value;
}

void ProtoMessage::fixed(std::uint64_t value, unsigned bytes) {
  for (unsigned i = 0; i < bytes; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xFFU);
}

void ProtoMessage::real32(unsigned field, float value) {
  varint(field << 3U | wire_32);
  fixed(std::bit_cast<std::uint32_t>(value), 4);
}

void ProtoMessage::real64(unsigned field, double value) {
  varint(field << 3U | wire_64);
  fixed(std::bit_cast<std::uint64_t>(value), 8);
}

}  // namespace bitloom
