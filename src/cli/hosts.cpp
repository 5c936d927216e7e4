#include "cli/hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <sstream>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"

namespace bitloom::cli {
namespace {

constexpr std::size_t most_hosts = 100000;  // of one list: "n[0-999999999]" is a slip of the pen

std::size_t to_number(const std::string& where, std::string_view text) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
    fail(ErrorKind::usage, "{}: '{}' is not a number", where, text);
  }
  return number;
}

// Parts between commas that stand in no brackets.
std::vector<std::string> parts_of(const std::string& where, const std::string& text) {
  std::vector<std::string> parts(1);
  bool inside = false;
  for (const char c : text) {
    if ((c == '[' && inside) || (c == ']' && !inside))
      fail(ErrorKind::usage, "{}: the brackets of '{}' do not match", where, text);
    inside = c == '[' || (inside && c != ']');
    if (c == ',' && !inside) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  if (inside) fail(ErrorKind::usage, "{}: the brackets of '{}' do not match", where, text);
  return parts;
}

void expand(const std::string& where, const std::string& part, std::vector<std::string>& hosts) {
  const std::size_t open = part.find('[');
  if (open == std::string::npos) {
    const bool good = !part.empty() && part.front() != '-' && std::all_of(part.begin(), part.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
    });
    if (!good) fail(ErrorKind::usage, "{}: '{}' is not the name of a host", where, part);
    if (hosts.size() == most_hosts) fail(ErrorKind::usage, "{}: more than {} hosts", where, most_hosts);
    hosts.push_back(part);
    return;
  }
  const std::size_t close = part.find(']', open);
  for (const std::string& range : split(part.substr(open + 1, close - open - 1), ',')) {
    const std::size_t dash = range.find('-');
    const std::string first = range.substr(0, dash);
    const std::string last = dash == std::string::npos ? first : range.substr(dash + 1);
    const std::size_t begin = to_number(where, first);
    const std::size_t end = to_number(where, last);
    if (end - begin > most_hosts && end >= begin) fail(ErrorKind::usage, "{}: more than {} hosts", where, most_hosts);
    if (end < begin) fail(ErrorKind::usage, "{}: the range {} ends before it begins", where, range);
    for (std::size_t n = begin; n <= end; ++n) {
      // As many digits as the first: node[08-10] is node08, node09, node10.
      expand(where, fmt::format("{}{:0{}}{}", part.substr(0, open), n, first.size(), part.substr(close + 1)), hosts);
    }
  }
}

}  // namespace

std::vector<std::string> expand_hosts(const std::string& where, const std::string& text) {
  std::vector<std::string> hosts;
  for (const std::string& part : parts_of(where, text)) expand(where, part, hosts);
  return hosts;
}

std::vector<Host> read_hostfile(const std::filesystem::path& path) {
  std::vector<Host> hosts;
  std::stringstream lines(read_text(path));
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = fmt::format("{}:{}", path.string(), ++number);
    std::stringstream words(line.substr(0, line.find('#')));
    std::string names;
    if (!(words >> names)) continue;
    std::size_t slots = 1;
    for (std::string word; words >> word;) {
      if (word.starts_with("slots=")) {
        slots = to_number(where, word.substr(6));
      } else if (!word.starts_with("max_slots=") && !word.starts_with("max-slots=")) {
        fail(ErrorKind::usage, "{}: '{}' is not known; expected slots=N", where, word);
      }
    }
    if (slots == 0) fail(ErrorKind::usage, "{}: slots=0; expected at least 1", where);
    for (const std::string& name : expand_hosts(where, names)) {
      const auto same = std::find_if(hosts.begin(), hosts.end(), [&](const Host& host) { return host.name == name; });
      if (same == hosts.end()) {
        hosts.push_back({name, slots});
      } else {
        same->slots += slots;
      }
    }
  }
  if (hosts.empty()) fail(ErrorKind::usage, "{}: no hosts; expected a host per line", path.string());
  return hosts;
}

}  // namespace bitloom::cli
