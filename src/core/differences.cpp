#include "core/differences.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>

namespace bitloom {
namespace {

using Json = nlohmann::json;

constexpr std::size_t shown_differences = 12;
constexpr std::size_t shown_characters = 60;
constexpr const char* nothing = "nothing";  // "none" is a value of options

bool all_of(const Json& array, bool (*is)(const Json&)) { return std::all_of(array.begin(), array.end(), is); }

bool is_named(const Json& value) { return value.is_object() && value.contains("name") && value["name"].is_string(); }

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// Fields and their values as text.
void flatten(const Json& value, const std::string& field, std::map<std::string, std::string>& into) {
  const std::string prefix = field.empty() ? "" : field + ".";
  if (value.is_object()) {
    for (const auto& [name, member] : value.items()) flatten(member, prefix + name, into);
  } else if (value.is_array() && !value.empty() && all_of(value, &is_named)) {
    for (const Json& element : value) flatten(element, prefix + element["name"].get<std::string>(), into);
  } else if (value.is_array() && all_of(value, [](const Json& element) { return element.is_number(); })) {
    for (std::size_t i = 0; i < value.size(); ++i) flatten(value[i], fmt::format("{}{}", prefix, i), into);
  } else {
    into[field] = text_of(value);
  }
}

std::string shortened(const std::string& text) {
  return text.size() <= shown_characters ? text : text.substr(0, shown_characters) + "...";
}

}  // namespace

std::vector<FieldDifference> find_differences(const Json& stored, const Json& given) {
  std::map<std::string, std::string> before;
  std::map<std::string, std::string> now;
  flatten(stored, "", before);
  flatten(given, "", now);
  std::map<std::string, FieldDifference> found;
  for (const auto& [field, value] : before) found[field] = {field, value, nothing};
  for (const auto& [field, value] : now) {
    const auto [place, is_new] = found.try_emplace(field, FieldDifference{field, nothing, value});
    if (!is_new) place->second.given = value;
  }
  std::vector<FieldDifference> differences;
  for (const auto& [field, difference] : found) {
    if (difference.stored != difference.given) differences.push_back(difference);
  }
  return differences;
}

std::string describe_differences(const std::vector<FieldDifference>& differences, const FieldName& name) {
  std::string text;
  for (std::size_t i = 0; i < std::min(differences.size(), shown_differences); ++i) {
    const FieldDifference& each = differences[i];
    text += fmt::format("\n  {}: {} stored, {} given", name ? name(each.field) : each.field, shortened(each.stored),
                        shortened(each.given));
  }
  if (differences.size() > shown_differences) text += fmt::format("\n  and {} more", differences.size() - shown_differences);
  return text;
}

}  // namespace bitloom
