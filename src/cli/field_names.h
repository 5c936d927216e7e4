// From the fields that libraries name to the options that set them.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace bitloom::cli {

// A message of a library in which options stand for its fields: "`batch`: 0; expected ..." is "--batch: 0; expected ...". What
// else stands between backquotes, a command with spaces say, stays as it is.
std::string with_options(std::string_view message);

// The option that sets a field of a run's identity: "options.head_rate" is --head-learning-rate.
std::string option_of_field(const std::string& field);
// The same for float nets: what `named` has for the field or for its part before the first '.', else the option of its name,
// without "net.".
using FieldOptions = std::map<std::string, std::string>;
std::string option_of_float_field(const std::string& field, const FieldOptions& named);

}  // namespace bitloom::cli
