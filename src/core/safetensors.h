// Files of named tensors in the safetensors format (github.com/huggingface/safetensors, "Format"): 8 bytes of little-endian
// header length, a JSON header {name: {dtype, shape, data_offsets}, "__metadata__": {string: string}} padded with spaces to
// a multiple of 8, then the tensors' bytes, which the offsets cover without gap or overlap. The format has no names for numbers
// of core/narrow.h: they stand there as U16, and the metadata "bitloom.dtype.TENSOR" says what they are.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "core/file.h"
#include "core/half.h"
#include "core/narrow.h"

namespace bitloom {

enum class DType { u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, bf16, f16, f1_6_9, f0_6_10 };

std::string_view dtype_name(DType dtype);  // "U8" ... "F64", "BF16", "F16", "1-6-9", "0-6-10"
std::size_t dtype_size(DType dtype);       // bytes per element

// The types that a tensor's elements may have in memory.
template <typename T>
concept TensorElement = (std::integral<T> && !std::same_as<T, bool>) || std::same_as<T, float> || std::same_as<T, double> ||
                        std::same_as<T, bf16> || std::same_as<T, f16> || std::same_as<T, f1_6_9> || std::same_as<T, f0_6_10>;

template <TensorElement T>
constexpr DType dtype_of() {
  if constexpr (std::same_as<T, float>) return DType::f32;
  if constexpr (std::same_as<T, double>) return DType::f64;
  if constexpr (std::same_as<T, bf16>) return DType::bf16;
  if constexpr (std::same_as<T, f16>) return DType::f16;
  if constexpr (std::same_as<T, f1_6_9>) return DType::f1_6_9;
  if constexpr (std::same_as<T, f0_6_10>) return DType::f0_6_10;
  constexpr bool is_signed = std::is_signed_v<T>;
  if constexpr (sizeof(T) == 1) return is_signed ? DType::i8 : DType::u8;
  if constexpr (sizeof(T) == 2) return is_signed ? DType::i16 : DType::u16;
  if constexpr (sizeof(T) == 4) return is_signed ? DType::i32 : DType::u32;
  return is_signed ? DType::i64 : DType::u64;
}

// A dense row-major array. An empty shape is a scalar (one element); a zero in the shape makes it empty.
struct Tensor {
  DType dtype = DType::u8;
  std::vector<std::size_t> shape;
  Buffer<std::byte> bytes;  // 64-byte aligned, so that it may be viewed as any element type

  // The number of elements.
  std::size_t size() const { return bytes.size() / dtype_size(dtype); }
  // The elements. Throws a data error if the tensor holds another type.
  template <TensorElement T>
  std::span<const T> as() const {
    require_dtype(dtype_of<T>());
    return {reinterpret_cast<const T*>(bytes.data()), size()};
  }

 private:
  void require_dtype(DType wanted) const;
};

// A tensor whose bytes need not be in memory at once.
struct StreamedTensor {
  DType dtype = DType::u8;
  std::vector<std::size_t> shape;
  // Calls take(part) for all bytes, in order; asked for them once.
  std::function<void(const TakeBytes& take)> bytes;
};

// Whether a file without a checksum (written by another program) may be read.
enum class Checksum { if_present, required };

// Tensors that are read in pieces, from wherever they are.
class TensorSource {
 public:
  struct Description {
    DType dtype = DType::u8;
    std::vector<std::size_t> shape;
  };

  virtual ~TensorSource() = default;
  // Throws a data error that names the source and the tensor, and lists what is there.
  virtual Description describe(const std::string& name) const = 0;
  // Some of a tensor's bytes, from number `from` of them on. Throws an io error where they cannot be read.
  virtual void read(const std::string& name, std::uint64_t from, std::span<std::byte> bytes) const = 0;
  // All of a tensor. A data error names it, what it is and what was expected if its type or shape is another.
  Tensor read(const std::string& name, DType dtype, const std::vector<std::size_t>& shape) const;
};

class TensorFile final : public TensorSource {
 public:
  // Free-form strings about the content. The checksum that files carry is added by serialize(), verified and taken out
  // again by parse(), so it is never in here; nor is what files say about types that the format lacks.
  std::map<std::string, std::string> metadata;
  std::map<std::string, Tensor> tensors;

  // Adds or replaces a tensor: put("layer1.weights", {out_channels, patch_words}, words). `values` is any contiguous range
  // (std::vector, std::span, Buffer) with as many elements as the shape says, else an internal error.
  template <std::ranges::contiguous_range Range>
  requires TensorElement<std::ranges::range_value_t<Range>>
  void put(const std::string& name, std::vector<std::size_t> shape, const Range& values) {
    using T = std::ranges::range_value_t<Range>;
    const std::span<const T> elements(std::ranges::data(values), std::ranges::size(values));
    put_bytes(name, dtype_of<T>(), std::move(shape), std::as_bytes(elements));
  }

  // Bytes of no type that the format has, as numbers of 8 bits.
  void put_raw(const std::string& name, std::span<const std::byte> bytes) { put_bytes(name, DType::u8, {bytes.size()}, bytes); }

  bool contains(const std::string& name) const { return tensors.contains(name); }
  // Throws a data error that names the file and the tensor, and lists what is there.
  const Tensor& get(const std::string& name) const;
  // As get(), and checks the element type and the shape: a data error names the tensor, what it is and what was expected.
  const Tensor& get(const std::string& name, DType dtype, const std::vector<std::size_t>& shape) const;
  // A metadata value. Throws a data error that names the file and the key.
  const std::string& get_metadata(const std::string& key) const;

  // Its tensors, which have to stay where they are, as streams.
  std::map<std::string, StreamedTensor> streamed() const;
  Description describe(const std::string& name) const override;
  void read(const std::string& name, std::uint64_t from, std::span<std::byte> bytes) const override;
  using TensorSource::read;

  // The file's bytes, with the checksum "bitloom.xxh3" in its metadata: XXH3-128 over the names, element types, shapes and
  // bytes of all tensors, sorted by name, and over all other metadata.
  std::vector<std::byte> serialize() const;
  // The same bytes as a file, by write_atomically().
  void save(const std::filesystem::path& path) const;

  // Throws a data error that names the file and the reason for anything that is not a well-formed file of the types above,
  // for a checksum that does not match, and for a missing one if it is required.
  static TensorFile load(const std::filesystem::path& path, Checksum checksum = Checksum::if_present);
  // `name` stands for the file in error messages.
  static TensorFile parse(std::span<const std::byte> bytes, std::string_view name, Checksum checksum = Checksum::if_present);

 private:
  void put_bytes(const std::string& name, DType dtype, std::vector<std::size_t> shape, std::span<const std::byte> bytes);

  std::string source_ = "tensors in memory";  // where this came from, for error messages
};

// The file that a TensorFile of the same content would be, byte by byte. Asks for each tensor once, in the order of their
// names: the checksum is taken meanwhile, and the header that holds it written last. Throws Error(io), and Error(internal) for
// a tensor of another size than its shape.
void save_streamed(const std::filesystem::path& path, const std::map<std::string, std::string>& metadata,
                   const std::map<std::string, StreamedTensor>& tensors);

// A file whose header is in memory and whose elements are read piece by piece when they are asked for: for what may be larger
// than memory. It may be renamed or replaced meanwhile.
class TensorReader final : public TensorSource {
 public:
  // Reads all of it once, in pieces, for the checksum, and calls alive() after each. Throws what TensorFile::load() does, and
  // an io error if the device fails.
  static TensorReader open(const std::filesystem::path& path, Checksum checksum = Checksum::if_present,
                           const std::function<void()>& alive = nullptr);

  Description describe(const std::string& name) const override;
  void read(const std::string& name, std::uint64_t from, std::span<std::byte> bytes) const override;
  using TensorSource::read;
  bool contains(const std::string& name) const { return places_.contains(name); }
  // Throws a data error that names the file and the key.
  const std::string& get_metadata(const std::string& key) const;
  std::map<std::string, StreamedTensor> streamed() const;

  std::map<std::string, std::string> metadata;  // without the checksum

 private:
  struct Place {
    Description description;
    std::uint64_t begin = 0, end = 0;  // in the file
  };
  TensorReader(FileReader file, std::string source) : file_(std::move(file)), source_(std::move(source)) {}
  const Place& find(const std::string& name) const;

  FileReader file_;
  std::string source_;
  std::map<std::string, Place> places_;
};

// A file whose header is read and whose elements stay on disk until they are looked at: for what may be larger than memory.
// The checksum is not verified, which would read everything.
class TensorMapping {
 public:
  struct View {
    DType dtype = DType::u8;
    std::vector<std::size_t> shape;
    std::span<const std::byte> bytes;  // aligned to nothing
  };

  // The same data errors as TensorFile::load(), but for the checksum's.
  static TensorMapping open(const std::filesystem::path& path);

  std::map<std::string, std::string> metadata;  // without the checksum
  std::map<std::string, View> tensors;

 private:
  FileMapping file_;
};

}  // namespace bitloom
