// The program `bitloom VERB [KIND] [options]`: finds the command, runs it, and turns errors into text and exit codes.
#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/field_names.h"
#include "cli/roff.h"
#include "cli/run_folder.h"
#include "cli/start_up.h"
#include "cli/system.h"
#include "cli/wrapped.h"
#include "core/error.h"
#include "core/suggest.h"
#include "core/text.h"
#include "core/version.h"

namespace bitloom::cli {
namespace {

// A line per command.
std::string list_of(const std::string& verb, const std::string& before) {
  std::string lines;
  for (const Command& command : commands()) {
    if (!verb.empty() && verb != command.verb) continue;
    const std::string name = fmt::format("{}{:<17} ", before, full_name(command));
    lines += name + wrapped(command.summary, columns_of_help(), name.size()) + "\n";
  }
  return lines;
}

std::string general_help() {
  const auto paragraph = [](const std::string& text) { return wrapped(text, columns_of_help(), 0) + "\n"; };
  return "Usage: bitloom VERB [KIND] [options]\n\n" +
         paragraph(
             "Bitloom trains neural networks: binary nets, convolutional nets and GPTs. `mpirun -n N bitloom train ...` uses N "
             "processes.") +
         "\nCommands:\n" + list_of("", "  ") + "\n" +
         paragraph("`bitloom help VERB [KIND]` or `bitloom VERB [KIND] --help` lists a command's options.") +
         "`bitloom --version` prints the version.\n\n"
         "Exit codes:\n"
         "  0   done\n"
         "  2   usage: an option, a net description or an argument is wrong\n"
         "  3   a data set, an image or a model file cannot be used\n"
         "  4   interrupted; continue with --resume\n"
         "  5   the operating system refused: disk full, no permission, ...\n"
         "  6   busy: another process holds the run folder, the cache or the worker's name\n"
         "  7   another process of an MPI run was lost\n"
         "  8   launch: the run could not be kept going\n"
         "  70  internal error: a bug in Bitloom\n\n" +
         paragraph(
             "Environment: OMP_NUM_THREADS (threads per process), BITLOOM_ISA (which kernels run; see `bitloom info`), "
             "XDG_CACHE_HOME (where the cache goes)");
}

// The page of `man` that names all commands.
std::string general_manual() {
  std::string text = roff_title("bitloom") +
                     ".SH NAME\nbitloom \\- trains neural networks on cheap, ordinary machines\n.SH SYNOPSIS\n" +
                     roff("bitloom VERB [KIND] [options]") + "\n.SH COMMANDS\n";
  for (const Command& command : commands()) {
    std::string page = "bitloom-" + full_name(command);
    std::replace(page.begin(), page.end(), ' ', '-');
    text += ".TP\n\\fB" + roff(page) + "\\fR(1)\n" + roff(command.summary) + "\n";
  }
  return text + ".SH NOTES\n.nf\n" + roff(general_help().substr(general_help().find("Exit codes:"))) + "\n.fi";
}

std::vector<std::string> names_of(const std::string& verb) {
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    if (verb.empty() && !contains(names, command.verb)) names.emplace_back(command.verb);
    if (verb == command.verb) names.emplace_back(command.kind);
  }
  return names;
}

// Finds the command that `args` starts with and drops its name from them.
const Command& find_command(std::vector<std::string>& args) {
  const std::string verb = args.front();
  const std::vector<std::string> kinds = names_of(verb);
  if (kinds.empty()) {
    std::vector<std::string> known = names_of("");
    known.emplace_back("help");
    fail(ErrorKind::usage, "unknown command '{}'{}", verb, did_you_mean(verb, known));
  }
  args.erase(args.begin());
  std::string kind;
  const bool has_kind = !args.empty() && !args.front().starts_with('-');
  if (!kinds.front().empty() || (kinds.size() > 1 && has_kind)) {
    if (!has_kind) fail(ErrorKind::usage, "{}: expected what: {}", verb, fmt::join(kinds, ", "));
    kind = args.front();
    args.erase(args.begin());
  }
  for (const Command& command : commands()) {
    if (verb == command.verb && kind == command.kind) return command;
  }
  std::vector<std::string> named = kinds;
  const bool goes_without = std::erase(named, "") != 0;
  fail(ErrorKind::usage, "{}: unknown kind '{}'{}{}", verb, kind, did_you_mean(kind, named),
       goes_without ? "; without a kind: a binary net" : "");
}

// `bitloom help data`, `bitloom data --help`: a verb with several kinds has no options of its own.
bool asks_for_kinds(const std::vector<std::string>& args) {
  const std::vector<std::string> kinds = names_of(args.front());
  return !kinds.empty() && !kinds.front().empty() && (args.size() == 1 || args[1] == "--help" || args[1] == "-h");
}

int run_command(Session& session, std::vector<std::string> args) {
  if (args.empty()) {
    session.terminal.line(general_help());
    return exit_usage;
  }
  if (args.front() == "--version") {
    session.terminal.print("bitloom {}", version);
    return exit_done;
  }
  if (args.front() == "--help-manual") {  // these two are for scripts/manuals
    session.terminal.line(general_manual());
    return exit_done;
  }
  if (args.front() == "--help-words") {
    for (const Command& command : commands()) session.terminal.line(full_name(command));
    return exit_done;
  }
  const bool help = args.front() == "help";
  if (help) args.erase(args.begin());
  if (args.empty() || args.front() == "--help" || args.front() == "-h") {
    session.terminal.line(general_help());
    return exit_done;
  }
  const bool help_flag = args.size() > 1 && (args[1] == "--help" || args[1] == "-h");
  if ((help || help_flag) && asks_for_kinds(args)) {
    session.terminal.write(list_of(args.front(), "  bitloom "));
    session.terminal.print("\n`bitloom {} KIND --help` lists the options.", args.front());
    return exit_done;
  }
  const Command& command = find_command(args);
  if (help) args = {"--help"};
  return command.run(session, args);
}

int exit_code(ErrorKind kind) {
  constexpr std::array<std::pair<ErrorKind, ExitCode>, 6> codes{{{ErrorKind::usage, exit_usage},
                                                                 {ErrorKind::data, exit_data},
                                                                 {ErrorKind::interrupted, exit_interrupted},
                                                                 {ErrorKind::io, exit_io},
                                                                 {ErrorKind::busy, exit_busy},
                                                                 {ErrorKind::internal, exit_internal}}};
  for (const auto& [each, code] : codes) {
    if (each == kind) return code;
  }
  return exit_internal;
}

// Advice to the user about an end that leaves a run unfinished.
std::string advice(const Session& session, ErrorKind kind) {
  const auto& [command, options] = session.continuation;
  std::error_code error;
  if (command.empty() || !std::filesystem::exists(options, error)) return "";
  if (kind == ErrorKind::interrupted) return fmt::format("\ncontinue with: {}", command);
  if (kind == ErrorKind::io) return fmt::format("\nwhen that is mended, continue with: {}", command);
  return "";
}

// An error that the other ranks do not know of: they would wait for this one for ever.
int lonely_error(Session& session, const std::string& message, int code) {
  if (session.comm.size() == 1) {
    session.terminal.error(message);
    return code;
  }
  write_error(fmt::format("rank {}: {}", session.comm.rank(), printable(with_options(message))));
  mpi::abort_all(code);
}

int guarded(Session& session, const std::vector<std::string>& args) {
  try {
    return run_command(session, args);
  } catch (const mpi::PeerLost& error) {
    return lonely_error(session, error.what() + advice(session, ErrorKind::io), exit_peer_lost);
  } catch (const mpi::SharedError& error) {
    session.terminal.error(error.what() + advice(session, error.kind()));
    return exit_code(error.kind());
  } catch (const mpi::GroupError& error) {
    return lonely_error(session, error.what() + advice(session, error.kind()), exit_code(error.kind()));
  } catch (const Error& error) {
    const int code = exit_code(error.kind());
    const std::string message = error.what() + advice(session, error.kind());
    // Usage errors come from the command line, which all ranks share (what they read from files goes through together());
    // stopping is agreed upon by all.
    if (error.kind() != ErrorKind::usage && error.kind() != ErrorKind::interrupted) return lonely_error(session, message, code);
    session.terminal.error(message);
    return code;
  } catch (const std::filesystem::filesystem_error& error) {
    return lonely_error(session,
                        fmt::format("{}: {}{}", error.path1().string(), error.code().message(), advice(session, ErrorKind::io)),
                        exit_io);
  } catch (const std::bad_alloc&) {
    return lonely_error(session, "out of memory" + advice(session, ErrorKind::io), exit_io);
  } catch (const std::exception& error) {
    return lonely_error(session, fmt::format("internal error: {}", error.what()), exit_internal);
  }
}

// The exit code; results that did not arrive are an error, whatever else was done.
int finish(const Session& session, int code) {
  const int error = session.terminal.output_error();
  if (error == 0 || code != exit_done) return code;
  session.terminal.error(fmt::format("the standard output cannot be written: {}", std::strerror(error)));
  return exit_io;
}

// Where one of the three standard streams is closed, a file of the run would get its number, and what is printed. What is
// written there fails as before.
void occupy_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (fcntl(stream, F_GETFD) == -1 && errno == EBADF) open("/dev/null", O_RDONLY);
  }
}

int run(int argc, char** argv) {
  occupy_streams();
  const std::vector<std::string> args(argv + 1, argv + argc);
  std::unique_ptr<mpi::Environment> environment;
  try {
    environment = std::make_unique<mpi::Environment>(first_settings(args), on_hang());
  } catch (const mpi::PeerLost& error) {
    write_error(error.what());
    return exit_peer_lost;
  } catch (const Error& error) {
    write_error(error.what());
    return exit_code(error.kind());
  }
  Terminal terminal(!environment->world().is_root());
  Session session{environment->world(), terminal, "bitloom", {}};
  for (const std::string& arg : args) session.command_line += " " + shell_word(arg);
  return finish(session, guarded(session, args));
}

}  // namespace
}  // namespace bitloom::cli

int main(int argc, char** argv) { return bitloom::cli::run(argc, argv); }
