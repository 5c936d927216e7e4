// Parts that descriptions of nets have in common: counts in JSON and in structs, and what all transformers ask of theirs.
#pragma once

#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/field.h"

namespace bitloom::models {

template <typename Config>
using SizeField = std::pair<const char*, std::size_t Config::*>;

// Throws Error(data) that names `name` for a text that is no JSON object.
inline nlohmann::json parse_description(const std::string& text, const std::string& name) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) fail(ErrorKind::data, "{}: the net's description is not a JSON object", name);
  return json;
}

template <typename Config, std::size_t N>
void read_sizes(const nlohmann::json& json, const std::array<SizeField<Config>, N>& fields, Config& config,
                const std::string& name) {
  for (const auto& [key, size] : fields) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_unsigned()) {
      fail(ErrorKind::data, "{}: '{}' is missing or no whole number", name, key);
    }
    config.*size = found->template get<std::size_t>();
  }
}

template <typename Config, std::size_t N>
void write_sizes(nlohmann::json& json, const std::array<SizeField<Config>, N>& fields, const Config& config) {
  for (const auto& [key, size] : fields) json[key] = config.*size;
}

// Reads `dropout` and `activation` of a transformer. Throws Error(data) that names `name`.
template <typename Config>
void read_dropout_and_activation(const nlohmann::json& json, Config& config, const std::string& name) {
  const auto dropout = json.find("dropout");
  const auto activation = json.find("activation");
  if (dropout == json.end() || !dropout->is_number() || activation == json.end() || !activation->is_string()) {
    fail(ErrorKind::data, "{}: 'dropout' or 'activation' is missing or of another type", name);
  }
  config.dropout = dropout->template get<double>();
  config.activation = activation->template get<std::string>();
}

// Whether nets of two descriptions have parameters that mean the same: dropout has none.
inline bool have_same_parameters(nlohmann::json one, nlohmann::json other) {
  one.erase("dropout");
  other.erase("dropout");
  return one == other;
}

// Throw Error(usage) that names the field.
inline void check_size(const char* field, std::size_t value) {
  static constexpr std::size_t most = 1 << 20;
  if (value == 0 || value > most) fail_field(ErrorKind::usage, field, "{}; expected 1 to {}", value, most);
}
inline void check_heads_and_dropout(std::size_t heads, std::size_t width, double dropout) {
  if (width % heads != 0) {
    fail_field(ErrorKind::usage, "heads", "{}; expected a divisor of the width, {}", heads, width);
  }
  if (!(dropout >= 0 && dropout < 1)) fail_field(ErrorKind::usage, "dropout", "{}; expected 0 <= rate < 1", dropout);
}

// check(config) of a description in a file: what it says is Error(data) that names `name`.
template <typename Config>
void check_read(const Config& config, const std::string& name) {
  try {
    check(config);
  } catch (const Error& error) {
    fail(ErrorKind::data, "{}: {}", name, error.what());
  }
}

}  // namespace bitloom::models
