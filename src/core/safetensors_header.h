// The header of a safetensors file: its words, the table of element types, and what has to be true of a header that anybody may
// have written. Private to safetensors.cpp.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/safetensors.h"

namespace bitloom {

inline constexpr std::string_view metadata_key = "__metadata__";
inline constexpr std::string_view dtype_key = "bitloom.dtype.";          // and a tensor's name
inline constexpr std::size_t length_bytes = 8;                           // bytes of the header length
inline constexpr std::uint64_t largest_header = std::uint64_t{1} << 27;  // the reference implementation stops at 100 MB

// The format's name for elements of that size, where it has none for these; "": it has one.
std::string_view stored_as(DType dtype);

// The bytes of a tensor, or nothing if that does not fit a size.
std::optional<std::size_t> byte_count(DType dtype, const std::vector<std::size_t>& shape);

// Reads the header of a file of `size` bytes, of which `bytes` are the first: all that the header should have, if there are as
// many. `name_` stands for the file in messages.
class HeaderParser {
 public:
  HeaderParser(std::span<const std::byte> bytes, std::uint64_t size, std::string_view name)
      : bytes_(bytes), size_(size), name_(name) {}
  HeaderParser(std::span<const std::byte> bytes, std::string_view name) : HeaderParser(bytes, bytes.size(), name) {}

  // Fills `metadata`, and calls take(name, dtype, shape, begin, end) for every tensor, with its place in the file.
  using Take = std::function<void(const std::string& name, DType dtype, const std::vector<std::size_t>& shape,
                                  std::uint64_t begin, std::uint64_t end)>;
  void parse(std::map<std::string, std::string>& metadata, const Take& take);

  template <typename... Args>
  [[noreturn]] void damaged(fmt::format_string<Args...> reason, Args&&... args) const {
    fail(ErrorKind::data, "'{}' is not a good safetensors file: {}", name_, fmt::format(reason, std::forward<Args>(args)...));
  }

 private:
  struct Entry {
    std::string name;
    DType dtype;
    std::vector<std::size_t> shape;
    std::size_t begin;
    std::size_t end;
  };

  nlohmann::json parse_header();
  void parse_metadata(const nlohmann::json& value, std::map<std::string, std::string>& metadata) const;
  void parse_entry(const std::string& name, const nlohmann::json& value);
  void name_types(std::map<std::string, std::string>& metadata);
  const nlohmann::json& member(const std::string& name, const nlohmann::json& value, const char* key) const;
  std::vector<std::size_t> sizes(const std::string& name, const nlohmann::json& value, const char* key) const;
  void check_coverage();

  std::span<const std::byte> bytes_;
  std::uint64_t size_;
  std::string_view name_;
  std::uint64_t data_begin_ = 0, data_size_ = 0;  // start of the offsets
  std::vector<Entry> entries_;
};

}  // namespace bitloom
