// The options of one command: declared once with a variable, a range and a description, read from the command line, from
// --config files and from the options.ini of a run. Boost.Program_options does the syntax and the help; what it leaves to the
// caller (ranges, messages that name option, value and what was expected, suggestions, writing INI) is done here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bitloom::cli {

// The largest value of counts without a bound of their own: what INI files and JSON can hold.
inline constexpr std::size_t any_count = std::numeric_limits<std::int64_t>::max();

class Options {
 public:
  // Where a value came from; earlier ones win.
  enum class Source { command_line, config_file, run, none };

  // usage: "bitloom eval MODEL|RUN [options]". `summary` is a sentence or a paragraph above the options.
  Options(std::string usage, std::string summary);

  // The heading of the options declared after it.
  void group(const std::string& title) { group_ = title; }
  // The options declared after it are not written by to_ini(): they say where and how, not what.
  void transient(bool value) { transient_ = value; }
  // Options that `declare` declares have defaults that are not those of their variables, and that their descriptions tell where
  // they can.
  template <typename F>
  void without_defaults(F&& declare) {
    has_defaults_ = false;
    declare();
    has_defaults_ = true;
  }

  // If called: --help shows these options alone, and --help-all the others too.
  void everyday(std::initializer_list<const char*> names) { everyday_.assign(names.begin(), names.end()); }

  // An option of earlier versions, which no help and no suggestion names. `now`: the option that it has become, which is set
  // instead; "": none, and giving it is an error, but in a file for the value that is now the only one.
  struct Former {
    const char* name;
    const char* now;
    const char* since;  // the version without it; "": an option of other commands, whose only value here may always be given
    const char* only;
  };
  void former(std::span<const Former> table) { former_.insert(former_.end(), table.begin(), table.end()); }

  // An option that has no effect unless another has one of these values; none: another than its default; "!x": any but x; "":
  // none.
  struct Need {
    const char* option;
    const char* other;
    std::vector<std::string> values;
    const char* harmless = nullptr;  // a value that is allowed beside, since it asks for no more than what is so
  };
  // finish() refuses the options that lack what they need: those on the command line and in --config files whose value is not
  // the default, unless the other one is nearer to the command line, as where it overrides a file. Options that are not
  // declared are passed over.
  void needs(std::span<const Need> table) { needs_.insert(needs_.end(), table.begin(), table.end()); }

  // Each puts the value of an option into a variable, which holds the default until finish(). The description gets the default
  // appended where there is one (but in without_defaults()); it names the unit.
  void flag(const std::string& name, bool& value, const std::string& description);
  void text(const std::string& name, std::string& value, const std::string& placeholder, const std::string& description);
  void list(const std::string& name, std::vector<std::string>& values, const std::string& placeholder,
            const std::string& description);
  // As list(), and several values may follow the name: --input a.txt b.txt.
  void series(const std::string& name, std::vector<std::string>& values, const std::string& placeholder,
              const std::string& description);
  // One of `allowed`; if these are more than three, the description has to name them.
  void choice(const std::string& name, std::string& value, std::vector<std::string> allowed, const std::string& description);
  void count(const std::string& name, std::size_t& value, std::size_t low, std::size_t high, const std::string& description);
  // low <= value <= high; with `open`, low < value.
  void number(const std::string& name, double& value, double low, double high, const std::string& description,
              bool open = false);
  // 0, or a number with B, KiB, MiB, GiB or TiB.
  void bytes(const std::string& name, std::uint64_t& value, const std::string& description);
  // Arguments on the command line without an option, `low` to `high` of them; `what` names one.
  void arguments(std::vector<std::string>& values, const std::string& what, std::size_t low, std::size_t high);

  // Reads the command line (and --config if that is declared). Of a value that is given twice the last one counts. Throws usage
  // errors. Returns false if help was asked for.
  bool parse(std::span<const std::string> args);
  // Adds the options of an INI file that were not given yet. `name` stands for it in messages, which add the line.
  void read_ini(const std::string& text, const std::string& name, Source source);
  // Puts all values into the variables. Throws usage errors.
  void finish();

  // "bitloom train gpt", as the usage line has it.
  std::string command() const;
  bool has(const std::string& name) const { return find(name) != nullptr; }
  Source source(const std::string& name) const;
  // Whether the command line or a --config file gives it, not the run that goes on or the default.
  bool is_asked_for(const std::string& name) const;
  // The same, but in a --config file only another value than the default: the options that a run began with are all of them.
  // After finish().
  bool is_chosen(const std::string& name) const;
  // The same of another value than the default, unless `than`, which decides whether it has an effect, is nearer to the command
  // line. After finish().
  bool asks_for_other(const std::string& name, const std::string& than) const;
  // The value as written, "" if it was not given: for the few that are needed before finish().
  std::string raw(const std::string& name) const;

  // As wide as the screen, if there is one; with --help-all all options, otherwise those of everyday() and how many more there
  // are. For scripts/manuals: with --help-manual a page of `man`, in roff; with --help-words a line for each option, "--name"
  // and its values if these are few.
  std::string help() const;
  // All options that are not transient, with the values that the variables have now.
  std::string to_ini() const;

 private:
  struct Entry {
    std::string name, placeholder, description, group;
    std::vector<std::string> default_values, allowed;
    bool is_flag = false, repeatable = false, series = false, transient = false;
    std::function<void(const std::string& label, const std::vector<std::string>& values)> set;
    std::function<std::vector<std::string>()> get;
  };
  struct Given {
    Source source = Source::none;
    std::string label;  // how messages call the option: "--batch", "train.ini:3: batch"
    std::vector<std::string> values;
  };
  Entry& add(const std::string& name, const std::string& placeholder, const std::string& description,
             const std::string& default_text = "");
  const Entry* find(const std::string& name) const;
  const Former* find_former(const std::string& name) const;
  std::string help_on_screen() const;
  std::string manual() const;
  std::string words() const;
  std::string suggestion(const std::string& unknown) const;
  void check_needs() const;
  void remember(const std::string& name, const std::string& label, const std::vector<std::string>& values, Source source,
                std::map<std::string, Given>& into) const;
  template <typename Parser, typename Label>
  void collect(Parser&& parser, Label&& label, Source source);

  std::string usage_, summary_, group_ = "Options";
  bool transient_ = false, has_defaults_ = true;
  std::vector<Entry> entries_;
  std::vector<std::string> everyday_;
  std::vector<Need> needs_;
  std::vector<Former> former_;
  std::map<std::string, Given> given_;
  std::vector<std::string>* arguments_ = nullptr;
  std::string argument_name_;
  std::size_t low_arguments_ = 0, high_arguments_ = 0;
};

// "8GiB", "500 MB" is not one: the units are binary. Throws a usage error that names `label`.
std::uint64_t parse_bytes(const std::string& label, const std::string& text);

}  // namespace bitloom::cli
