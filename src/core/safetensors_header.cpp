#include "core/safetensors_header.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/text.h"

namespace bitloom {
namespace {

struct DTypeRow {
  std::string_view name;
  std::size_t size;
  std::string_view stored;
};
constexpr auto dtype_table = std::to_array<DTypeRow>({{"U8", 1, ""},
                                                      {"I8", 1, ""},
                                                      {"U16", 2, ""},
                                                      {"I16", 2, ""},
                                                      {"U32", 4, ""},
                                                      {"I32", 4, ""},
                                                      {"U64", 8, ""},
                                                      {"I64", 8, ""},
                                                      {"F32", 4, ""},
                                                      {"F64", 8, ""},
                                                      {"BF16", 2, ""},
                                                      {"F16", 2, ""},
                                                      {"1-6-9", 2, "U16"},
                                                      {"0-6-10", 2, "U16"}});

std::optional<DType> dtype_named(std::string_view name) {
  if (name == "BOOL") return DType::u8;  // a byte each; read alone
  const auto row = std::find_if(dtype_table.begin(), dtype_table.end(), [&](const DTypeRow& r) { return r.name == name; });
  if (row == dtype_table.end()) return std::nullopt;
  return static_cast<DType>(row - dtype_table.begin());
}

}  // namespace

std::string_view dtype_name(DType dtype) { return dtype_table[static_cast<std::size_t>(dtype)].name; }

std::size_t dtype_size(DType dtype) { return dtype_table[static_cast<std::size_t>(dtype)].size; }

std::string_view stored_as(DType dtype) { return dtype_table[static_cast<std::size_t>(dtype)].stored; }

std::optional<std::size_t> byte_count(DType dtype, const std::vector<std::size_t>& shape) {
  if (std::find(shape.begin(), shape.end(), std::size_t{0}) != shape.end()) return 0;
  std::size_t bytes = dtype_size(dtype);
  for (const std::size_t length : shape) {
    if (bytes > std::numeric_limits<std::size_t>::max() / length) return std::nullopt;
    bytes *= length;
  }
  return bytes;
}

void HeaderParser::parse(std::map<std::string, std::string>& metadata, const Take& take) {
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
  name_types(metadata);
  for (const Entry& entry : entries_) {
    take(entry.name, entry.dtype, entry.shape, data_begin_ + entry.begin, data_begin_ + entry.end);
  }
}

nlohmann::json HeaderParser::parse_header() {
  if (size_ < length_bytes) damaged("{} bytes are too few for a header length", size_);
  std::uint64_t length;
  std::memcpy(&length, bytes_.data(), length_bytes);
  const std::uint64_t rest = size_ - length_bytes;
  if (length > rest) damaged("the header should have {} bytes, but only {} follow", length, rest);
  if (length > largest_header) damaged("a header of {} bytes is too long (at most {})", length, largest_header);
  data_begin_ = length_bytes + length;
  data_size_ = size_ - data_begin_;
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

void HeaderParser::parse_metadata(const nlohmann::json& value, std::map<std::string, std::string>& metadata) const {
  if (!value.is_object()) damaged("{} is not a JSON object", metadata_key);
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) damaged("the metadata '{}' is not a string", key);
    const auto& content = text.get_ref<const std::string&>();
    if (key.starts_with("bitloom.") && json_depth(content) > deepest_json)
      damaged("the metadata '{}' is nested too deeply", key);
    metadata.emplace(key, content);
  }
}

void HeaderParser::parse_entry(const std::string& name, const nlohmann::json& value) {
  if (!value.is_object()) damaged("the tensor '{}' is not described by a JSON object", name);
  for (const auto& [key, unused] : value.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") damaged("the tensor '{}' has an unknown '{}'", name, key);
  }
  const nlohmann::json& dtype_text = member(name, value, "dtype");
  const std::string type = dtype_text.is_string() ? dtype_text.get<std::string>() : dtype_text.dump();
  const std::optional<DType> dtype = dtype_named(type);
  if (!dtype || !stored_as(*dtype).empty()) damaged("the tensor '{}' has the unknown element type '{}'", name, type);
  const std::vector<std::size_t> shape = sizes(name, value, "shape");
  const std::vector<std::size_t> offsets = sizes(name, value, "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_size_) {
    damaged("the tensor '{}' has the data offsets [{}], expected two ascending ones up to {}", name, fmt::join(offsets, ", "),
            data_size_);
  }
  const std::optional<std::size_t> expected = byte_count(*dtype, shape);
  if (!expected || *expected != offsets[1] - offsets[0]) {
    damaged("the tensor '{}' of type {} and shape [{}] cannot have {} bytes", name, type, fmt::join(shape, ", "),
            offsets[1] - offsets[0]);
  }
  entries_.push_back({name, *dtype, shape, offsets[0], offsets[1]});
}

// Takes what the metadata says about types that the format lacks out of it.
void HeaderParser::name_types(std::map<std::string, std::string>& metadata) {
  std::map<std::string_view, Entry*> by_name;
  for (Entry& entry : entries_) by_name.emplace(entry.name, &entry);
  for (auto next = metadata.lower_bound(std::string(dtype_key));
       next != metadata.end() && next->first.starts_with(dtype_key);) {
    const std::string tensor = next->first.substr(dtype_key.size());
    const std::optional<DType> dtype = dtype_named(next->second);
    const auto entry = by_name.find(tensor);
    if (entry == by_name.end() || !dtype || stored_as(*dtype) != dtype_name(entry->second->dtype)) {
      damaged("the metadata '{}' is '{}', which fits no tensor", next->first, next->second);
    }
    entry->second->dtype = *dtype;
    next = metadata.erase(next);
  }
}

const nlohmann::json& HeaderParser::member(const std::string& name, const nlohmann::json& value, const char* key) const {
  const auto found = value.find(key);
  if (found == value.end()) damaged("the tensor '{}' has no '{}'", name, key);
  return *found;
}

std::vector<std::size_t> HeaderParser::sizes(const std::string& name, const nlohmann::json& value, const char* key) const {
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
void HeaderParser::check_coverage() {
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::size_t covered = 0;
  for (const Entry& entry : entries_) {
    if (entry.begin < covered) damaged("the tensor '{}' overlaps another one", entry.name);
    if (entry.begin > covered) damaged("no tensor covers the {} bytes before '{}'", entry.begin - covered, entry.name);
    covered = entry.end;
  }
  if (covered != data_size_) damaged("{} bytes follow after the last tensor", data_size_ - covered);
}

}  // namespace bitloom
