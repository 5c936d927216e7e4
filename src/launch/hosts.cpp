#include "launch/hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <sstream>
#include <unordered_map>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"

namespace bitloom::launch {
namespace {

constexpr std::size_t most_hosts = 100000;  // "n[0-999999999]" is a slip of the pen
constexpr std::size_t most_slots = 100000;
constexpr std::size_t longest_name = 253;  // RFC 1035

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

void check_name(const std::string& where, const std::string& name) {
  const bool good = !name.empty() && name.front() != '-' && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
  if (!good) fail(ErrorKind::usage, "{}: '{}' is not the name of a host", where, name);
}

// The numbers of "01-03,7": 01, 02, 03, 7.
std::vector<std::string> numbers_of(const std::string& where, std::string_view ranges) {
  std::vector<std::string> numbers;
  for (const std::string& range : split(ranges, ',')) {
    const std::size_t dash = range.find('-');
    const std::string first = range.substr(0, dash);
    const std::string last = dash == std::string::npos ? first : range.substr(dash + 1);
    const std::size_t begin = to_number(where, first);
    const std::size_t end = to_number(where, last);
    if (end < begin) fail(ErrorKind::usage, "{}: the range {} ends before it begins", where, range);
    if (end - begin >= most_hosts - numbers.size()) fail(ErrorKind::usage, "{}: more than {} hosts", where, most_hosts);
    if (first.size() > longest_name) fail(ErrorKind::usage, "{}: names longer than {} characters", where, longest_name);
    // As many digits as the first: node[08-10] is node08, node09, node10.
    for (std::size_t n = begin; n <= end; ++n) numbers.push_back(fmt::format("{:0{}}", n, first.size()));
  }
  return numbers;
}

// Appends the hosts of a name that may have brackets, none in one another.
void expand(const std::string& where, const std::string& part, std::vector<std::string>& hosts) {
  std::vector<std::string> names(1);
  for (std::size_t place = 0; place < part.size();) {
    const std::size_t open = std::min(part.find('[', place), part.size());
    for (std::string& name : names) name += part.substr(place, open - place);
    place = open;
    if (open < part.size()) {
      const std::size_t close = part.find(']', open);
      const std::vector<std::string> numbers = numbers_of(where, std::string_view(part).substr(open + 1, close - open - 1));
      if (numbers.size() * names.size() > most_hosts) fail(ErrorKind::usage, "{}: more than {} hosts", where, most_hosts);
      std::vector<std::string> longer;
      for (const std::string& name : names) {
        for (const std::string& number : numbers) longer.push_back(name + number);
      }
      names = std::move(longer);
      place = close + 1;
    }
    if (names.front().size() > longest_name) {
      fail(ErrorKind::usage, "{}: '{}...': a name of more than {} characters", where, part.substr(0, 20), longest_name);
    }
  }
  for (const std::string& name : names) check_name(where, name);
  if (names.size() > most_hosts - hosts.size()) fail(ErrorKind::usage, "{}: more than {} hosts", where, most_hosts);
  hosts.insert(hosts.end(), names.begin(), names.end());
}

}  // namespace

std::vector<std::string> expand_hosts(const std::string& where, const std::string& text) {
  std::vector<std::string> hosts;
  for (const std::string& part : parts_of(where, text)) expand(where, part, hosts);
  return hosts;
}

std::vector<Host> read_hostfile(const std::filesystem::path& path) {
  std::vector<Host> hosts;
  std::unordered_map<std::string, std::size_t> places;  // in `hosts`
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
      const auto [place, is_new] = places.try_emplace(name, hosts.size());
      if (is_new) hosts.push_back({name, 0});
      Host& host = hosts[place->second];
      if (slots > most_slots - host.slots) {
        fail(ErrorKind::usage, "{}: host {} has more than {} slots", where, name, most_slots);
      }
      host.slots += slots;
    }
    if (hosts.size() > most_hosts) fail(ErrorKind::usage, "{}: more than {} hosts", where, most_hosts);
  }
  if (hosts.empty()) fail(ErrorKind::usage, "{}: no hosts; expected a host per line", path.string());
  return hosts;
}

}  // namespace bitloom::launch
