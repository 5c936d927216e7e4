#include "core/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/safetensors_header.h"

namespace bitloom {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and tensors are copied as they are");

constexpr std::string_view checksum_key = "bitloom.xxh3";
constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 20U;  // of files that are read in pieces

// Gives `take` all bytes of a tensor, and never more than its shape says. Throws an internal error if there are more or fewer.
void take_all(const std::string& name, const StreamedTensor& tensor, const TakeBytes& take) {
  const std::optional<std::size_t> expected = byte_count(tensor.dtype, tensor.shape);
  std::size_t size = 0;
  tensor.bytes([&](std::span<const std::byte> part) {
    size += part.size();
    if (size <= expected) take(part);
  });
  if (size == expected) return;
  fail(ErrorKind::internal, "the tensor '{}' of shape [{}] has {} bytes", name, fmt::join(tensor.shape, ", "), size);
}

// Calls see(name, part) for all bytes of the tensors on their way.
template <typename See>
std::string checksum_of(const std::map<std::string, std::string>& metadata,
                        const std::map<std::string, StreamedTensor>& tensors, See&& see) {
  Hasher hasher;
  hasher.update(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    hasher.update(name).update(dtype_name(tensor.dtype)).update(tensor.shape.size());
    for (const std::size_t length : tensor.shape) hasher.update(length);
    take_all(name, tensor, [&, &name = name](std::span<const std::byte> part) {
      hasher.update(part);
      see(name, part);
    });
  }
  for (const auto& [key, value] : metadata) {
    if (key != checksum_key) hasher.update(key).update(value);
  }
  return hasher.finish().hex();
}

// Takes the checksum out of the metadata, if there is one. Calls alive() now and then, if there is one.
void verify(const HeaderParser& parser, Checksum checksum, std::map<std::string, std::string>& metadata,
            const std::map<std::string, StreamedTensor>& tensors, const std::function<void()>& alive = nullptr) {
  const auto stored = metadata.find(std::string(checksum_key));
  if (stored != metadata.end()) {
    const auto see = [&](std::string_view, std::span<const std::byte>) {
      if (alive) alive();
    };
    if (stored->second != checksum_of(metadata, tensors, see)) {
      parser.damaged("its checksum does not match: the file is damaged");
    }
    metadata.erase(stored);
  } else if (checksum == Checksum::required) {
    parser.damaged("it has no checksum ('{}' in its metadata)", checksum_key);
  }
}

// Throws a data error.
template <typename Map>
[[noreturn]] void fail_missing(std::string_view source, const std::string& name, const Map& tensors) {
  std::vector<std::string_view> names;
  for (const auto& [known, unused] : tensors) names.push_back(known);
  fail(ErrorKind::data, "'{}' has no tensor '{}'; it has: {}", source, name,
       names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
}

const std::string& find_metadata(std::string_view source, const std::map<std::string, std::string>& metadata,
                                 const std::string& key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) fail(ErrorKind::data, "'{}' has no metadata '{}'", source, key);
  return found->second;
}

// The header as it stands in the file; the length of the checksum is the same for all.
std::string text_of(nlohmann::json& header, const std::string& checksum) {
  header[metadata_key][checksum_key] = checksum;
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    fail(ErrorKind::internal, "a tensor's name or a metadata string is not UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

void write_tensors(const std::map<std::string, std::string>& metadata, const std::map<std::string, StreamedTensor>& tensors,
                   const WritePart& write) {
  nlohmann::json header;
  header[metadata_key] = metadata;
  // Wide elements first, so that every tensor is aligned to its elements for programs that map the file.
  std::vector<std::pair<const std::string*, const StreamedTensor*>> order;
  for (const auto& [name, tensor] : tensors) order.emplace_back(&name, &tensor);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return dtype_size(a.second->dtype) > dtype_size(b.second->dtype); });
  std::map<std::string_view, std::uint64_t> places;
  std::size_t data_size = 0;
  for (const auto& [name, tensor] : order) {
    const std::optional<std::size_t> bytes = byte_count(tensor->dtype, tensor->shape);
    if (!bytes) {
      fail(ErrorKind::internal, "the tensor '{}' of shape [{}] is too large for a file", *name, fmt::join(tensor->shape, ", "));
    }
    places[*name] = data_size;
    std::string_view type = dtype_name(tensor->dtype);
    if (const std::string_view stored = stored_as(tensor->dtype); !stored.empty()) {
      header[metadata_key][fmt::format("{}{}", dtype_key, *name)] = type;
      type = stored;
    }
    header[*name] = {{"dtype", type}, {"shape", tensor->shape}, {"data_offsets", {data_size, data_size + *bytes}}};
    data_size += *bytes;
  }
  const std::uint64_t length = text_of(header, Hasher().finish().hex()).size();
  const std::string checksum = checksum_of(metadata, tensors, [&](std::string_view name, std::span<const std::byte> part) {
    std::uint64_t& place = places.at(name);
    write(length_bytes + length + place, part);
    place += part.size();
  });
  const std::string text = text_of(header, checksum);
  write(0, std::as_bytes(std::span(&length, 1)));
  write(length_bytes, std::as_bytes(std::span(text)));
}

}  // namespace

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

const Tensor& TensorFile::get(const std::string& name) const {
  const auto found = tensors.find(name);
  if (found == tensors.end()) fail_missing(source_, name, tensors);
  return found->second;
}

const Tensor& TensorFile::get(const std::string& name, DType dtype, const std::vector<std::size_t>& shape) const {
  const Tensor& tensor = get(name);
  if (tensor.dtype != dtype || tensor.shape != shape) {
    fail(ErrorKind::data, "'{}': the tensor '{}' is {}[{}], expected {}[{}]", source_, name, dtype_name(tensor.dtype),
         fmt::join(tensor.shape, ", "), dtype_name(dtype), fmt::join(shape, ", "));
  }
  return tensor;
}

const std::string& TensorFile::get_metadata(const std::string& key) const { return find_metadata(source_, metadata, key); }

TensorSource::Description TensorFile::describe(const std::string& name) const {
  const Tensor& tensor = get(name);
  return {tensor.dtype, tensor.shape};
}

void TensorFile::read(const std::string& name, std::uint64_t from, std::span<std::byte> bytes) const {
  std::ranges::copy(get(name).bytes.span().subspan(from, bytes.size()), bytes.begin());
}

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
  write_tensors(metadata, streamed(), [&](std::uint64_t place, std::span<const std::byte> part) {
    if (bytes.size() < place + part.size()) bytes.resize(place + part.size());
    std::copy(part.begin(), part.end(), bytes.begin() + static_cast<std::ptrdiff_t>(place));
  });
  return bytes;
}

void TensorFile::save(const std::filesystem::path& path) const { save_streamed(path, metadata, streamed()); }

void save_streamed(const std::filesystem::path& path, const std::map<std::string, std::string>& metadata,
                   const std::map<std::string, StreamedTensor>& tensors) {
  write_parts_atomically(path, [&](const WritePart& write) { write_tensors(metadata, tensors, write); });
}

TensorFile TensorFile::load(const std::filesystem::path& path, Checksum checksum) {
  const FileMapping mapping(path);
  return parse(mapping.bytes(), path.string(), checksum);
}

TensorFile TensorFile::parse(std::span<const std::byte> bytes, std::string_view name, Checksum checksum) {
  TensorFile file;
  file.source_ = name;
  HeaderParser parser(bytes, name);
  parser.parse(file.metadata,
               [&](const std::string& tensor_name, DType dtype, const std::vector<std::size_t>& shape, std::uint64_t begin,
                   std::uint64_t end) { file.put_bytes(tensor_name, dtype, shape, bytes.subspan(begin, end - begin)); });
  verify(parser, checksum, file.metadata, file.streamed());
  return file;
}

Tensor TensorSource::read(const std::string& name, DType dtype, const std::vector<std::size_t>& shape) const {
  const Description found = describe(name);
  if (found.dtype != dtype || found.shape != shape) {
    fail(ErrorKind::data, "the tensor '{}' is {} [{}], expected {} [{}]", name, dtype_name(found.dtype),
         fmt::join(found.shape, ", "), dtype_name(dtype), fmt::join(shape, ", "));
  }
  Tensor tensor{dtype, shape, Buffer<std::byte>(byte_count(dtype, shape).value())};
  read(name, 0, tensor.bytes.span());
  return tensor;
}

TensorReader TensorReader::open(const std::filesystem::path& path, Checksum checksum, const std::function<void()>& alive) {
  TensorReader reader(FileReader(path), path.string());
  const std::uint64_t size = reader.file_.size();
  // As much as there may be of the header.
  std::vector<std::byte> head(std::min<std::uint64_t>(size, length_bytes));
  reader.file_.read(0, head);
  if (head.size() == length_bytes) {
    std::uint64_t length;
    std::memcpy(&length, head.data(), length_bytes);
    head.resize(length_bytes + std::min({length, largest_header, size - length_bytes}));
    reader.file_.read(length_bytes, std::span(head).subspan(length_bytes));
  }
  HeaderParser parser(head, size, reader.source_);
  parser.parse(reader.metadata, [&](const std::string& name, DType dtype, const std::vector<std::size_t>& shape,
                                    std::uint64_t begin, std::uint64_t end) {
    reader.places_.emplace(name, Place{{dtype, shape}, begin, end});
  });
  verify(parser, checksum, reader.metadata, reader.streamed(), alive);
  return reader;
}

const TensorReader::Place& TensorReader::find(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) fail_missing(source_, name, places_);
  return found->second;
}

TensorSource::Description TensorReader::describe(const std::string& name) const { return find(name).description; }

void TensorReader::read(const std::string& name, std::uint64_t from, std::span<std::byte> bytes) const {
  const Place& place = find(name);
  if (from > place.end - place.begin || bytes.size() > place.end - place.begin - from) {
    fail(ErrorKind::internal, "'{}': {} bytes from number {} of the tensor '{}', which has {}", source_, bytes.size(), from,
         name, place.end - place.begin);
  }
  file_.read(place.begin + from, bytes);
}

const std::string& TensorReader::get_metadata(const std::string& key) const { return find_metadata(source_, metadata, key); }

std::map<std::string, StreamedTensor> TensorReader::streamed() const {
  std::map<std::string, StreamedTensor> all;
  for (const auto& [name, place] : places_) {
    all.emplace(name,
                StreamedTensor{place.description.dtype, place.description.shape, [this, &place = place](const TakeBytes& take) {
                                 std::vector<std::byte> piece(std::min(piece_bytes, place.end - place.begin));
                                 for (std::uint64_t at = place.begin; at < place.end; at += piece.size()) {
                                   piece.resize(std::min<std::uint64_t>(piece.size(), place.end - at));
                                   file_.read(at, piece);
                                   take(piece);
                                 }
                               }});
  }
  return all;
}

TensorMapping TensorMapping::open(const std::filesystem::path& path) {
  TensorMapping mapping;
  mapping.file_ = FileMapping(path);
  const std::string name = path.string();
  HeaderParser(mapping.file_.bytes(), name)
      .parse(mapping.metadata, [&](const std::string& tensor_name, DType dtype, const std::vector<std::size_t>& shape,
                                   std::uint64_t begin, std::uint64_t end) {
        mapping.tensors.emplace(tensor_name, View{dtype, shape, mapping.file_.bytes().subspan(begin, end - begin)});
      });
  mapping.metadata.erase(std::string(checksum_key));
  return mapping;
}

}  // namespace bitloom
