#include "launch/process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <iterator>
#include <list>
#include <thread>
#include <utility>

#include "core/clock.h"
#include "core/error.h"

extern char** environ;

namespace bitloom::launch {
namespace {

constexpr auto poll_interval = std::chrono::milliseconds(10);
constexpr auto first_pause = std::chrono::milliseconds(50);  // before another try to start a program
constexpr auto longest_wait = std::chrono::milliseconds(1600);
constexpr auto kill_patience = std::chrono::seconds(5);

// Whether a program that could not be started for this reason may be soon.
bool is_passing(int reason) { return reason == EAGAIN || reason == ENOMEM || reason == EMFILE || reason == ENFILE; }

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

Process::Process(const std::vector<std::string>& args, const std::vector<std::string>& settings) {
  // All memory is there before the fork: between it and exec only what a signal handler may call.
  std::vector<std::string> arguments = args;
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    bool replaced = false;
    for (const std::string& setting : settings)
      replaced = replaced || text.starts_with(setting.substr(0, setting.find('=') + 1));
    if (!replaced) environment.push_back(text);
  }
  environment.insert(environment.end(), settings.begin(), settings.end());
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> envp = pointers(environment);
  int reason = start(argv.data(), envp.data());
  for (auto pause = first_pause; is_passing(reason) && pause <= longest_wait; pause *= 2) {
    std::this_thread::sleep_for(pause);
    reason = start(argv.data(), envp.data());
  }
  if (reason != 0) fail(ErrorKind::io, "{}: cannot be started: {}", args[0], std::strerror(reason));
}

// 0, or the system's reason why it cannot.
int Process::start(char* const* argv, char* const* envp) {
  std::array<int, 2> output{};
  std::array<int, 2> failure{};  // closed by a successful exec, or written to with the reason
  if (pipe2(output.data(), O_CLOEXEC) != 0) return errno;
  if (pipe2(failure.data(), O_CLOEXEC) != 0) {
    const int reason = errno;
    close(output[0]);
    close(output[1]);
    return reason;
  }
  id_ = fork();
  if (id_ == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // nobody would be left to end it
    const int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
    dup2(output[1], STDOUT_FILENO);
    dup2(output[1], STDERR_FILENO);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE, SIGCONT}) ::signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, nullptr);  // a program takes over what the thread blocks that starts it
    execvpe(argv[0], argv, envp);
    const int reason = errno;
    if (write(failure[1], &reason, sizeof reason) < 0) _exit(126);
    _exit(127);
  }
  int reason = id_ < 0 ? errno : 0;
  close(output[1]);
  close(failure[1]);
  if (id_ > 0 && ::read(failure[0], &reason, sizeof reason) > 0) waitpid(std::exchange(id_, -1), nullptr, 0);
  close(failure[0]);
  if (reason != 0) {
    close(output[0]);
    return reason;
  }
  output_ = output[0];
  setpgid(id_, id_);  // whoever comes first
  fcntl(output_, F_SETFL, O_NONBLOCK);
  return 0;
}

Process::Process(Process&& other) noexcept
    : id_(std::exchange(other.id_, -1)), output_(std::exchange(other.output_, -1)), code_(other.code_) {}

Process& Process::operator=(Process&& other) noexcept {
  std::swap(id_, other.id_);
  std::swap(output_, other.output_);
  std::swap(code_, other.code_);
  return *this;
}

Process::~Process() {
  if (id_ > 0 && !code_) {
    signal_group(SIGKILL);
    const Clock::time_point start = Clock::now();
    while (!poll() && Clock::now() - start < kill_patience) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (output_ >= 0) close(output_);
}

std::string Process::read() {
  std::string text;
  std::array<char, 4096> part{};
  while (true) {
    const ssize_t count = ::read(output_, part.data(), part.size());
    if (count > 0) {
      text.append(part.data(), static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      return text;
    }
  }
}

std::optional<int> Process::poll() {
  if (code_) return code_;
  int status = 0;
  if (waitpid(id_, &status, WNOHANG) == id_) {
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return code_;
}

void Process::signal(int number) const {
  if (!code_ && id_ > 0) kill(id_, number);
}

void Process::signal_group(int number) const {
  if (id_ > 0) kill(-id_, number);
}

std::vector<Ended> run_all(const std::vector<std::vector<std::string>>& commands, std::chrono::duration<double> limit,
                           const std::function<bool()>& stop) {
  struct Running {
    std::size_t command;
    Process process;
    Clock::time_point start;
  };
  std::vector<Ended> results(commands.size(), {-1, "", true});
  std::list<Running> running;
  std::size_t next = 0, most = most_processes;
  const auto stopped = [&] { return stop && stop(); };
  while (next < commands.size() || !running.empty()) {
    for (; next < commands.size() && running.size() < most && !stopped(); ++next) {
      try {
        running.push_back({next, Process(commands[next]), Clock::now()});
      } catch (const Error& error) {
        if (!running.empty()) {  // perhaps one too many: again when one has ended
          most = running.size();
          break;
        }
        results[next] = {-1, error.what(), false};
      }
    }
    for (auto each = running.begin(); each != running.end();) {
      const std::optional<int> code = each->process.poll();
      Ended& result = results[each->command];
      result.output += each->process.read();
      result.code = code.value_or(-1);
      each = code || Clock::now() - each->start > limit ? running.erase(each) : std::next(each);
    }
    if (stopped()) break;
    if (!running.empty()) std::this_thread::sleep_for(poll_interval);
  }
  return results;
}

}  // namespace bitloom::launch
