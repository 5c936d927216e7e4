// Output of --help and --help-all; messages name options that there are.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/field_names.h"
#include "cli/options.h"
#include "layerwise/train_options.h"
#include "tests/cli/commands.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

namespace bitloom::test {

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> list;
  for (std::string word; stream >> word;) list.push_back(word);
  return list;
}

std::vector<std::string> listed_commands() {
  const TempDir folder;
  const std::string help = run_program(folder.path(), {"--help"}).out;
  std::istringstream lines(help.substr(help.find("Commands:\n") + 10));
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line) && line.starts_with("  ");) {
    const std::string name = line.substr(2, 16);
    names.push_back(name.substr(0, name.find_last_not_of(' ') + 1));
  }
  return names;
}

std::vector<std::string> options_in(const std::string& help) {
  static const std::regex declared("(?:^  |\\[ )--([a-z][a-z0-9-]*)");
  std::vector<std::string> options;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    if (std::smatch found; std::regex_search(line, found, declared)) options.push_back(found[1]);
  }
  return options;
}

}  // namespace bitloom::test

using namespace bitloom;
using namespace bitloom::test;

namespace {

const std::set<std::string> of_mpirun{"allow-run-as-root", "bind-to", "host", "hostfile", "map-by", "mca", "oversubscribe"};

// Output of a command for --help or --help-all.
std::string help_of(const std::string& command, const char* option) {
  const TempDir folder;
  Args args = words(command);
  args.emplace_back(option);
  return run_program(folder.path(), args).out;
}

const std::set<std::string>& all_options() {
  static const std::set<std::string> options = [] {
    std::set<std::string> all{"version", "help-manual", "help-words"};
    for (const std::string& command : listed_commands()) {
      for (const std::string& name : options_in(help_of(command, "--help-all"))) all.insert(name);
    }
    return all;
  }();
  return options;
}

std::string without_escapes(const std::string& roff) {
  std::string plain;
  for (const char c : roff) plain += c == '\\' ? "" : std::string(1, c);
  return plain;
}

// Calls `see` with each string literal and the line that it is in, comments left out. src/report is too: its pages have
// variables of CSS, "--muted".
template <typename F>
void for_each_literal(const std::filesystem::path& folder, F&& see) {
  static const std::regex literal(R"re("(?:[^"\\]|\\.)*")re");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".cpp" && extension != ".h") continue;
    if (entry.path().parent_path().filename() == "report") continue;
    std::istringstream source(read_file(entry.path()));
    for (std::string line; std::getline(source, line);) {
      if (line.find_first_not_of(' ') == line.find("//")) continue;
      for (std::sregex_iterator text(line.begin(), line.end(), literal), none; text != none; ++text) {
        see(entry.path(), line, text->str());
      }
    }
  }
}

std::vector<std::string> found_in(const std::string& text, const std::regex& pattern) {
  std::vector<std::string> names;
  for (std::sregex_iterator found(text.begin(), text.end(), pattern), none; found != none; ++found)
    names.push_back((*found)[1]);
  return names;
}

}  // namespace

TEST_CASE("every command has help with defaults", "[usage]") {
  const TempDir folder;
  const Outcome general = run_program(folder.path(), {"--help"});
  REQUIRE(general.code == 0);
  CHECK(has(general.out, "Exit codes:"));
  const std::vector<std::string> names = listed_commands();
  CHECK(names.size() == 40);
  for (const std::string& name : names) {
    INFO(name);
    std::vector<std::string> args = words(name);
    args.emplace_back("--help");
    const Outcome help = run_program(folder.path(), args);
    CHECK(help.code == 0);
    CHECK(help.out.starts_with("Usage: bitloom " + name));
    CHECK(has(help.out, "--help"));
    args = words("help " + name);
    CHECK(run_program(folder.path(), args).out == help.out);
  }
  const Outcome train = run_program(folder.path(), {"help", "train", "binary"});
  const Outcome all = run_program(folder.path(), {"train", "binary", "--help-all"});
  CHECK(all.code == 0);
  CHECK(has(all.out, "(default 8GiB)"));
  CHECK(has(all.out, "--repeat"));
  CHECK_FALSE(has(train.out, "--repeat"));
  CHECK(has(train.out, "--help-all"));
  CHECK(std::count(train.out.begin(), train.out.end(), '\n') < 90);
  CHECK(has(train.out, "(default 128)"));
  CHECK_FALSE(has(train.out, "stop-after-steps"));
  CHECK(has(run_program(folder.path(), {"data", "--help"}).out, "data synth"));
}

TEST_CASE("help has at most 30 options, --help-all has every option once, both in 100 columns", "[help]") {
  std::set<std::string> all;
  for (const std::string& command : listed_commands()) {
    INFO(command);
    const std::string help = help_of(command, "--help");
    const std::string help_all = help_of(command, "--help-all");
    const std::vector<std::string> shown = options_in(help);
    std::vector<std::string> options = options_in(help_all);
    CHECK(shown.size() <= 30);
    for (const std::string& text : {help, help_all}) {
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) {
        INFO(line);
        CHECK(line.size() <= 100);
      }
    }
    if (shown.size() == options.size()) {
      CHECK_FALSE(has(help, "more options"));
    } else {
      CHECK(help.ends_with(
          fmt::format("\n`bitloom {} --help-all` shows {} more options.\n", command, options.size() - shown.size())));
    }
    CHECK_FALSE(has(help_all, "more options"));
    std::sort(options.begin(), options.end());
    CHECK(std::adjacent_find(options.begin(), options.end()) == options.end());
    for (const std::string& name : shown) CHECK(std::binary_search(options.begin(), options.end(), name));
    all.insert(options.begin(), options.end());
  }
  // Whatever src/cli declares, and what layerwise/ has for it.
  static const std::regex declaration(R"re(options\.(?:flag|text|list|series|choice|count|number|bytes)\(\s*"([a-z0-9-]+)")re");
  std::size_t declared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_folder() / "src/cli")) {
    for (const std::string& name : found_in(read_file(entry.path()), declaration)) {
      ++declared;
      INFO(entry.path() << ": " << name);
      CHECK(all.contains(name));
    }
  }
  CHECK(declared > 150);
  for (const layerwise::RealOption& real : layerwise::real_options()) {
    INFO(real.name);
    CHECK(all.contains(cli::option_of_field(real.name).substr(2)));
  }
}

TEST_CASE("pages of man have every option of a command, and completion their values", "[help]") {
  const TempDir folder;
  const Args own = words(run_program(folder.path(), {"--help-words"}).out);
  REQUIRE(own.size() > listed_commands().size());  // two words for most
  const std::string general = run_program(folder.path(), {"--help-manual"}).out;
  CHECK(has(general, "\n.TP\n\\fBbitloom\\-train\\-binary\\fR(1)\n"));
  const std::string plain_general = without_escapes(general);
  for (const std::string& command : listed_commands()) {
    INFO(command);
    std::string page = help_of(command, "--help-manual");
    CHECK(page.starts_with(".TH BITLOOM-"));
    const std::string plain = without_escapes(page);
    // NAME is what `apropos` shows: the summary of the table of commands, not the first words of the description.
    std::string page_name = "bitloom-" + command;
    std::replace(page_name.begin(), page_name.end(), ' ', '-');
    const std::string entry = "\n.TP\nfB" + page_name + "fR(1)\n";
    const std::size_t place = plain_general.find(entry);
    REQUIRE(place != std::string::npos);
    const std::size_t begin = place + entry.size();
    const std::string summary = plain_general.substr(begin, plain_general.find('\n', begin) - begin);
    CHECK(summary.size() > 8);
    CHECK(has(plain, "\n.SH NAME\n" + page_name + " - " + summary + "\n.SH SYNOPSIS\n"));
    std::istringstream lines(help_of(command, "--help-words"));
    std::set<std::string> completed;
    for (std::string line; std::getline(lines, line);) completed.insert(line.substr(2, line.find(' ') - 2));
    for (const std::string& name : options_in(help_of(command, "--help-all"))) {
      INFO(name);
      if (!name.starts_with("help")) CHECK(has(plain, "\n.TP\nfB--" + name + "fR"));
      CHECK(completed.contains(name));
    }
  }
  CHECK(has(help_of("train binary", "--help-words"), "\n--exchange dense sparse\n"));
}

TEST_CASE("the completion of bash knows commands, options and their values", "[help]") {
  const TempDir folder;
  const std::string made = "'" + (source_folder() / "scripts/manuals").string() +
                           "' \"$BITLOOM\" . && source ./bitloom\n"
                           "compopt() { echo files; }\n"
                           "complete_() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _bitloom; echo \"${COMPREPLY[*]}\"; }\n";
  const auto completed = [&](const std::string& line) {
    const Outcome done = run_shell(folder.path(), made + "complete_ " + line);
    INFO(done.err);
    CHECK(done.code == 0);
    CHECK(done.err.empty());
    return done.out;
  };
  CHECK(completed("bitloom rep") == "report\n");
  CHECK(completed("bitloom import c") == "clip cnn\n");
  CHECK(completed("bitloom train binary --teacher-sha") == "--teacher-share\n");
  CHECK(completed("bitloom predict runs/x --mirror ''") == "on off model\n");
  CHECK(completed("bitloom plan gpt --ranks-") == "--ranks-per-host\n");
  for (const char* line :
       {"bitloom eval ''", "bitloom eval runs/x ''", "bitloom train gpt --data a/b ''", "bitloom predict 'tr[' ''"}) {
    CHECK(has(completed(line), "files"));
  }
  CHECK(completed("bitloom 'tr['") == "\n");
  const Outcome pages = run_shell(folder.path(), "for page in man1/*.gz; do zcat $page; done | grep -c '^.TH '");
  CHECK(std::stoul(pages.out) == listed_commands().size() + 1);
}

// Some messages named options that no command had.
TEST_CASE("every option that a message names is one of some command", "[help]") {
  REQUIRE(all_options().size() > 140);
  CHECK(all_options().contains("help-all"));
  const std::regex option("(?:^|[^-a-z])--([a-z][a-z0-9-]*)");
  std::size_t named = 0;
  for_each_literal(source_folder() / "src/cli", [&](const auto& file, const std::string& line, const std::string& text) {
    for (const std::string& name : found_in(text, option)) {
      ++named;
      INFO(file << ": " << line);
      CHECK((all_options().contains(name) || of_mpirun.contains(name)));
    }
  });
  CHECK(named > 200);
}

TEST_CASE("libraries name fields, each of which some option sets, and no options", "[help]") {
  const std::regex option("(?:^|[^-a-z])--([a-z][a-z0-9-]*)");
  const std::regex marked("`([a-z0-9_]+)`");
  const std::regex thrown(
      R"re((?:fail_field\(\s*ErrorKind::[a-z]+,|marked_field\(|in_unit\(|not_negative\(|positive\(|at_least_one\()\s*"([^"]+)")re");
  std::size_t named = 0;
  const auto is_field_of_option = [&](const std::string& field) {
    ++named;
    INFO(field);
    const std::string name = cli::with_options("`" + field + "`");
    REQUIRE(name.starts_with("--"));
    CHECK(all_options().contains(name.substr(2)));
  };
  std::vector<std::filesystem::path> libraries;
  for (const char* name : {"layerwise", "mpi", "models", "simd"}) libraries.push_back(source_folder() / name);
  for (const auto& entry : std::filesystem::directory_iterator(source_folder() / "src")) {
    if (entry.is_directory() && entry.path().filename() != "cli") libraries.push_back(entry.path());
  }
  for (const std::filesystem::path& library : libraries) {
    for_each_literal(library, [&](const auto& file, const std::string& line, const std::string& text) {
      INFO(file << ": " << line);
      // The supervisor writes command lines, for mpirun and for the program that it starts.
      const bool writes_commands = file.parent_path().filename() == "launch";
      for (const std::string& name : found_in(text, option)) {
        INFO(name);
        CHECK((writes_commands && (of_mpirun.contains(name) || name == "resume")));
      }
      for (const std::string& field : found_in(text, marked)) is_field_of_option(field);
    });
    for (const auto& entry : std::filesystem::recursive_directory_iterator(library)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".cpp" && extension != ".h") continue;
      INFO(entry.path());
      const std::string source = read_file(entry.path());
      if (!has(source, "core/field.h")) continue;
      for (const std::string& field : found_in(source, thrown)) is_field_of_option(field);
    }
  }
  CHECK(named > 90);
}

TEST_CASE("options stand for fields in messages, commands stay as they are", "[help]") {
  CHECK(cli::with_options("`batch`: 0; expected at least 1") == "--batch: 0; expected at least 1");
  CHECK(cli::with_options("stage 's': `fan_in`: 0, `residual_memory` 1") == "stage 's': --tree: 0, --residual-memory 1");
  CHECK(cli::with_options("`bitloom info` and `seed`") == "`bitloom info` and --seed");
  CHECK(cli::with_options("`` ` `batch") == "`` ` `batch");
  CHECK(cli::with_options("").empty());
  CHECK(cli::option_of_field("options.head_rate") == "--head-learning-rate");
  CHECK(cli::option_of_field("options.flip_limit") == "--flips-per-update");
}

TEST_CASE("options of earlier versions are taken for what they have become, or refused", "[help]") {
  const std::vector<cli::Options::Former> former{{"old-name", "name", "0.1.0", ""}, {"rounding", "", "0.1.0", "2"}};
  double value = 1;
  const auto read = [&](const Args& args, const std::string& run) {
    cli::Options options("bitloom test [options]", "");
    options.number("name", value, 0, 10, "Number");
    options.former(former);
    CHECK_FALSE(has(options.help(), "old-name"));
    options.parse(args);
    options.read_ini(run, "options.ini", cli::Options::Source::run);
    options.finish();
  };
  read({"--old-name", "3"}, "");
  CHECK(value == 3);
  read({}, "old-name = 4\nrounding = 2\n");
  CHECK(value == 4);
  read({"--name", "5"}, "old-name = 4\n");
  CHECK(value == 5);
  CHECK(message_of(ErrorKind::usage, [&] { read({"--old-name", "11"}, ""); }).starts_with("--old-name: '11' is out of range"));
  CHECK(message_of(ErrorKind::usage, [&] {
          read({"--rounding", "2"}, "");
        }) == "--rounding: this option is gone since version 0.1.0; expected none, or 2 in the files of an earlier run");
  CHECK(message_of(ErrorKind::usage, [&] {
          read({}, "rounding = 3\n");
        }).starts_with("options.ini:1: rounding: this option is gone"));
  CHECK(message_of(ErrorKind::usage, [&] { read({"--old-nam", "2"}, ""); }).find("old-name") == std::string::npos);
}

// --help leaves most of them out.
TEST_CASE("options that --help does not show are read and suggested", "[help]") {
  double value = 1;
  const auto read = [&](const Args& args) {
    cli::Options options("bitloom test [options]", "");
    options.everyday({"name"});
    std::string name;
    options.text("name", name, "NAME", "Name");
    options.number("clearance", value, 0, 10, "Number");
    CHECK_FALSE(has(options.help(), "clearance"));
    options.parse(args);
    options.read_ini("clearance = 4\n", "options.ini", cli::Options::Source::run);
    options.finish();
  };
  read({"--clearance", "3"});
  CHECK(value == 3);
  read({});
  CHECK(value == 4);
  CHECK(has(message_of(ErrorKind::usage, [&] { read({"--clearence", "3"}); }), "did you mean 'clearance'?"));
}
