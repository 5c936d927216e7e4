#include "core/gguf.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "core/error.h"
#include "core/file.h"
#include "core/half.h"

namespace bitloom {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and numbers are copied as they are");

constexpr std::string_view gguf_magic = "GGUF";
constexpr std::uint32_t gguf_version = 3;
constexpr std::uint64_t gguf_alignment = 32;  // the format's default: no key has to name it
constexpr std::uint32_t array_number = 9;     // the type of a value that is an array
constexpr float largest_f16 = 65504;
constexpr float largest_integer = 127;  // of q8_0

constexpr std::array all_gguf_types = {GgufType::f32, GgufType::f16, GgufType::q8_0};

std::uint64_t padded(std::uint64_t bytes) { return (bytes + gguf_alignment - 1) / gguf_alignment * gguf_alignment; }

// Bytes of `count` elements, which are whole blocks.
std::uint64_t bytes_of(GgufType type, std::uint64_t count) {
  switch (type) {
    case GgufType::f32: return count * sizeof(float);
    case GgufType::f16: return count * sizeof(f16);
    case GgufType::q8_0: return count / q8_0_block * (sizeof(f16) + q8_0_block);
  }
  fail(ErrorKind::internal, "there is no GGUF type {}", static_cast<std::uint32_t>(type));
}

std::uint64_t elements_of(const std::vector<std::size_t>& shape) {
  std::uint64_t count = 1;
  for (const std::size_t length : shape) count *= length;
  return count;
}

template <typename T>
void put_number(std::string& bytes, T number) {
  char copy[sizeof number];
  std::memcpy(copy, &number, sizeof number);
  bytes.append(copy, sizeof number);
}

void put_string(std::string& bytes, std::string_view text) {
  put_number<std::uint64_t>(bytes, text.size());
  bytes += text;
}

// Number of a value's type, or of an array's elements.
template <typename T>
constexpr std::uint32_t type_number() {
  if constexpr (std::is_same_v<T, std::uint8_t>) return 0;
  if constexpr (std::is_same_v<T, std::uint32_t>) return 4;
  if constexpr (std::is_same_v<T, std::int32_t>) return 5;
  if constexpr (std::is_same_v<T, float>) return 6;
  if constexpr (std::is_same_v<T, bool>) return 7;
  return 8;  // a string
}

template <typename T>
void put_plain(std::string& bytes, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    put_string(bytes, value);
  } else {
    put_number(bytes, value);
  }
}

template <typename T>
void put_value(std::string& bytes, const T& value) {
  put_number(bytes, type_number<T>());
  put_plain(bytes, value);
}

template <typename T>
void put_value(std::string& bytes, const std::vector<T>& values) {
  put_number(bytes, array_number);
  put_number(bytes, type_number<T>());
  put_number<std::uint64_t>(bytes, values.size());
  for (const T& value : values) put_plain(bytes, value);
}

void put_f16(std::vector<std::byte>& bytes, float value) {
  if (!(std::abs(value) <= largest_f16)) {
    fail(ErrorKind::data, "{} has no f16; expected numbers of at most {} in size", value, largest_f16);
  }
  const auto halves = std::bit_cast<std::array<std::byte, sizeof(f16)>>(to_f16(value));
  bytes.insert(bytes.end(), halves.begin(), halves.end());
}

void put_q8_0(std::vector<std::byte>& bytes, std::span<const float> block) {
  float largest = 0;
  for (const float value : block) {
    // NaN, which no comparison finds.
    if (!std::isfinite(value)) fail(ErrorKind::data, "{} is not finite; expected finite numbers", value);
    largest = std::max(largest, std::abs(value));
  }
  const float scale = largest / largest_integer;
  const float inverse = scale == 0 ? 0 : 1 / scale;
  put_f16(bytes, scale);
  for (const float value : block) {
    // A scale so small that its inverse overflows: ggml leaves what becomes of it to the conversion, here it is the end of the
    // range.
    const float rounded = std::clamp(std::round(value * inverse), -largest_integer, largest_integer);
    bytes.push_back(static_cast<std::byte>(static_cast<std::int8_t>(std::isnan(rounded) ? 0 : rounded)));
  }
}

}  // namespace

std::span<const GgufType> gguf_types() { return all_gguf_types; }

std::string_view gguf_type_name(GgufType type) {
  switch (type) {
    case GgufType::f32: return "f32";
    case GgufType::f16: return "f16";
    case GgufType::q8_0: return "q8_0";
  }
  fail(ErrorKind::internal, "there is no GGUF type {}", static_cast<std::uint32_t>(type));
}

std::vector<std::byte> to_gguf(GgufType type, std::span<const float> values) {
  std::vector<std::byte> bytes;
  bytes.reserve(bytes_of(type, values.size()));
  if (type == GgufType::f32) {
    const auto same = std::as_bytes(values);
    bytes.assign(same.begin(), same.end());
  } else if (type == GgufType::f16) {
    for (const float value : values) put_f16(bytes, value);
  } else {
    for (std::size_t at = 0; at < values.size(); at += q8_0_block) put_q8_0(bytes, values.subspan(at, q8_0_block));
  }
  return bytes;
}

void GgufFile::set(std::string key, Value value) {
  if (std::ranges::count(keys_, key, &std::pair<std::string, Value>::first) > 0) {
    fail(ErrorKind::internal, "the key '{}' twice in a GGUF file", key);
  }
  keys_.emplace_back(std::move(key), std::move(value));
}

void GgufFile::add(std::string name, GgufType type, std::vector<std::size_t> shape,
                   std::function<std::vector<float>()> values) {
  if (std::ranges::count(tensors_, name, &Item::name) > 0) {
    fail(ErrorKind::internal, "the tensor '{}' twice in a GGUF file", name);
  }
  if (shape.empty() || (type == GgufType::q8_0 && shape.back() % q8_0_block != 0)) {
    fail(ErrorKind::internal, "the tensor '{}' of shape [{}] cannot have the type {}", name, fmt::join(shape, ", "),
         gguf_type_name(type));
  }
  tensors_.push_back({std::move(name), type, std::move(shape), std::move(values)});
}

std::string GgufFile::header() const {
  std::string bytes(gguf_magic);
  put_number(bytes, gguf_version);
  put_number<std::uint64_t>(bytes, tensors_.size());
  put_number<std::uint64_t>(bytes, keys_.size());
  for (const auto& [key, value] : keys_) {
    put_string(bytes, key);
    std::visit([&bytes](const auto& held) { put_value(bytes, held); }, value);
  }
  std::uint64_t place = 0;  // behind the header
  for (const Item& tensor : tensors_) {
    put_string(bytes, tensor.name);
    put_number(bytes, static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto length = tensor.shape.rbegin(); length != tensor.shape.rend(); ++length) {
      put_number<std::uint64_t>(bytes, *length);
    }
    put_number(bytes, static_cast<std::uint32_t>(tensor.type));
    put_number(bytes, place);
    place += padded(bytes_of(tensor.type, elements_of(tensor.shape)));
  }
  bytes.resize(padded(bytes.size()), '\0');
  return bytes;
}

void GgufFile::save(const std::filesystem::path& path) const {
  write_atomically(path, [&](const TakeBytes& take) {
    take(std::as_bytes(std::span<const char>(header())));
    for (const Item& tensor : tensors_) {
      const std::vector<float> values = tensor.values();
      if (values.size() != elements_of(tensor.shape)) {
        fail(ErrorKind::internal, "the tensor '{}' of shape [{}] was given {} elements", tensor.name,
             fmt::join(tensor.shape, ", "), values.size());
      }
      std::vector<std::byte> bytes;
      try {
        bytes = to_gguf(tensor.type, values);
      } catch (const Error& error) {
        fail(error.kind(), "the tensor '{}': {}", tensor.name, error.what());
      }
      bytes.resize(padded(bytes.size()));
      take(bytes);
    }
  });
}

}  // namespace bitloom
