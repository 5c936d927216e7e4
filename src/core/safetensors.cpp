#include "core/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"

namespace bitloom {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and tensors are copied as they are");

constexpr std::string_view metadata_key = "__metadata__";
constexpr std::string_view checksum_key = "bitloom.xxh3";
constexpr std::size_t length_bytes = 8;                           // bytes of the header length
constexpr std::uint64_t largest_header = std::uint64_t{1} << 27;  // the reference implementation stops at 100 MB

struct DTypeRow {
  std::string_view name;
  std::size_t size;
};
constexpr std::array<DTypeRow, 12> dtype_table = {{{"U8", 1},
                                                   {"I8", 1},
                                                   {"U16", 2},
                                                   {"I16", 2},
                                                   {"U32", 4},
                                                   {"I32", 4},
                                                   {"U64", 8},
                                                   {"I64", 8},
                                                   {"F32", 4},
                                                   {"F64", 8},
                                                   {"BF16", 2},
                                                   {"F16", 2}}};

std::optional<DType> dtype_named(std::string_view name) {
  const auto row = std::find_if(dtype_table.begin(), dtype_table.end(), [&](const DTypeRow& r) { return r.name == name; });
  if (row == dtype_table.end()) return std::nullopt;
  return static_cast<DType>(row - dtype_table.begin());
}

// The bytes of a tensor, or nothing if that does not fit a size.
std::optional<std::size_t> byte_count(DType dtype, const std::vector<std::size_t>& shape) {
  if (std::find(shape.begin(), shape.end(), std::size_t{0}) != shape.end()) return 0;
  std::size_t bytes = dtype_size(dtype);
  for (const std::size_t length : shape) {
    if (bytes > std::numeric_limits<std::size_t>::max() / length) return std::nullopt;
    bytes *= length;
  }
  return bytes;
}

// Reads one file; `name_` stands for it in messages.
class Parser {
 public:
  Parser(std::span<const std::byte> bytes, std::string_view name) : bytes_(bytes), name_(name) {}

  // Calls take(name, dtype, shape, bytes) for every tensor.
  template <typename Take>
  void parse(std::map<std::string, std::string>& metadata, Take&& take) {
    const nlohmann::json header = parse_header();
    if (!header.is_object()) damaged("the header is not a JSON object");
    for (const auto& [key, value] : header.items()) {
      if (key == metadata_key) {
        parse_metadata(value, metadata);
      } else {
        parse_entry(key, value);
      }
    }
    check_coverage();
    for (const Entry& entry : entries_) {
      take(entry.name, entry.dtype, entry.shape, data_.subspan(entry.begin, entry.end - entry.begin));
    }
  }

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

  nlohmann::json parse_header() {
    if (bytes_.size() < length_bytes) damaged("{} bytes are too few for a header length", bytes_.size());
    std::uint64_t length;
    std::memcpy(&length, bytes_.data(), length_bytes);
    const std::size_t rest = bytes_.size() - length_bytes;
    if (length > rest) damaged("the header should have {} bytes, but only {} follow", length, rest);
    if (length > largest_header) damaged("a header of {} bytes is too long (at most {})", length, largest_header);
    data_ = bytes_.subspan(length_bytes + length);
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + length_bytes, length);
    // The library keeps the last of two equal keys without a word, so they are counted here, one set per open object.
    std::vector<std::set<std::string>> keys;
    const auto check = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
      constexpr int deepest = 3;  // {"tensor": {"shape": [...]}}
      if (depth > deepest) damaged("the header is nested too deeply");
      using Event = nlohmann::json::parse_event_t;
      if (event == Event::object_start) keys.emplace_back();
      if (event == Event::object_end) keys.pop_back();
      if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second) {
        damaged("the name '{}' stands there twice", parsed.get<std::string>());
      }
      return true;
    };
    try {
      return nlohmann::json::parse(text, check);
    } catch (const nlohmann::json::exception& error) {
      damaged("the header is not valid JSON ({})", error.what());
    }
  }

  void parse_metadata(const nlohmann::json& value, std::map<std::string, std::string>& metadata) const {
    if (!value.is_object()) damaged("{} is not a JSON object", metadata_key);
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) damaged("the metadata '{}' is not a string", key);
      metadata.emplace(key, text.get<std::string>());
    }
  }

  void parse_entry(const std::string& name, const nlohmann::json& value) {
    if (!value.is_object()) damaged("the tensor '{}' is not described by a JSON object", name);
    for (const auto& [key, unused] : value.items()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets") damaged("the tensor '{}' has an unknown '{}'", name, key);
    }
    const nlohmann::json& dtype_text = member(name, value, "dtype");
    const std::string type = dtype_text.is_string() ? dtype_text.get<std::string>() : dtype_text.dump();
    const std::optional<DType> dtype = dtype_named(type);
    if (!dtype) damaged("the tensor '{}' has the unknown element type '{}'", name, type);
    const std::vector<std::size_t> shape = sizes(name, value, "shape");
    const std::vector<std::size_t> offsets = sizes(name, value, "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_.size()) {
      damaged("the tensor '{}' has the data offsets [{}], expected two ascending ones up to {}", name, fmt::join(offsets, ", "),
              data_.size());
    }
    const std::optional<std::size_t> expected = byte_count(*dtype, shape);
    if (!expected || *expected != offsets[1] - offsets[0]) {
      damaged("the tensor '{}' of type {} and shape [{}] cannot have {} bytes", name, type, fmt::join(shape, ", "),
              offsets[1] - offsets[0]);
    }
    entries_.push_back({name, *dtype, shape, offsets[0], offsets[1]});
  }

  const nlohmann::json& member(const std::string& name, const nlohmann::json& value, const char* key) const {
    const auto found = value.find(key);
    if (found == value.end()) damaged("the tensor '{}' has no '{}'", name, key);
    return *found;
  }

  std::vector<std::size_t> sizes(const std::string& name, const nlohmann::json& value, const char* key) const {
    const nlohmann::json& array = member(name, value, key);
    if (!array.is_array()) damaged("the '{}' of the tensor '{}' is not an array", key, name);
    std::vector<std::size_t> result;
    for (const nlohmann::json& item : array) {
      if (!item.is_number_unsigned()) damaged("the '{}' of the tensor '{}' holds something else than sizes", key, name);
      result.push_back(item.get<std::size_t>());
    }
    return result;
  }

  // Every byte of the data belongs to exactly one tensor.
  void check_coverage() {
    std::sort(entries_.begin(), entries_.end(),
              [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
    std::size_t covered = 0;
    for (const Entry& entry : entries_) {
      if (entry.begin < covered) damaged("the tensor '{}' overlaps another one", entry.name);
      if (entry.begin > covered) damaged("no tensor covers the {} bytes before '{}'", entry.begin - covered, entry.name);
      covered = entry.end;
    }
    if (covered != data_.size()) damaged("{} bytes follow after the last tensor", data_.size() - covered);
  }

  std::span<const std::byte> bytes_;
  std::string_view name_;
  std::span<const std::byte> data_;  // start of the offsets
  std::vector<Entry> entries_;
};

// Gives `take` all bytes of a tensor. Throws an internal error if there are not as many as its shape says.
void take_all(const std::string& name, const StreamedTensor& tensor, const TakeBytes& take) {
  std::size_t size = 0;
  tensor.bytes([&](std::span<const std::byte> part) {
    size += part.size();
    take(part);
  });
  if (byte_count(tensor.dtype, tensor.shape) == size) return;
  fail(ErrorKind::internal, "the tensor '{}' of shape [{}] has {} bytes", name, fmt::join(tensor.shape, ", "), size);
}

std::string checksum_of(const std::map<std::string, std::string>& metadata,
                        const std::map<std::string, StreamedTensor>& tensors) {
  Hasher hasher;
  hasher.update(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    hasher.update(name).update(dtype_name(tensor.dtype)).update(tensor.shape.size());
    for (const std::size_t length : tensor.shape) hasher.update(length);
    take_all(name, tensor, [&](std::span<const std::byte> part) { hasher.update(part); });
  }
  for (const auto& [key, value] : metadata) {
    if (key != checksum_key) hasher.update(key).update(value);
  }
  return hasher.finish().hex();
}

void write_tensors(const std::map<std::string, std::string>& metadata, const std::map<std::string, StreamedTensor>& tensors,
                   const TakeBytes& take) {
  nlohmann::json header;
  header[metadata_key] = metadata;
  header[metadata_key][checksum_key] = checksum_of(metadata, tensors);
  // Wide elements first, so that every tensor is aligned to its elements for programs that map the file.
  std::vector<std::pair<const std::string*, const StreamedTensor*>> order;
  for (const auto& [name, tensor] : tensors) order.emplace_back(&name, &tensor);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return dtype_size(a.second->dtype) > dtype_size(b.second->dtype); });
  std::size_t data_size = 0;
  for (const auto& [name, tensor] : order) {
    const std::size_t end = data_size + byte_count(tensor->dtype, tensor->shape).value();
    header[*name] = {{"dtype", dtype_name(tensor->dtype)}, {"shape", tensor->shape}, {"data_offsets", {data_size, end}}};
    data_size = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    fail(ErrorKind::internal, "a tensor's name or a metadata string is not UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  take(std::as_bytes(std::span(&length, 1)));
  take(std::as_bytes(std::span(text)));
  for (const auto& [name, tensor] : order) take_all(*name, *tensor, take);
}

// Compares the checksum in the metadata with that of the tensors.
void verify(const Parser& parser, const std::map<std::string, std::string>& metadata,
            const std::map<std::string, StreamedTensor>& tensors, Checksum checksum) {
  const auto stored = metadata.find(std::string(checksum_key));
  if (stored != metadata.end()) {
    if (stored->second != checksum_of(metadata, tensors)) parser.damaged("its checksum does not match: the file is damaged");
  } else if (checksum == Checksum::required) {
    parser.damaged("it has no checksum ('{}' in its metadata)", checksum_key);
  }
}

template <typename T>
const T& tensor_of(const std::map<std::string, T>& tensors, const std::string& name, const std::string& source) {
  const auto found = tensors.find(name);
  if (found != tensors.end()) return found->second;
  std::vector<std::string_view> names;
  for (const auto& [known, unused] : tensors) names.push_back(known);
  fail(ErrorKind::data, "'{}' has no tensor '{}'; it has: {}", source, name,
       names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
}

const std::string& value_of(const std::map<std::string, std::string>& metadata, const std::string& key,
                            const std::string& source) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) fail(ErrorKind::data, "'{}' has no metadata '{}'", source, key);
  return found->second;
}

}  // namespace

std::string_view dtype_name(DType dtype) { return dtype_table[static_cast<std::size_t>(dtype)].name; }

std::size_t dtype_size(DType dtype) { return dtype_table[static_cast<std::size_t>(dtype)].size; }

void Tensor::require_dtype(DType wanted) const {
  if (dtype != wanted) {
    fail(ErrorKind::data, "a tensor has elements of type {}, expected {}", dtype_name(dtype), dtype_name(wanted));
  }
}

void TensorFile::put_bytes(const std::string& name, DType dtype, std::vector<std::size_t> shape,
                           std::span<const std::byte> bytes) {
  if (name == metadata_key) fail(ErrorKind::internal, "a tensor cannot be called '{}'", name);
  if (byte_count(dtype, shape) != bytes.size()) {
    fail(ErrorKind::internal, "the tensor '{}' of shape [{}] was given {} elements", name, fmt::join(shape, ", "),
         bytes.size() / dtype_size(dtype));
  }
  Tensor tensor{dtype, std::move(shape), Buffer<std::byte>(bytes.size())};
  if (!bytes.empty()) std::memcpy(tensor.bytes.data(), bytes.data(), bytes.size());
  tensors.insert_or_assign(name, std::move(tensor));
}

const Tensor& TensorFile::get(const std::string& name) const { return tensor_of(tensors, name, source_); }

const Tensor& TensorFile::get(const std::string& name, DType dtype, const std::vector<std::size_t>& shape) const {
  const Tensor& tensor = get(name);
  if (tensor.dtype != dtype || tensor.shape != shape) {
    fail(ErrorKind::data, "'{}': the tensor '{}' is {}[{}], expected {}[{}]", source_, name, dtype_name(tensor.dtype),
         fmt::join(tensor.shape, ", "), dtype_name(dtype), fmt::join(shape, ", "));
  }
  return tensor;
}

const std::string& TensorFile::get_metadata(const std::string& key) const { return value_of(metadata, key, source_); }

std::map<std::string, StreamedTensor> TensorFile::streamed() const {
  std::map<std::string, StreamedTensor> all;
  for (const auto& [name, tensor] : tensors) {
    const std::span<const std::byte> bytes = tensor.bytes.span();
    all.emplace(name, StreamedTensor{tensor.dtype, tensor.shape, [bytes](const TakeBytes& take) { take(bytes); }});
  }
  return all;
}

std::vector<std::byte> TensorFile::serialize() const {
  std::vector<std::byte> bytes;
  std::size_t size = std::size_t{1} << 12;  // about what the header takes
  for (const auto& [name, tensor] : tensors) size += tensor.bytes.size() + (std::size_t{1} << 7);
  bytes.reserve(size);
  write_tensors(metadata, streamed(),
                [&](std::span<const std::byte> part) { bytes.insert(bytes.end(), part.begin(), part.end()); });
  return bytes;
}

void TensorFile::save(const std::filesystem::path& path) const { save_streamed(path, metadata, streamed()); }

void save_streamed(const std::filesystem::path& path, const std::map<std::string, std::string>& metadata,
                   const std::map<std::string, StreamedTensor>& tensors) {
  write_atomically(path, [&](const TakeBytes& take) { write_tensors(metadata, tensors, take); });
}

TensorFile TensorFile::load(const std::filesystem::path& path, Checksum checksum) {
  const FileMapping mapping(path);
  return parse(mapping.bytes(), path.string(), checksum);
}

TensorFile TensorFile::parse(std::span<const std::byte> bytes, std::string_view name, Checksum checksum) {
  TensorFile file;
  file.source_ = name;
  Parser parser(bytes, name);
  parser.parse(file.metadata,
               [&](const std::string& tensor_name, DType dtype, const std::vector<std::size_t>& shape,
                   std::span<const std::byte> elements) { file.put_bytes(tensor_name, dtype, shape, elements); });
  verify(parser, file.metadata, file.streamed(), checksum);
  file.metadata.erase(std::string(checksum_key));
  return file;
}

TensorMapping TensorMapping::open(const std::filesystem::path& path, std::optional<Checksum> checksum) {
  TensorMapping mapping;
  mapping.source_ = path.string();
  mapping.file_ = FileMapping(path);
  Parser parser(mapping.file_.bytes(), mapping.source_);
  std::map<std::string, StreamedTensor> streams;
  parser.parse(mapping.metadata, [&](const std::string& name, DType dtype, const std::vector<std::size_t>& shape,
                                     std::span<const std::byte> elements) {
    mapping.tensors.emplace(name, View{dtype, shape, elements});
    streams.emplace(name, StreamedTensor{dtype, shape, [elements](const TakeBytes& take) { take(elements); }});
  });
  if (checksum) verify(parser, mapping.metadata, streams, *checksum);
  mapping.metadata.erase(std::string(checksum_key));
  return mapping;
}

const TensorMapping::View& TensorMapping::get(const std::string& name) const { return tensor_of(tensors, name, source_); }

const std::string& TensorMapping::get_metadata(const std::string& key) const { return value_of(metadata, key, source_); }

}  // namespace bitloom
