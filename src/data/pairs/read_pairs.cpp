#include "data/pairs/read_pairs.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "data/image.h"

namespace bitloom::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Calls take(line, its number) for lines with something in them. Throws for what is not UTF-8.
template <typename Take>
void for_each_filled_line(std::string_view text, const fs::path& file, Take&& take) {
  std::size_t number = 1;
  text = without_byte_order_mark(text);
  for (std::size_t begin = 0; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = trim(text.substr(begin, end - begin));
    if (!is_utf8(line)) fail(ErrorKind::data, "'{}', line {}: not UTF-8", file.string(), number);
    if (!line.empty()) take(line, number);
    begin = end + 1;
  }
}

const std::string& string_field(const Json& json, const char* field, const std::string& place) {
  const auto found = json.find(field);
  if (found == json.end() || !found->is_string()) {
    fail(ErrorKind::data, "{}: the field '{}' {}", place, field, found == json.end() ? "is missing" : "is not a string");
  }
  return found->get_ref<const std::string&>();
}

std::vector<std::string> keywords_of(const Json& json, const std::string& place) {
  std::vector<std::string> keywords;
  const auto found = json.find("keywords");
  if (found == json.end() || found->is_null()) return keywords;
  if (!found->is_array()) fail(ErrorKind::data, "{}: the field 'keywords' is not a list of strings", place);
  for (const Json& word : *found) {
    if (!word.is_string()) fail(ErrorKind::data, "{}: the field 'keywords' is not a list of strings", place);
    keywords.push_back(word.get<std::string>());
  }
  return keywords;
}

// Where the images that a caption file names may lie, relative to its folder.
constexpr std::array<const char*, 3> image_folders{"", "png", "images"};

// `last` is the folder where the image before was, so that a large set asks the system once per image.
std::string find_image(const fs::path& folder, const std::string& name, const std::string& place, std::size_t& last) {
  if (name.empty()) fail(ErrorKind::data, "{}: the field 'image' is empty", place);
  for (std::size_t k = 0; k < image_folders.size(); ++k) {
    const std::size_t which = (last + k) % image_folders.size();
    const fs::path image = fs::path(image_folders[which]) / name;
    std::error_code error;
    if (!fs::is_regular_file(folder / image, error)) continue;
    last = which;
    return image.string();
  }
  fail(ErrorKind::data, "{}: the image '{}' is missing; looked for it in {} and its folders png and images", place, name,
       folder.string());
}

PairListing list_json_lines(const fs::path& file) {
  PairListing listing{file.has_parent_path() ? file.parent_path() : fs::path("."), {}, {}, {}};
  std::size_t last = 0;
  const FileMapping mapping(file);
  const std::string_view text(reinterpret_cast<const char*>(mapping.bytes().data()), mapping.size());
  for_each_filled_line(text, file, [&](std::string_view line, std::size_t number) {
    const std::string place = fmt::format("'{}', line {}", file.string(), number);
    Json json;
    try {
      json = Json::parse(line);
    } catch (const Json::exception& error) {
      fail(ErrorKind::data, "{}: not valid JSON ({})", place, error.what());
    }
    if (!json.is_object()) fail(ErrorKind::data, "{}: expected a JSON object", place);
    const std::string& caption = string_field(json, "caption", place);
    listing.pairs.push_back({find_image(listing.folder, string_field(json, "image", place), place, last),
                             std::string(trim(caption)), keywords_of(json, place), place});
  });
  if (listing.pairs.empty())
    fail(ErrorKind::data, "'{}': no pairs; expected lines such as {{\"image\": \"a.png\", \"caption\": \"...\"}}",
         file.string());
  return listing;
}

PairListing list_folder(const fs::path& folder) {
  PairListing listing{folder, {}, {}, {}};
  std::vector<std::string> images, texts;
  std::error_code error, none;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.front() == '.' || !at->is_regular_file(none)) continue;
    if (is_image_name(at->path())) images.push_back(name);
    if (lower_case(at->path().extension().string()) == ".txt") texts.push_back(name);
  }
  if (error) fail(ErrorKind::data, "{}: the folder cannot be read: {}", folder.string(), error.message());
  std::sort(images.begin(), images.end());
  std::sort(texts.begin(), texts.end());
  // By the name without its ending, which may be in capitals; .txt comes last and wins.
  std::map<std::string, std::string> text_of;
  for (const std::string& text : texts) text_of.insert_or_assign(fs::path(text).stem().string(), text);
  std::vector<std::string> used;
  for (const std::string& image : images) {
    const auto found = text_of.find(fs::path(image).stem().string());
    if (found == text_of.end()) {
      listing.images_without_caption.push_back(image);
      continue;
    }
    const std::string& text = found->second;
    const std::string captions = read_text(folder / text);
    const std::size_t before = listing.pairs.size();
    for_each_filled_line(captions, folder / text, [&](std::string_view line, std::size_t number) {
      listing.pairs.push_back({image, std::string(line), {}, fmt::format("'{}', line {}", (folder / text).string(), number)});
    });
    // The rules count it.
    if (listing.pairs.size() == before) listing.pairs.push_back({image, "", {}, fmt::format("'{}'", (folder / text).string())});
    used.push_back(text);
  }
  // a.png and a.jpg may share a.txt; images, hence `used`, are not in the order of their texts: "a-b.png" < "a.png".
  std::sort(used.begin(), used.end());
  std::set_difference(texts.begin(), texts.end(), used.begin(), used.end(), std::back_inserter(listing.captions_without_image));
  if (listing.pairs.empty()) {
    fail(ErrorKind::data,
         "{}: no pairs; {} images, {} .txt files and none of the same name, expected captions.jsonl or a.txt beside a.png",
         folder.string(), images.size(), texts.size());
  }
  return listing;
}

}  // namespace

PairListing list_pairs(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    if (!fs::exists(path, error)) fail(ErrorKind::data, "{}: no such file or folder of images with captions", path.string());
    return list_json_lines(path);
  }
  const fs::path file = path / "captions.jsonl";
  return fs::exists(file, error) ? list_json_lines(file) : list_folder(path);
}

}  // namespace bitloom::data
