// Fields in messages. Libraries name the fields of their options, the command line has options for them: so that it finds the
// fields in any message, also in one that other ranks or other errors quote, they stand between backquotes: "`batch`: 0;
// expected at least 1", "expected `error_feedback` none".
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace bitloom {

inline std::string marked_field(std::string_view name) { return fmt::format("`{}`", name); }

// Throws an error about the value of a field: "`batch`: " and the text.
template <typename... Args>
[[noreturn]] void fail_field(ErrorKind kind, std::string_view field, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(kind, fmt::format("{}: {}", marked_field(field), fmt::format(text, std::forward<Args>(args)...)));
}

}  // namespace bitloom
