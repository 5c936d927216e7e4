#include "models/dvae/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/file.h"
#include "core/suggest.h"

namespace bitloom::models {
namespace {

using Json = nlohmann::json;

const std::vector<DvaeConfig>& named() {
  static const std::vector<DvaeConfig> table{
      {.name = "tiny", .side = 16, .codes = 32, .groups = 3, .blocks = 1, .hidden = 8, .init = 8},
      {.name = "emoji", .side = 64, .codes = 512, .groups = 4, .blocks = 2, .hidden = 32, .init = 32},
      {.name = "emoji-16", .side = 64, .codes = 512, .groups = 3, .blocks = 2, .hidden = 32, .init = 32},
      {.name = "full", .side = 256, .codes = 8192, .groups = 4, .blocks = 2, .hidden = 256, .init = 128}};
  return table;
}

struct Size {
  const char* key;
  std::size_t DvaeConfig::*field;
  std::size_t least, most;
};
constexpr Size dvae_sizes[] = {{"side", &DvaeConfig::side, 4, 1024},     {"codes", &DvaeConfig::codes, 2, 65536},
                               {"groups", &DvaeConfig::groups, 1, 8},    {"blocks", &DvaeConfig::blocks, 1, 64},
                               {"hidden", &DvaeConfig::hidden, 4, 4096}, {"init", &DvaeConfig::init, 1, 65536}};

DvaeConfig read_config(const Json& json, const std::string& source) {
  if (!json.is_object()) fail(ErrorKind::usage, "{}: expected a JSON object", source);
  std::vector<std::string> keys{"name"};
  for (const Size& size : dvae_sizes) keys.emplace_back(size.key);
  for (const auto& [key, value] : json.items()) {
    if (std::ranges::count(keys, key) == 0) {
      fail(ErrorKind::usage, "{}: unknown key '{}'{}; expected {}", source, key, did_you_mean(key, keys),
           fmt::join(keys, ", "));
    }
  }
  DvaeConfig config;
  if (json.contains("name")) {
    if (!json["name"].is_string()) fail(ErrorKind::usage, "{}: \"name\": {}; expected a text", source, json["name"].dump());
    config.name = json["name"].get<std::string>();
  }
  for (const Size& size : dvae_sizes) {
    const Json found = json.value(size.key, Json());
    if (!found.is_number_unsigned() || found.get<std::uint64_t>() < size.least || found.get<std::uint64_t>() > size.most) {
      fail(ErrorKind::usage, "{}: \"{}\": {}; expected a whole number from {} to {}", source, size.key, found.dump(),
           size.least, size.most);
    }
    config.*size.field = found.get<std::size_t>();
  }
  if (config.hidden % 4 != 0) {
    fail(ErrorKind::usage, "{}: \"hidden\": {}; expected a multiple of 4, of which a block's inner maps have a quarter", source,
         config.hidden);
  }
  if (const std::size_t step = std::size_t{1} << (config.groups - 1); config.side % step != 0) {
    fail(ErrorKind::usage, "{}: \"side\": {}; expected a multiple of {}, by which {} groups divide it", source, config.side,
         step, config.groups);
  }
  return config;
}

}  // namespace

std::vector<std::string> dvae_names() { return names_of(named()); }

DvaeConfig find_dvae(const std::string& name_or_file) {
  if (name_or_file.find('/') == std::string::npos && name_or_file.find('.') == std::string::npos) {
    return find_named(named(), name_or_file, marked_field("net"));
  }
  std::string text;
  try {
    text = read_text(name_or_file);
  } catch (const Error& error) {
    fail(ErrorKind::usage, "{}", error.what());
  }
  const Json json = Json::parse(text, nullptr, false, true);
  if (json.is_discarded()) fail(ErrorKind::usage, "{}: not JSON", name_or_file);
  return read_config(json, name_or_file);
}

Json architecture_of(const DvaeConfig& config) {
  Json json{{"name", config.name}};
  for (const Size& size : dvae_sizes) json[size.key] = config.*size.field;
  return json;
}

DvaeConfig parse_dvae_model(const std::string& text, const std::string& source) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) fail(ErrorKind::data, "{}: the net's description is not JSON", source);
  try {
    return read_config(json, source);
  } catch (const Error& error) {
    fail(ErrorKind::data, "{}", error.what());
  }
}

}  // namespace bitloom::models
