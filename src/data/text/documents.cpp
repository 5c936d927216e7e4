#include "data/text/documents.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"

namespace bitloom::data {
namespace {

using Take = std::function<void(const Document& document)>;

// Calls take(line, its number, where it begins, where the next one begins); lines come without their ends, and are checked to
// be UTF-8.
template <typename TakeLine>
void for_each_line(std::string_view text, const std::string& file, TakeLine&& take) {
  std::size_t number = 1;
  for (std::size_t begin = 0; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    if (!is_utf8(line)) fail(ErrorKind::data, "'{}', line {}: not UTF-8", file, number);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::size_t next = std::min(end + 1, text.size());
    take(line, number, begin, next);
    begin = next;
  }
}

void read_json_lines(std::string_view text, const std::string& file, const TextInput& input, const Take& take) {
  for_each_line(text, file, [&](std::string_view line, std::size_t number, std::size_t, std::size_t) {
    if (trim(line).empty()) return;
    nlohmann::json json;
    try {
      json = nlohmann::json::parse(line);
    } catch (const nlohmann::json::exception& error) {
      fail(ErrorKind::data, "'{}', line {}: not valid JSON ({})", file, number, error.what());
    }
    if (!json.is_object()) fail(ErrorKind::data, "'{}', line {}: expected a JSON object", file, number);
    const auto found = json.find(input.field);
    if (found == json.end() || !found->is_string()) {
      fail(ErrorKind::data, "'{}', line {}: the field '{}' {}", file, number, input.field,
           found == json.end() ? "is missing" : "is not a string");
    }
    const std::string& document = found->get_ref<const std::string&>();
    if (!trim(document).empty()) take({fmt::format("{}:{}", file, number), document});
  });
}

void read_plain(std::string_view text, const std::string& file, const TextInput& input, const Take& take) {
  const bool whole = input.documents == "file";
  const bool blank = input.documents == "blank-lines";
  std::size_t begin = 0;
  std::size_t first_line = 1;
  const auto finish = [&](std::size_t end) {
    const std::string_view document = text.substr(begin, end - begin);
    if (!trim(document).empty()) take({whole ? file : fmt::format("{}:{}", file, first_line), document});
  };
  for_each_line(text, file, [&](std::string_view line, std::size_t number, std::size_t line_begin, std::size_t next) {
    if (whole || !(blank ? trim(line).empty() : line == input.documents)) return;
    finish(line_begin);
    begin = next;
    first_line = number + 1;
  });
  finish(text.size());
}

}  // namespace

bool is_json_lines(std::string_view file) { return file.ends_with(".jsonl") || file.ends_with(".ndjson"); }

void for_each_document(const TextInput& input, const Take& take) {
  if (input.files.empty()) fail(ErrorKind::usage, "no text: expected the name of a file at least");
  if (input.documents.empty()) fail(ErrorKind::usage, "documents '': expected file, blank-lines or a line of text");
  for (const std::string& file : input.files) {
    const FileMapping mapping{std::filesystem::path(file)};
    const std::string_view text(reinterpret_cast<const char*>(mapping.bytes().data()), mapping.size());
    (is_json_lines(file) ? read_json_lines : read_plain)(text, file, input, take);
  }
}

}  // namespace bitloom::data
