// Small things about strings.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bitloom {

// Without leading and trailing spaces, tabs and line ends.
std::string_view trim(std::string_view text);

// The parts between separators, trimmed; "" has one empty part.
std::vector<std::string> split(std::string_view text, char separator);

// With the letters A to Z as a to z, whatever the locale: for endings of file names.
std::string lower_case(std::string_view text);

// Without the mark of UTF-8 by which some editors begin a file.
std::string_view without_byte_order_mark(std::string_view text);

// How deep arrays and objects of a JSON text are nested; of any text, what its brackets outside of strings say. Programs that
// print or copy JSON call themselves that often.
std::size_t json_depth(std::string_view text);

// More than any file has that means something to this program: deeper ones could exhaust the stack.
inline constexpr std::size_t deepest_json = 100;

// Bytes of the well-formed UTF-8 character (RFC 3629) that a text, which is not empty, begins with, 0 if it does not begin with
// one.
std::size_t character_length(std::string_view text);

// Number of bytes before a character at the end that is not whole yet, or that stands for such bytes (U+FFFD): what may be
// shown of a text that goes on.
std::size_t whole_characters(std::string_view text);

// Whether the bytes are well-formed UTF-8 (RFC 3629), as JSON has to be.
bool is_utf8(std::string_view text);

// The text with everything that could steer a terminal written out: control characters but line ends and tabs (C0, DEL, C1) and
// bytes that are no UTF-8 become \xNN. What it gives is UTF-8.
std::string printable(std::string_view text);

// RFC 4648, section 4.
std::string base64(std::string_view bytes);

bool contains(std::span<const std::string> names, std::string_view name);

// The number that the whole string spells in decimal (no spaces, no leading plus sign), or nothing: also when it is out of
// range. Independent of the locale.
std::optional<std::int64_t> parse_int(std::string_view text);
// As parse_int, for finite floating-point numbers such as 0.5, -2, 1e-3.
std::optional<double> parse_double(std::string_view text);

}  // namespace bitloom
