#include "tests/cli/program.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/files.h"

namespace bitloom::test {
namespace {

std::filesystem::path fresh_file(const std::filesystem::path& folder, const char* kind) {
  static std::atomic<int> number{0};
  return folder / (std::string("program-") + std::to_string(number++) + kind);
}

// Runs in the child between fork and exec: only what is safe there.
[[noreturn]] void become(char* const* argv, const char* folder, const char* out, const char* err) {
  const int out_file = open(out, O_CREAT | O_TRUNC | O_WRONLY, 0600);
  const int err_file = open(err, O_CREAT | O_TRUNC | O_WRONLY, 0600);
  if (out_file < 0 || err_file < 0 || dup2(out_file, STDOUT_FILENO) < 0 || dup2(err_file, STDERR_FILENO) < 0) _exit(126);
  if (chdir(folder) != 0) _exit(126);
  execvp(argv[0], argv);
  _exit(127);
}

pid_t start(const std::filesystem::path& folder, std::vector<std::string> command, const std::filesystem::path& out,
            const std::filesystem::path& err) {
  command.insert(command.begin(), {"env", "XDG_CACHE_HOME=" + (folder / "cache").string(), "OMP_NUM_THREADS=1"});
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string folder_name = folder.string();
  const pid_t process = fork();
  REQUIRE(process >= 0);
  if (process == 0) become(argv.data(), folder_name.c_str(), out.c_str(), err.c_str());
  return process;
}

int wait_for_end(pid_t process) {
  int status = 0;
  REQUIRE(waitpid(process, &status, 0) == process);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::vector<std::string> command_of(const std::vector<std::string>& args) {
  std::vector<std::string> command{BITLOOM_PROGRAM};
  command.insert(command.end(), args.begin(), args.end());
  return command;
}

std::vector<std::string> command_of_ranks(int ranks, const std::vector<std::string>& args) {
  std::vector<std::string> command{"env"};
  for (const char* setting : {"OMPI_MCA_rmaps_base_oversubscribe=1", "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe",
                              "OMPI_MCA_hwloc_base_binding_policy=none", "OMPI_MCA_mpi_yield_when_idle=1", "OMPI_MCA_pml=ob1",
                              "OMPI_MCA_btl=vader,tcp,self", "OMPI_MCA_btl_tcp_if_include=lo", "OMPI_MCA_oob_tcp_if_include=lo",
                              "OMPI_MCA_btl_vader_single_copy_mechanism=none",
                              "ASAN_OPTIONS=detect_leaks=0" /* Open MPI keeps what it allocates */}) {
    command.emplace_back(setting);
  }
  if (geteuid() == 0) {  // a container: mpirun wants to be told
    for (const char* launcher : {"OMPI", "PRTE"}) {
      command.push_back(std::string(launcher) + "_ALLOW_RUN_AS_ROOT=1");
      command.push_back(std::string(launcher) + "_ALLOW_RUN_AS_ROOT_CONFIRM=1");
    }
  }
  command.insert(command.end(), {"mpirun", "-n", std::to_string(ranks)});
  const std::vector<std::string> program = command_of(args);
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

Outcome run(const std::filesystem::path& folder, const std::vector<std::string>& command) {
  const auto out = fresh_file(folder, ".out");
  const auto err = fresh_file(folder, ".err");
  Outcome outcome;
  outcome.code = wait_for_end(start(folder, command, out, err));
  outcome.out = read_file(out);
  outcome.err = read_file(err);
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code != 126);
  CHECK(outcome.code != 127);
  return outcome;
}

}  // namespace

Outcome run_program(const std::filesystem::path& folder, const std::vector<std::string>& args,
                    const std::vector<std::string>& settings) {
  std::vector<std::string> command = command_of(args);
  command.insert(command.begin(), settings.begin(), settings.end());  // for env, which goes before
  return run(folder, command);
}

Outcome run_ranks(const std::filesystem::path& folder, int ranks, const std::vector<std::string>& args) {
  return run(folder, command_of_ranks(ranks, args));
}

Background::Background(const std::filesystem::path& folder, const std::vector<std::string>& args, int ranks)
    : out_(fresh_file(folder, ".out")), err_(fresh_file(folder, ".err")) {
  process_ = start(folder, ranks == 0 ? command_of(args) : command_of_ranks(ranks, args), out_, err_);
}

Background::~Background() {
  if (process_ < 0) return;
  kill(process_, SIGKILL);
  int status = 0;
  waitpid(process_, &status, 0);
}

bool Background::wait_for(const std::string& text) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (std::chrono::steady_clock::now() < deadline) {
    if (std::filesystem::exists(out_) && read_file(out_).find(text) != std::string::npos) return true;
    siginfo_t state{};
    if (waitid(P_PID, static_cast<id_t>(process_), &state, WEXITED | WNOHANG | WNOWAIT) != 0 || state.si_pid != 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

void Background::signal(int number) const { REQUIRE(kill(process_, number) == 0); }

pid_t Background::rank(int number) const {
  const std::string variable = "OMPI_COMM_WORLD_RANK=" + std::to_string(number);
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    // "PID (name) state PARENT ..."; processes that end meanwhile have no files any more.
    std::ifstream stat(entry.path() / "stat");
    const std::string text((std::istreambuf_iterator<char>(stat)), std::istreambuf_iterator<char>());
    std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
    std::string state;
    pid_t parent = 0;
    if (!(fields >> state >> parent) || parent != process_) continue;
    // One string after the other, each with a zero at its end.
    std::ifstream environ(entry.path() / "environ");
    const std::string variables((std::istreambuf_iterator<char>(environ)), std::istreambuf_iterator<char>());
    if (('\0' + variables).find('\0' + variable + '\0') != std::string::npos) return std::stoi(name);
  }
  FAIL("mpirun has no process of rank " << number);
  return -1;
}

Outcome Background::wait() {
  Outcome outcome;
  outcome.code = wait_for_end(process_);
  process_ = -1;
  outcome.out = read_file(out_);
  outcome.err = read_file(err_);
  return outcome;
}

std::vector<std::string> quick_training(const std::string& out) {
  return {"train",          "binary",
          "--net",          "tiny",
          "--data",         "synth",
          "--out",          out,
          "--max-train",    "300",
          "--epochs",       "1",
          "--max-test",     "100",
          "--batch",        "32",
          "--cache",        "none",
          "--set",          "layer1.width=64",
          "--set",          "layer2.width=64",
          "--validation",   "40",
          "--warmup-steps", "1"};
}

}  // namespace bitloom::test

using namespace bitloom;
using namespace bitloom::test;

TEST_CASE("the program ends with the codes that callers of run_program see", "[program]") {
  const TempDir folder;
  const Outcome version = run_program(folder.path(), {"--version"});
  CHECK(version.code == 0);
  CHECK(version.out.starts_with("bitloom "));
  CHECK(version.err.empty());
}
