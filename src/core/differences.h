// Where two descriptions of one thing differ, field by field: so that a refusal names what does not agree.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace bitloom {

struct FieldDifference {
  std::string field;          // "net.layers.layer2.width"
  std::string stored, given;  // as text; "nothing" where there is no such field

  friend bool operator==(const FieldDifference&, const FieldDifference&) = default;
};

// The user's name of a field. The command line has options for fields, of which libraries know nothing.
using FieldName = std::function<std::string(const std::string& field)>;

// By the order of the fields' names. In arrays an object with a "name" is known by it, a number by its index, and other arrays
// are one field.
std::vector<FieldDifference> find_differences(const nlohmann::json& stored, const nlohmann::json& given);

// A line for each of the first few, each after a line end: "\n  batch: 32 stored, 64 given". Long values are cut. `name` may be
// none.
std::string describe_differences(const std::vector<FieldDifference>& differences, const FieldName& name);

}  // namespace bitloom
