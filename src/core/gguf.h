// Files in the GGUF format, version 3 (github.com/ggml-org/ggml, docs/gguf.md), which llama.cpp reads: the magic, the version,
// the numbers of tensors and of keys, the keys with their values, a description of every tensor, and, from a multiple of 32
// bytes on, the tensors, each padded to such a multiple. All numbers are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace bitloom {

// Types of a tensor's elements, with the numbers that ggml gives them. q8_0: blocks of 32 elements of a row, each an f16, the
// scale, and 32 integers of 8 bits.
enum class GgufType : std::uint32_t { f32 = 0, f16 = 1, q8_0 = 8 };

inline constexpr std::size_t q8_0_block = 32;  // elements

// Those above, in their order.
std::span<const GgufType> gguf_types();
std::string_view gguf_type_name(GgufType type);  // "f32", "f16", "q8_0"

// values: of whole rows, (rows,N) with N a multiple of the block for q8_0 -> their bytes in a file.
//   f16   to the nearest, ties to even
//   q8_0  as ggml's quantize_row_q8_0_ref(): scale = max|x| / 127, integers = x (1 / scale) to the nearest, ties away from 0,
//   with
//         the scale before it became an f16
// Throws Error(data) that names the value and what was expected for one that the type does not have: it is not finite, or too
// large for f16 (q8_0: for its scale).
std::vector<std::byte> to_gguf(GgufType type, std::span<const float> values);

class GgufFile {
 public:
  using Value = std::variant<bool, std::uint32_t, float, std::string, std::vector<std::uint8_t>, std::vector<std::int32_t>,
                             std::vector<float>, std::vector<std::string>>;

  // Keys stand in the file in the order of these calls, as tensors do. An existing key or tensor is an internal error.
  void set(std::string key, Value value);
  // shape: as everywhere here, the length of a row last (the file has it first). values: called once, by save(), for all of the
  // tensor. A row length that the type cannot divide into blocks is an internal error.
  void add(std::string name, GgufType type, std::vector<std::size_t> shape, std::function<std::vector<float>()> values);

  // One tensor at a time is in memory; written as by write_atomically(). Throws Error(io), and Error(data) as to_gguf() does,
  // with the tensor's name.
  void save(const std::filesystem::path& path) const;

 private:
  struct Item {
    std::string name;
    GgufType type;
    std::vector<std::size_t> shape;
    std::function<std::vector<float>()> values;
  };
  std::string header() const;

  std::vector<std::pair<std::string, Value>> keys_;
  std::vector<Item> tensors_;
};

}  // namespace bitloom
