#include "tests/cli/program.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "cli/signals.h"
#include "core/safetensors.h"
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
  std::vector<std::string> command = mpi_settings();
  command.insert(command.begin(), "env");
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

Args with(Args args, const Args& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

Args words_of(const std::string& text) {
  std::istringstream stream(text);
  Args words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

bool same_tensors(const std::filesystem::path& a, const std::filesystem::path& b, const std::string& ignored) {
  TensorFile first = TensorFile::load(a, Checksum::required);
  TensorFile second = TensorFile::load(b, Checksum::required);
  for (TensorFile* file : {&first, &second}) {
    if (ignored.empty()) break;
    std::erase_if(file->tensors, [&](const auto& each) { return each.first.find(ignored) != std::string::npos; });
  }
  return !first.tensors.empty() && std::equal(first.tensors.begin(), first.tensors.end(), second.tensors.begin(),
                                              second.tensors.end(), [](const auto& x, const auto& y) {
                                                return x.first == y.first && x.second.dtype == y.second.dtype &&
                                                       x.second.shape == y.second.shape &&
                                                       std::equal(x.second.bytes.begin(), x.second.bytes.end(),
                                                                  y.second.bytes.begin(), y.second.bytes.end());
                                              });
}

std::vector<std::string> mpi_settings() {
  std::vector<std::string> settings;
  for (const char* setting : {"OMPI_MCA_rmaps_base_oversubscribe=1", "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe",
                              "OMPI_MCA_hwloc_base_binding_policy=none", "OMPI_MCA_mpi_yield_when_idle=1", "OMPI_MCA_pml=ob1",
                              "OMPI_MCA_btl=vader,tcp,self", "OMPI_MCA_btl_tcp_if_include=lo", "OMPI_MCA_oob_tcp_if_include=lo",
                              "OMPI_MCA_btl_vader_single_copy_mechanism=none",
                              "ASAN_OPTIONS=detect_leaks=0" /* Open MPI keeps what it allocates */}) {
    settings.emplace_back(setting);
  }
  if (geteuid() == 0) {  // a container: mpirun wants to be told
    for (const char* launcher : {"OMPI", "PRTE"}) {
      settings.push_back(std::string(launcher) + "_ALLOW_RUN_AS_ROOT=1");
      settings.push_back(std::string(launcher) + "_ALLOW_RUN_AS_ROOT_CONFIRM=1");
    }
  }
  return settings;
}

Outcome run_program(const std::filesystem::path& folder, const std::vector<std::string>& args,
                    const std::vector<std::string>& settings) {
  std::vector<std::string> command = command_of(args);
  command.insert(command.begin(), settings.begin(), settings.end());  // for env, which goes before
  return run(folder, command);
}

Outcome run_program_into(const std::filesystem::path& folder, const std::filesystem::path& file,
                         const std::vector<std::string>& args) {
  const auto err = fresh_file(folder, ".err");
  Outcome outcome;
  outcome.code = wait_for_end(start(folder, command_of(args), file, err));
  outcome.err = read_file(err);
  return outcome;
}

Outcome run_on_screen(const std::filesystem::path& folder, unsigned short columns, const std::vector<std::string>& args) {
  const auto err = fresh_file(folder, ".err");
  const int screen = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(screen >= 0);
  REQUIRE(grantpt(screen) == 0);
  REQUIRE(unlockpt(screen) == 0);
  winsize size{};
  size.ws_row = 24;
  size.ws_col = columns;
  REQUIRE(ioctl(screen, TIOCSWINSZ, &size) == 0);
  const std::string name = ptsname(screen);
  // Held open here too: a terminal that nobody has open loses what was written last.
  const int held = open(name.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(held >= 0);
  termios raw{};
  REQUIRE(tcgetattr(held, &raw) == 0);
  cfmakeraw(&raw);
  REQUIRE(tcsetattr(held, TCSANOW, &raw) == 0);
  Outcome outcome;
  const pid_t process = start(folder, command_of(args), name, err);
  std::thread reader([&] {
    std::array<char, 4096> bytes{};
    for (ssize_t got = 0; (got = read(screen, bytes.data(), bytes.size())) > 0;) {
      outcome.out.append(bytes.data(), static_cast<std::size_t>(got));
    }
  });
  outcome.code = wait_for_end(process);
  close(held);  // the reader has all that is written before the last one closes, and then an error
  reader.join();
  close(screen);
  outcome.err = read_file(err);
  return outcome;
}

Outcome run_on_emulated_gpu(const std::filesystem::path& folder, const std::vector<std::string>& args,
                            const std::vector<std::string>& settings) {
  Args command = with({"env"}, settings);
  command.emplace_back(BITLOOM_EMULATED_GPU);
  return run(folder, with(command, args));
}

Outcome run_ranks(const std::filesystem::path& folder, int ranks, const std::vector<std::string>& args) {
  return run(folder, command_of_ranks(ranks, args));
}

Hold::Hold(const std::filesystem::path& folder, std::size_t steps) : file_(folder / "hold") { until(steps); }

void Hold::until(std::size_t steps) const { write_file(file_, std::to_string(steps)); }

void Hold::release() const { std::filesystem::remove(file_); }

bool wait_until(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

Outcome run_shell(const std::filesystem::path& folder, const std::string& script) {
  std::vector<std::string> command = mpi_settings();
  command.insert(command.end(), {std::string("BITLOOM=") + BITLOOM_PROGRAM, "bash", "-c", "unset OMP_NUM_THREADS\n" + script});
  return run(folder, command);
}

Background::Background(const std::filesystem::path& folder, const std::vector<std::string>& args, int ranks,
                       const std::vector<std::string>& settings)
    : out_(fresh_file(folder, ".out")), err_(fresh_file(folder, ".err")) {
  std::vector<std::string> command = ranks == 0 ? command_of(args) : command_of_ranks(ranks, args);
  command.insert(command.begin(), settings.begin(), settings.end());  // for env, which goes before
  process_ = start(folder, command, out_, err_);
}

Background::~Background() {
  if (process_ < 0) return;
  kill(process_, SIGKILL);
  int status = 0;
  waitpid(process_, &status, 0);
}

bool Background::wait_for(const std::string& text) {
  bool found = false;
  return wait_until([&] {
           siginfo_t state{};
           const bool ended =
               waitid(P_PID, static_cast<id_t>(process_), &state, WEXITED | WNOHANG | WNOWAIT) != 0 || state.si_pid != 0;
           found = std::filesystem::exists(out_) && read_file(out_).find(text) != std::string::npos;
           return found || ended;
         }) &&
         found;
}

void Background::signal(int number) const { REQUIRE(kill(process_, number) == 0); }

namespace {

struct Listed {
  pid_t id = -1, parent = -1;
  std::string name, state, variables;  // the environment, each variable between zeros
};

// Processes that end meanwhile have no files any more, or such that cannot be read to their end.
std::vector<Listed> processes() {
  const auto content = [](const std::filesystem::path& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();  // which stops where reading fails; an iterator of the file throws
    return text.str();
  };
  std::vector<Listed> all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string number = entry.path().filename().string();
    if (number.find_first_not_of("0123456789") != std::string::npos) continue;
    // "PID (name) state PARENT ..."
    const std::string stat = content(entry.path() / "stat");
    const std::size_t open = stat.find('(');
    const std::size_t close = stat.rfind(')');
    if (open == std::string::npos || close == std::string::npos) continue;
    Listed process;
    process.id = std::stoi(number);
    process.name = stat.substr(open + 1, close - open - 1);
    std::istringstream fields(stat.substr(close + 1));
    fields >> process.state >> process.parent;
    process.variables.assign(1, '\0');
    process.variables += content(entry.path() / "environ");
    all.push_back(std::move(process));
  }
  return all;
}

}  // namespace

// The first process for which `wanted` holds and that the background program, or one that it started, has started; -1: none.
template <typename F>
pid_t Background::descendant(F&& wanted) const {
  const std::vector<Listed> all = processes();
  for (const Listed& process : all) {
    if (!wanted(process)) continue;
    pid_t above = process.parent;
    while (above > 1 && above != process_) {
      const auto found = std::find_if(all.begin(), all.end(), [&](const Listed& each) { return each.id == above; });
      above = found == all.end() ? 0 : found->parent;
    }
    if (above == process_) return process.id;
  }
  return -1;
}

pid_t Background::rank(int number) const {
  const std::string variable = fmt::format("{0}OMPI_COMM_WORLD_RANK={1}{0}", '\0', number);
  const pid_t found = descendant([&](const Listed& process) { return process.variables.find(variable) != std::string::npos; });
  if (found < 0) FAIL("mpirun has no process of rank " << number);
  return found;
}

pid_t Background::launcher() const {
  const pid_t found = descendant([](const Listed& process) { return process.name == "mpirun"; });
  if (found < 0) FAIL("the program has not started mpirun");
  return found;
}

bool Background::wait_for_end_of(pid_t process) const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (std::chrono::steady_clock::now() < deadline) {
    const std::vector<Listed> all = processes();
    const auto found = std::find_if(all.begin(), all.end(), [&](const Listed& each) { return each.id == process; });
    if (found == all.end() || found->state == "Z") return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

Outcome Background::wait_without(int rank, const Hold& hold) {
  REQUIRE(kill(this->rank(rank), SIGSTOP) == 0);
  hold.release();
  return wait();
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

// A notice that the machine goes counted as the first of two presses of Ctrl-C, the second of which ends the program.
TEST_CASE("a signal after another request to stop is no second request", "[program]") {
  const pid_t child = fork();
  if (child == 0) {
    cli::catch_stop_signals();
    cli::request_stop();
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    kill(getpid(), SIGTERM);
    // Until a thread has taken it, and its handler is over.
    sigset_t pending;
    do {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      sigpending(&pending);
    } while (sigismember(&pending, SIGTERM) == 1);
    _exit(cli::stop_requested() ? 7 : 8);
  }
  CHECK(wait_for_end(child) == 7);
}
