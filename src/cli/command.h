// The subcommands of the program. Each lives in cmd_<name>.cpp and gets the arguments after its name.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "cli/terminal.h"
#include "mpi/comm.h"

namespace bitloom::cli {

// Exit codes of the program; documented in `bitloom --help`.
enum ExitCode {
  exit_done = 0,
  exit_usage = 2,
  exit_data = 3,
  exit_interrupted = 4,
  exit_io = 5,
  exit_busy = 6,
  exit_peer_lost = 7,
  exit_gave_up = 8,
  exit_internal = 70,
};

// How to go on with the run that a command works on, once there is one.
struct Continuation {
  std::string command;
  std::filesystem::path options;  // the run's file of options, without which there is nothing to go on with
};

// Arguments that every command gets.
struct Session {
  mpi::Comm& comm;
  Terminal& terminal;
  std::string command_line;  // as typed, in words of a shell
  Continuation continuation;

  // Runs f on rank 0 alone; what it throws is thrown on all ranks.
  template <typename F>
  void on_root(F&& f) {
    comm.together([&] {
      if (comm.is_root()) f();
    });
  }
};

class Options;
// Reads the command line of a command into its variables. Returns false if --help was given, which is shown then. Throws usage
// errors.
bool parse_or_show_help(Session& session, std::span<const std::string> args, Options& options);

// Throws errors (core/error.h); returns an exit code otherwise.
using CommandFunction = int (*)(Session& session, std::span<const std::string> args);

struct Command {
  const char* verb;
  const char* kind;  // "" for verbs without kinds
  const char* summary;
  CommandFunction run;
};

// All commands, in the order in which the general help lists them.
std::span<const Command> commands();
// "train binary", "eval".
std::string full_name(const Command& command);
// The summary of the command with this full name, "" if there is none.
std::string summary_of(const std::string& name);

int train_binary(Session& session, std::span<const std::string> args);
int train_clip(Session& session, std::span<const std::string> args);
int train_cnn(Session& session, std::span<const std::string> args);
int train_dalle(Session& session, std::span<const std::string> args);
int train_dvae(Session& session, std::span<const std::string> args);
int train_gpt(Session& session, std::span<const std::string> args);
int eval(Session& session, std::span<const std::string> args);
int predict(Session& session, std::span<const std::string> args);
int sample(Session& session, std::span<const std::string> args);
int encode(Session& session, std::span<const std::string> args);
int reconstruct(Session& session, std::span<const std::string> args);
int compare(Session& session, std::span<const std::string> args);
int inspect(Session& session, std::span<const std::string> args);
int report(Session& session, std::span<const std::string> args);
int export_model(Session& session, std::span<const std::string> args);
int import_clip(Session& session, std::span<const std::string> args);
int import_cnn(Session& session, std::span<const std::string> args);
int import_dalle(Session& session, std::span<const std::string> args);
int import_dvae(Session& session, std::span<const std::string> args);
int import_gpt(Session& session, std::span<const std::string> args);
int verify(Session& session, std::span<const std::string> args);
int info(Session& session, std::span<const std::string> args);
int launch(Session& session, std::span<const std::string> args);
int plan(Session& session, std::span<const std::string> args);
int plan_cnn(Session& session, std::span<const std::string> args);
int plan_dalle(Session& session, std::span<const std::string> args);
int plan_gpt(Session& session, std::span<const std::string> args);
int plan_shape(Session& session, std::span<const std::string> args);
int simulate(Session& session, std::span<const std::string> args);
int selftest(Session& session, std::span<const std::string> args);
int fewbit(Session& session, std::span<const std::string> args);
int data_synth(Session& session, std::span<const std::string> args);
int data_info(Session& session, std::span<const std::string> args);
int data_sheet(Session& session, std::span<const std::string> args);
int data_pairs(Session& session, std::span<const std::string> args);
int data_synth_pairs(Session& session, std::span<const std::string> args);
int data_text(Session& session, std::span<const std::string> args);
int data_clean(Session& session, std::span<const std::string> args);
int tokenizer_train(Session& session, std::span<const std::string> args);
int tokenizer_info(Session& session, std::span<const std::string> args);

}  // namespace bitloom::cli
