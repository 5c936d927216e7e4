#include "cli/options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <boost/program_options.hpp>
#include <sstream>
#include <utility>

#include "cli/other_names.h"
#include "core/error.h"
#include "core/file.h"
#include "core/suggest.h"
#include "core/text.h"

namespace bitloom::cli {
namespace {

namespace po = boost::program_options;

constexpr const char* argument_key = "";  // how Boost calls what stands without an option
constexpr auto byte_units =
    std::to_array<std::pair<const char*, int>>({{"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}});

std::string bytes_text(std::uint64_t bytes) {
  for (auto unit = byte_units.rbegin(); unit != byte_units.rend(); ++unit) {
    const std::uint64_t size = std::uint64_t{1} << unit->second;
    if (bytes != 0 && bytes % size == 0) return fmt::format("{}{}", bytes / size, unit->first);
  }
  return "0";
}

std::string without_dashes(const std::string& name) {
  const std::size_t begin = name.find_first_not_of('-');
  return begin == std::string::npos ? name : name.substr(begin);
}

// Why `text` is refused where a number is expected.
const char* fault_of(const std::string& text, bool whole) {
  const auto made_of = [&](const char* characters) { return text.find_first_not_of(characters) == std::string::npos; };
  if (!made_of("0123456789+-.eE") || made_of("+-.eE") || text.starts_with('+')) return "not a number";
  return whole && !made_of("0123456789-") ? "not a whole number" : "out of range";
}

// The lines of an INI file in which a name has its values.
std::map<std::string, std::vector<std::size_t>> lines_of_names(const std::string& ini) {
  std::map<std::string, std::vector<std::size_t>> lines;
  std::istringstream stream(ini);
  std::size_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    lines[std::string(trim(std::string_view(line).substr(0, line.find_first_of("=#"))))].push_back(number);
  }
  return lines;
}

// Throws Error(usage) for the first line that has no name with a value; Boost tells no lines.
void require_values(const std::string& ini, const std::string& name) {
  constexpr std::size_t most = 60;  // characters of a line in a message
  std::istringstream stream(ini);
  std::size_t number = 0;
  for (std::string all; std::getline(stream, all);) {
    ++number;
    const std::string_view line = trim(std::string_view(all).substr(0, all.find('#')));
    if (line.empty() || line.starts_with('[')) continue;
    if (line.starts_with('-')) {
      fail(ErrorKind::usage, "{}:{}: '{}'; expected the name without dashes", name, number, line.substr(0, most));
    }
    if (line.find('=') == std::string_view::npos || line.starts_with('=')) {
      fail(ErrorKind::usage, "{}:{}: '{}'; expected NAME = VALUE", name, number, line.substr(0, most));
    }
  }
}

// "--exchange sparse or local".
std::string needed_text(const Options::Need& need) {
  const std::string other = fmt::format("--{}", need.other);
  if (need.values.empty()) return other;
  if (need.values.front().empty()) return fmt::format("no {}", other);
  if (need.values.front().starts_with('!')) return fmt::format("another {} than {}", other, need.values.front().substr(1));
  return fmt::format("{} {}", other, fmt::join(need.values, " or "));
}

}  // namespace

std::uint64_t parse_bytes(const std::string& label, const std::string& text) {
  const std::string_view trimmed = trim(text);
  const std::size_t digits = std::min(trimmed.find_first_not_of("0123456789."), trimmed.size());
  const auto number = parse_double(trimmed.substr(0, digits));
  const std::string_view suffix = trim(trimmed.substr(digits));
  for (const auto& [name, shift] : byte_units) {
    if (!number || (suffix != name && !(suffix.empty() && *number == 0))) continue;
    const double bytes = *number * static_cast<double>(std::uint64_t{1} << shift);
    if (bytes < 9e18) return static_cast<std::uint64_t>(bytes);
  }
  fail(ErrorKind::usage, "{}: '{}' is not a size; expected 0 or a number with B, KiB, MiB, GiB or TiB, such as 8GiB", label,
       text);
}

Options::Options(std::string usage, std::string summary) : usage_(std::move(usage)), summary_(std::move(summary)) {}

Options::Entry& Options::add(const std::string& name, const std::string& placeholder, const std::string& description,
                             const std::string& default_text) {
  Entry entry;
  entry.name = name;
  entry.placeholder = placeholder;
  entry.description = description;
  if (has_defaults_ && !default_text.empty()) entry.description += fmt::format(" (default {})", default_text);
  entry.group = group_;
  entry.transient = transient_;
  return entries_.emplace_back(std::move(entry));
}

void Options::flag(const std::string& name, bool& value, const std::string& description) {
  Entry& entry = add(name, "", description);
  entry.is_flag = true;
  entry.set = [&value](const std::string& label, const std::vector<std::string>& values) {
    if (values.empty() || values.front() == "true") {
      value = true;
    } else if (values.front() == "false") {
      value = false;
    } else {
      fail(ErrorKind::usage, "{}: '{}' is neither true nor false", label, values.front());
    }
  };
  entry.get = [&value] { return std::vector<std::string>{value ? "true" : "false"}; };
}

void Options::text(const std::string& name, std::string& value, const std::string& placeholder,
                   const std::string& description) {
  Entry& entry = add(name, placeholder, description, value);
  entry.set = [&value](const std::string&, const std::vector<std::string>& values) { value = values.front(); };
  entry.get = [&value] { return value.empty() ? std::vector<std::string>{} : std::vector<std::string>{value}; };
}

void Options::list(const std::string& name, std::vector<std::string>& values, const std::string& placeholder,
                   const std::string& description) {
  Entry& entry = add(name, placeholder, description + " (may be repeated)");
  entry.repeatable = true;
  entry.set = [&values](const std::string&, const std::vector<std::string>& given) { values = given; };
  entry.get = [&values] { return values; };
}

void Options::series(const std::string& name, std::vector<std::string>& values, const std::string& placeholder,
                     const std::string& description) {
  list(name, values, placeholder + "...", description);
  entries_.back().series = true;
}

void Options::choice(const std::string& name, std::string& value, std::vector<std::string> allowed,
                     const std::string& description) {
  Entry& entry = add(name, fmt::format("{}", fmt::join(allowed, "|")), description, value);
  if (allowed.size() > 3) entry.placeholder = "NAME";
  entry.allowed = allowed;
  entry.set = [&value, allowed = std::move(allowed)](const std::string& label, const std::vector<std::string>& values) {
    if (!contains(allowed, values.front())) {
      fail(ErrorKind::usage, "{}: unknown value '{}'{}", label, values.front(), did_you_mean(values.front(), allowed));
    }
    value = values.front();
  };
  entry.get = [&value] { return std::vector<std::string>{value}; };
}

void Options::count(const std::string& name, std::size_t& value, std::size_t low, std::size_t high,
                    const std::string& description) {
  Entry& entry = add(name, "N", description, fmt::format("{}", value));
  entry.set = [&value, low, high](const std::string& label, const std::vector<std::string>& values) {
    const auto number = parse_int(values.front());
    if (!number || *number < 0 || static_cast<std::size_t>(*number) < low || static_cast<std::size_t>(*number) > high) {
      fail(ErrorKind::usage, "{}: '{}' is {}; expected a whole number from {} to {}", label, values.front(),
           fault_of(values.front(), true), low, high);
    }
    value = static_cast<std::size_t>(*number);
  };
  entry.get = [&value] { return std::vector<std::string>{fmt::format("{}", value)}; };
}

void Options::number(const std::string& name, double& value, double low, double high, const std::string& description,
                     bool open) {
  Entry& entry = add(name, "X", description, fmt::format("{}", value));
  entry.set = [&value, low, high, open](const std::string& label, const std::vector<std::string>& values) {
    const auto number = parse_double(values.front());
    if (!number || !(open ? *number > low : *number >= low) || !(*number <= high)) {
      fail(ErrorKind::usage, "{}: '{}' is {}; expected a number {} {} and at most {}", label, values.front(),
           fault_of(values.front(), false), open ? "above" : "from", low, high);
    }
    value = *number;
  };
  entry.get = [&value] { return std::vector<std::string>{fmt::format("{}", value)}; };
}

void Options::bytes(const std::string& name, std::uint64_t& value, const std::string& description) {
  Entry& entry = add(name, "SIZE", description, bytes_text(value));
  entry.set = [&value](const std::string& label, const std::vector<std::string>& values) {
    value = parse_bytes(label, values.front());
  };
  entry.get = [&value] { return std::vector<std::string>{bytes_text(value)}; };
}

void Options::arguments(std::vector<std::string>& values, const std::string& what, std::size_t low, std::size_t high) {
  arguments_ = &values;
  argument_name_ = what;
  low_arguments_ = low;
  high_arguments_ = high;
}

const Options::Entry* Options::find(const std::string& name) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.name == name; });
  return found == entries_.end() ? nullptr : &*found;
}

const Options::Former* Options::find_former(const std::string& name) const {
  const auto found = std::find_if(former_.begin(), former_.end(), [&](const Former& former) { return former.name == name; });
  return found == former_.end() ? nullptr : &*found;
}

void Options::remember(const std::string& name, const std::string& label, const std::vector<std::string>& values, Source source,
                       std::map<std::string, Given>& into) const {
  const auto [place, fresh] = into.try_emplace(name, Given{source, label, values});
  if (fresh) return;
  const Entry* entry = find(name);
  if (entry != nullptr && !entry->repeatable) {
    place->second = Given{source, label, values};
  } else {
    place->second.values.insert(place->second.values.end(), values.begin(), values.end());
  }
}

// The end of a message about an option that there is not: what was meant, or where all options are.
std::string Options::suggestion(const std::string& unknown) const {
  std::string name = unknown;
  std::replace(name.begin(), name.end(), '_', '-');
  for (const OtherName& alias : other_names()) {
    if (name != alias.name) continue;
    if (*alias.option == '\0') return fmt::format("; {}", alias.instead);
    if (find(alias.option) != nullptr) return fmt::format("; did you mean '{}'?", alias.option);
  }
  std::vector<std::string> names = {"help", "help-all"};
  for (const Entry& entry : entries_) names.push_back(entry.name);
  if (const std::string close = closest(name, names); !close.empty()) return fmt::format("; did you mean '{}'?", close);
  const std::string command = this->command();
  return fmt::format("; `{} --help{}` lists the options", command, everyday_.empty() ? "" : "-all");
}

// Runs one of Boost's parsers over descriptions of all options and keeps what is new.
template <typename Parser, typename Label>
void Options::collect(Parser&& parser, Label&& label, Source source) {
  po::options_description all;
  all.add_options()("help,h", "")("help-all", "")("help-manual", "")("help-words", "");
  for (const Entry& entry : entries_) {
    if (entry.is_flag) {
      all.add_options()(entry.name.c_str(), po::value<std::string>()->zero_tokens(), "");
    } else if (entry.series) {
      all.add_options()(entry.name.c_str(), po::value<std::vector<std::string>>()->multitoken(), "");
    } else {
      all.add_options()(entry.name.c_str(), po::value<std::string>(), "");
    }
  }
  for (const Former& former : former_) all.add_options()(former.name, po::value<std::string>(), "");
  std::map<std::string, Given> found;
  try {
    const po::parsed_options parsed = parser(all);
    for (const po::option& option : parsed.options) {
      const bool argument = option.position_key >= 0;
      const Former* former = argument ? nullptr : find_former(option.string_key);
      if (!argument && former == nullptr && find(option.string_key) == nullptr && !option.string_key.starts_with("help")) {
        throw po::unknown_option(option.string_key);
      }
      if (former != nullptr && *former->now == '\0') {
        const bool is_of_others = *former->since == '\0';
        if ((is_of_others || source != Source::command_line) && option.value.front() == former->only) continue;
        if (is_of_others) {
          fail(ErrorKind::usage, "{}: {}; expected {}, the only one here", label(former->name), option.value.front(),
               former->only);
        }
        fail(ErrorKind::usage, "{}: this option is gone since version {}; expected none, or {} in the files of an earlier run",
             label(former->name), former->since, former->only);
      }
      const bool is_for_command = option.string_key == "config" || option.string_key.starts_with("help");
      if (source == Source::config_file && is_for_command) {
        fail(ErrorKind::usage, "{}: no option for a file; expected it on the command line", label(option.string_key));
      }
      const std::string key = argument ? argument_key : option.string_key;
      remember(former == nullptr ? key : former->now, label(key), option.value, source, found);
    }
  } catch (const po::unknown_option& error) {
    const std::string name = without_dashes(error.get_option_name());
    fail(ErrorKind::usage, "unknown option {}{}", label(name), suggestion(name));
  } catch (const po::error& error) {
    fail(ErrorKind::usage, "{}{}", source == Source::command_line ? "" : label("") + " ", error.what());
  }
  given_.merge(found);
}

bool Options::parse(std::span<const std::string> args) {
  const auto command_line = [&](const po::options_description& all) {
    const int style = po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
    po::positional_options_description everything;
    everything.add("argument", -1);
    po::options_description with_arguments;
    with_arguments.add(all).add_options()("argument", po::value<std::vector<std::string>>(), "");
    return po::command_line_parser(std::vector<std::string>(args.begin(), args.end()))
        .options(with_arguments)
        .positional(everything)
        .style(style)
        .run();
  };
  collect(
      command_line, [](const std::string& name) { return "--" + name; }, Source::command_line);
  for (const char* help : {"help", "help-all", "help-manual", "help-words"}) {
    if (given_.contains(help)) return false;
  }
  const std::vector<std::string> values =
      given_.contains(argument_key) ? given_.at(argument_key).values : std::vector<std::string>{};
  if (values.size() > high_arguments_) {
    fail(ErrorKind::usage, "unexpected argument '{}'; usage: {}", values[high_arguments_], usage_);
  }
  if (values.size() < low_arguments_) fail(ErrorKind::usage, "missing {}; usage: {}", argument_name_, usage_);
  if (arguments_ != nullptr) *arguments_ = values;
  if (const std::string file = raw("config"); find("config") != nullptr && !file.empty()) {
    try {
      read_ini(read_text(file), file, Source::config_file);
    } catch (const Error& error) {
      fail(ErrorKind::usage, "--config: {}", error.what());
    }
  }
  return true;
}

void Options::read_ini(const std::string& text, const std::string& name, Source source) {
  const std::string ini(without_byte_order_mark(text));
  require_values(ini, name);
  const auto file = [&](const po::options_description& all) {
    std::istringstream stream(ini);
    return po::parse_config_file(stream, all);
  };
  // Boost tells no lines. A name that stands in several of them is asked for once for each.
  const auto lines = lines_of_names(ini);
  std::map<std::string, std::size_t> asked;
  const auto label = [&](const std::string& option) {
    const auto found = lines.find(option);
    if (option.empty() || found == lines.end()) return fmt::format("{}: {}", name, option);
    const std::size_t nth = std::min(asked[option]++, found->second.size() - 1);
    return fmt::format("{}:{}: {}", name, found->second[nth], option);
  };
  collect(file, label, source);
}

void Options::finish() {
  for (Entry& entry : entries_) {
    entry.default_values = entry.get();
    const auto found = given_.find(entry.name);
    if (found != given_.end()) entry.set(found->second.label, found->second.values);
  }
  check_needs();
}

void Options::check_needs() const {
  for (const Need& need : needs_) {
    const Entry* entry = find(need.option);
    const Entry* other = find(need.other);
    if (entry == nullptr || other == nullptr || !asks_for_other(need.option, need.other)) continue;
    const std::vector<std::string> values = entry->get();
    if (need.harmless != nullptr && values == std::vector<std::string>{need.harmless}) continue;
    const std::vector<std::string> of_other = other->get();
    const std::string value = of_other.empty() ? "" : of_other.front();
    const bool is_met = need.values.empty()                    ? of_other != other->default_values
                        : need.values.front().starts_with('!') ? value != std::string_view(need.values.front()).substr(1)
                                                               : contains(need.values, value);
    if (is_met) continue;
    const std::string shown = entry->is_flag ? "" : fmt::format(": {}", fmt::join(values, ", "));
    fail(ErrorKind::usage, "{}{} has no effect; it needs {}", given_.at(need.option).label, shown, needed_text(need));
  }
}

Options::Source Options::source(const std::string& name) const {
  const auto found = given_.find(name);
  return found == given_.end() ? Source::none : found->second.source;
}

bool Options::is_asked_for(const std::string& name) const {
  const Source from = source(name);
  return from == Source::command_line || from == Source::config_file;
}

bool Options::is_chosen(const std::string& name) const {
  return source(name) == Source::command_line || asks_for_other(name, name);
}

bool Options::asks_for_other(const std::string& name, const std::string& than) const {
  const Entry* entry = find(name);
  return entry != nullptr && is_asked_for(name) && source(name) <= source(than) && entry->get() != entry->default_values;
}

std::string Options::raw(const std::string& name) const {
  const auto found = given_.find(name);
  return found == given_.end() || found->second.values.empty() ? "" : found->second.values.front();
}

std::string Options::to_ini() const {
  std::string ini;
  for (const Entry& entry : entries_) {
    if (entry.transient) continue;
    for (const std::string& value : entry.get()) {
      // Boost's INI has comments but no quotes.
      if (value.find_first_of("#\n") != std::string::npos || value != trim(value)) {
        fail(ErrorKind::usage, "--{}: '{}' cannot be kept in an INI file: '#', line ends and outer spaces have no place there",
             entry.name, value);
      }
      ini += fmt::format("{} = {}\n", entry.name, value);
    }
  }
  return ini;
}

}  // namespace bitloom::cli
