#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <functional>
#include <sstream>

#include "cli/command.h"
#include "cli/options.h"
#include "cli/roff.h"
#include "cli/wrapped.h"
#include "core/text.h"

namespace bitloom::cli {

namespace po = boost::program_options;

// "bitloom train binary": the words of the usage before what varies.
std::string Options::command() const {
  std::istringstream words(usage_);
  std::string name;
  const auto is_of_name = [](const std::string& word) {
    return !word.starts_with('-') && word.find_first_not_of("abcdefghijklmnopqrstuvwxyz-") == std::string::npos;
  };
  for (std::string word; words >> word && is_of_name(word);) {
    name += (name.empty() ? "" : " ") + word;
  }
  return name;
}

std::string Options::help_on_screen() const {
  const auto columns = static_cast<unsigned>(columns_of_help());
  const bool all = everyday_.empty() || given_.contains("help-all");
  const auto is_shown = [&](const Entry& entry) { return all || contains(everyday_, entry.name); };
  std::ostringstream out;
  out << wrapped("Usage: " + usage_, columns, 4) << "\n\n" << wrapped(summary_, columns, 0) << "\n";
  std::vector<std::string> groups;
  for (const Entry& entry : entries_) {
    if (is_shown(entry) && !contains(groups, entry.group)) groups.push_back(entry.group);
  }
  for (const std::string& group : groups) {
    po::options_description section(group, columns, columns * 2 / 3);
    for (const Entry& entry : entries_) {
      if (entry.group != group || !is_shown(entry)) continue;
      if (entry.is_flag) {
        section.add_options()(entry.name.c_str(), po::value<std::string>()->zero_tokens(), entry.description.c_str());
      } else {
        section.add_options()(entry.name.c_str(), po::value<std::string>()->value_name(entry.placeholder),
                              entry.description.c_str());
      }
    }
    out << "\n" << section;
  }
  po::options_description section("Help", columns, columns * 2 / 3);
  section.add_options()("help,h", everyday_.empty() ? "This text" : "The options that are used most");
  if (!everyday_.empty()) section.add_options()("help-all", "All options");
  out << "\n" << section;
  const auto left_out = std::count_if(entries_.begin(), entries_.end(), std::not_fn(is_shown));
  if (left_out != 0) out << fmt::format("\n`{} --help-all` shows {} more options.", command(), left_out);
  return out.str();
}

std::string Options::words() const {
  std::string lines;
  for (const Entry& entry : entries_) {
    lines += "--" + entry.name;
    for (const std::string& value : entry.allowed) lines += " " + value;
    lines += "\n";
  }
  return lines + "--help" + (everyday_.empty() ? "" : "\n--help-all");
}

std::string Options::manual() const {
  const std::string name = command();
  std::string page = name;
  std::replace(page.begin(), page.end(), ' ', '-');
  const std::string summary = summary_of(name.substr(name.find(' ') + 1));
  std::string text = roff_title(page) + ".SH NAME\n" + roff(page) + " \\- " + roff(summary) + "\n.SH SYNOPSIS\n" +
                     roff(usage_) + "\n.SH DESCRIPTION\n" + roff(summary_) + "\n.SH OPTIONS\n";
  std::string group;
  for (const Entry& entry : entries_) {
    if (entry.group != group) text += ".SS " + roff(entry.group) + "\n";
    group = entry.group;
    text += ".TP\n\\fB" + roff("--" + entry.name) + "\\fR" + (entry.is_flag ? "" : " \\fI" + roff(entry.placeholder) + "\\fR") +
            "\n" + roff(entry.description) + "\n";
  }
  return text + ".SH SEE ALSO\n\\fBbitloom\\fR(1)";
}

std::string Options::help() const {
  return given_.contains("help-manual") ? manual() : given_.contains("help-words") ? words() : help_on_screen();
}

}  // namespace bitloom::cli
