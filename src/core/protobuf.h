// Writes messages of Protocol Buffers, field by field: https://protobuf.dev/programming-guides/encoding. What reads them has
// their descriptions; whoever writes one keeps its field numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace bitloom {

// Fields are in the order of the calls; repeating one makes a list.
class ProtoMessage {
 public:
  void integer(unsigned field, std::int64_t value);
  void real32(unsigned field, float value);
  void real64(unsigned field, double value);
  void text(unsigned field, std::string_view value);  // also bytes
  void message(unsigned field, const ProtoMessage& value) { text(field, value.bytes_); }
  void append(const ProtoMessage& fields) { bytes_ += fields.bytes_; }
  // Writes the number and length of a text or message, whose bytes come next, from elsewhere.
  void open(unsigned field, std::uint64_t bytes);
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(std::uint64_t value);
  void fixed(std::uint64_t value, unsigned bytes);

  std::string bytes_;
};

}  // namespace bitloom
