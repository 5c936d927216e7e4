#include "cli/supervisor.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "cli/command.h"
#include "cli/leftovers.h"
#include "cli/mpirun_output.h"
#include "cli/probe.h"
#include "cli/process.h"
#include "cli/signals.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/progress_file.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr auto look_interval = std::chrono::milliseconds(20);
constexpr double probe_limit = 6;       // seconds that a host has to answer at first,
constexpr double quick_limit = 1;       // and when a run waits for it; the others may join later
constexpr double startup_seconds = 60;  // that processes have on top of the deadline until they are at work
constexpr double drain_limit = 30;      // seconds that processes have to write their checkpoint
constexpr double longest_pause = 30;    // seconds between attempts that come to nothing

// How far the run is, as it says itself.
struct Mark {
  std::string text;   // the whole file: whatever changes in it is a sign of life
  std::string start;  // which start wrote it
  std::size_t stage = 0, step = 0;

  bool is_beyond(const Mark& other) const { return std::pair(stage, step) > std::pair(other.stage, other.step); }
};

Mark read_mark(const fs::path& folder) {
  Mark mark;
  std::ifstream file(folder / progress_file_name);
  mark.text.assign(std::istreambuf_iterator<char>(file), {});
  const Json json = Json::parse(mark.text, nullptr, false);
  if (!json.is_object()) return mark;
  mark.start = json.value("start", "");
  mark.stage = json.value("stage", std::size_t{0});
  mark.step = json.value("step", std::size_t{0});
  return mark;
}

// How a start ended.
struct End {
  enum class Kind { done, stopped, grow, failed };
  Kind kind = Kind::failed;
  int code = 0;
  bool progressed = false;  // beyond what any start had reached
  bool killed = false;      // a process was, not by the supervisor
  std::string cause;
};

bool has(const std::vector<Host>& hosts, const Host& host) {
  return std::find(hosts.begin(), hosts.end(), host) != hosts.end();
}

class Supervisor {
 public:
  Supervisor(const SupervisorOptions& options, Terminal& terminal)
      : options_(options), terminal_(terminal), segments_(shared_segments()) {}
  int run();

 private:
  struct Probe {
    Host host;
    Process process;
    Clock::time_point start = Clock::now();
  };

  double patience(double limit) const { return limit + (options_.notice.empty() ? 0 : notice_seconds); }
  std::vector<Host> probe();
  bool stays(const Host& host, Presence presence);
  bool wait_for_hosts(const End& last);
  std::vector<std::string> mpirun_command() const;
  End watch();
  void look_for_hosts(Clock::time_point& last);
  std::vector<Host> found_hosts();
  void note_progress(const Mark& mark, bool first, End& end);
  void exclude_newcomers();
  void event(Json line);
  std::size_t processes() const;
  bool pause(double seconds) const;
  int give_up(const End& last);

  const SupervisorOptions& options_;
  Terminal& terminal_;
  const std::set<fs::path> segments_;  // that were there before
  std::vector<Host> members_;          // of this start
  std::vector<Host> proven_;           // of the last one that came to a step
  std::vector<Host> excluded_;
  std::set<std::string> leaving_;  // names of hosts that were so when they were asked last
  std::vector<Probe> probes_;      // of hosts that are missing
  std::size_t starts_ = 0, barren_ = 0, recomputed_ = 0;
  std::optional<Clock::time_point> broken_;  // when the run stopped making steps
  std::string first_failure_;
  Mark furthest_;
};

std::size_t Supervisor::processes() const {
  std::size_t count = 0;
  for (const Host& host : members_) count += host.slots;
  return count;
}

void Supervisor::event(Json line) {
  line["time"] = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  // What mpirun says need not be UTF-8.
  std::ofstream(options_.folder.string() + ".launch.jsonl", std::ios::app)
      << line.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
}

// False if it was asked to end meanwhile.
bool Supervisor::pause(double seconds) const {
  const Clock::time_point start = Clock::now();
  while (seconds_since(start) < seconds) {
    if (options_.stop()) return false;
    std::this_thread::sleep_for(look_interval);
  }
  return true;
}

// Whether a host that was asked can be used. Says so when it turns out to be leaving.
bool Supervisor::stays(const Host& host, Presence presence) {
  if (presence != Presence::leaving) {
    leaving_.erase(host.name);
    return presence == Presence::there;
  }
  if (!leaving_.insert(host.name).second) return false;
  event({{"event", "leaving"}, {"host", host.name}});
  terminal_.print("launch: {} is about to be taken away: it is left out until that is over", host.name);
  return false;
}

// The hosts that can be used now; none if this machine cannot.
std::vector<Host> Supervisor::probe() {
  // Rank 0 holds the accumulators and writes the checkpoints: it runs here, where nobody takes the machine away.
  std::vector<Host> asked = {{"localhost", options_.hosts.empty() ? options_.local : 1}};
  asked.insert(asked.end(), options_.hosts.begin(), options_.hosts.end());
  std::vector<std::vector<std::string>> commands;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    commands.push_back(probe_command(i == 0 ? "" : options_.agent, asked[i], options_.notice));
  }
  const double limit = patience(starts_ == 0 ? probe_limit : quick_limit);
  const std::vector<Ended> answers = run_all(commands, std::chrono::duration<double>(limit));
  std::vector<Host> live;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    Presence presence = presence_of(answers[i].code);
    if (i == 0 && presence == Presence::absent) presence = Presence::there;  // it was too busy to say
    if (stays(asked[i], presence) && !has(excluded_, asked[i])) live.push_back(asked[i]);
    if (live.empty()) break;
  }
  return live;
}

// False if too few answer for too long, or it was asked to end.
bool Supervisor::wait_for_hosts(const End& last) {
  // Where a process was killed in a run that worked, its host is there: whoever is not shows at the next start.
  if (last.progressed && last.killed) return true;
  const Clock::time_point start = Clock::now();
  for (bool told = false;; told = true) {
    members_ = probe();
    if (processes() >= options_.min_workers) return true;
    if (seconds_since(start) > options_.patience_seconds) {
      first_failure_ = fmt::format("{} of at least {} processes have a host after {:.0f} s; {}", processes(),
                                   options_.min_workers, options_.patience_seconds, first_failure_);
      return false;
    }
    if (!told) {
      terminal_.print("launch: {} processes have a host, {} are needed; waiting", processes(), options_.min_workers);
    }
    if (!pause(std::min(options_.probe_seconds, 1.0))) return false;
  }
}

std::vector<std::string> Supervisor::mpirun_command() const {
  std::vector<std::string> command = {options_.mpirun};
  if (geteuid() == 0) command.emplace_back("--allow-run-as-root");  // who is root in a container has no other choice
  const auto mca = [&](const char* name, const std::string& value) { command.insert(command.end(), {"--mca", name, value}); };
  if (options_.hosts.empty()) {
    command.insert(command.end(), {"-n", fmt::format("{}", options_.local)});
  } else {
    std::string hosts;
    for (const Host& host : members_) hosts += fmt::format("{}{}:{}", hosts.empty() ? "" : ",", host.name, host.slots);
    command.insert(command.end(), {"--host", hosts});
    mca("plm", "rsh");  // also within a Slurm allocation
    mca("plm_rsh_agent", options_.agent);
    mca("plm_rsh_no_tree_spawn", "1");
    mca("btl", "tcp,self,vader");
  }
  mca("pml", "ob1");
  if (!options_.interface.empty()) {
    mca("btl_tcp_if_include", options_.interface);
    mca("oob_tcp_if_include", options_.interface);
  }
  // A link that is cut shows within four seconds instead of minutes.
  mca("oob_tcp_keepalive_time", "1");
  mca("oob_tcp_keepalive_intvl", "1");
  mca("oob_tcp_keepalive_probes", "3");
  mca("odls_base_sigkill_timeout", "0");
  mca("rmaps_base_oversubscribe", "1");
  mca("hwloc_base_binding_policy", "none");
  command.insert(command.end(), {"-x", supervised_variable});
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (text.starts_with("BITLOOM_") || text.starts_with("OMP_")) {
      command.insert(command.end(), {"-x", text.substr(0, text.find('='))});
    }
  }
  command.insert(command.end(), options_.program.begin(), options_.program.end());
  const bool asked = std::find(options_.program.begin(), options_.program.end(), "--resume") != options_.program.end();
  if (!asked && options_.has_begun()) command.emplace_back("--resume");
  return command;
}

// Starts what asks missing hosts.
void Supervisor::look_for_hosts(Clock::time_point& last) {
  if (!probes_.empty() || seconds_since(last) < options_.probe_seconds) return;
  last = Clock::now();
  for (const Host& host : options_.hosts) {
    if (has(members_, host) || has(excluded_, host)) continue;
    try {
      probes_.push_back({host, Process(probe_command(options_.agent, host, options_.notice))});
    } catch (const Error&) {
      return;  // no process to spare now
    }
  }
}

// Those of them that have answered by now.
std::vector<Host> Supervisor::found_hosts() {
  std::vector<Host> found;
  std::vector<Probe> waiting;
  for (Probe& probe : probes_) {
    const std::optional<int> answer = probe.process.poll();
    if (answer && stays(probe.host, presence_of(*answer))) found.push_back(probe.host);
    if (!answer && seconds_since(probe.start) < patience(probe_limit)) waiting.push_back(std::move(probe));
  }
  probes_ = std::move(waiting);
  return found;
}

// `first`: of this start.
void Supervisor::note_progress(const Mark& mark, bool first, End& end) {
  if (first && furthest_.is_beyond(mark)) {
    // A stage is counted as far as it had come; those before it were done.
    const std::size_t lost = furthest_.step - (furthest_.stage == mark.stage ? mark.step : 0);
    recomputed_ += lost;
    event({{"event", "recompute"}, {"steps", lost}});
  }
  if (first) return;
  if (broken_) {
    event({{"event", "recovered"}, {"seconds", seconds_since(*broken_)}});
    terminal_.print("launch: back at work after {:.1f} s, {} processes", seconds_since(*broken_), processes());
    broken_.reset();
  }
  if (!mark.is_beyond(furthest_)) return;
  furthest_ = mark;
  end.progressed = true;
  proven_ = members_;
}

End Supervisor::watch() {
  const std::string name = fmt::format("{}-{}", getpid(), starts_);
  event({{"event", "start"}, {"processes", processes()}, {"number", starts_}});
  Process mpirun(mpirun_command(), {fmt::format("{}={}", supervised_variable, name)});
  ++starts_;
  Mark mark;
  Clock::time_point changed = Clock::now();
  Clock::time_point probed = changed;
  std::optional<Clock::time_point> asked;  // to leave a checkpoint and end
  End end;
  bool hangs = false;
  OutputTail tail;
  while (true) {
    for (const std::string& line : tail.add(mpirun.read())) terminal_.line(line);
    const std::optional<int> code = mpirun.poll();
    if (Mark now = read_mark(options_.folder); now.start == name && now.text != mark.text) {
      changed = Clock::now();
      note_progress(now, mark.text.empty(), end);
      mark = std::move(now);
    }
    if (code) {
      for (const std::string& line : tail.add(mpirun.read() + "\n")) terminal_.line(line);
      end.code = *code;
      break;
    }
    const double patience = options_.deadline_seconds + (mark.text.empty() ? startup_seconds : 0);
    if (!hangs && seconds_since(changed) > patience) {
      hangs = true;
      end.cause = fmt::format("no sign of life for {:g} s", patience);
      mpirun.signal_group(SIGKILL);  // ranks on other hosts go with it
    }
    if (!asked && options_.stop()) {
      asked = Clock::now();
      end.kind = End::Kind::stopped;
      mpirun.signal(SIGUSR1);
    }
    if (asked && seconds_since(*asked) > drain_limit) mpirun.signal_group(SIGKILL);
    look_for_hosts(probed);
    for (const Host& host : found_hosts()) {
      if (asked || mark.text.empty()) continue;
      event({{"event", "join"}, {"host", host.name}});
      terminal_.print("launch: {} is there: the run goes on with it", host.name);
      asked = broken_ = Clock::now();
      end.kind = End::Kind::grow;
      mpirun.signal(SIGUSR1);
    }
    std::this_thread::sleep_for(look_interval);
  }
  probes_.clear();
  end_children();
  remove_segments(segments_);
  // Only the run itself knows whether it is done.
  if (options_.is_done()) {
    end.kind = End::Kind::done;
  } else if (end.kind != End::Kind::failed && end.code != exit_interrupted) {
    end.kind = End::Kind::failed;
  }
  if (end.kind != End::Kind::failed) return end;
  end.killed = !hangs && !asked && end.code == 128 + SIGKILL;
  if (end.cause.empty() && end.code == exit_interrupted) end.cause = "a process was told to end; all left a checkpoint";
  if (end.cause.empty()) end.cause = cause_of_end(tail.text());
  if (end.cause.empty()) end.cause = fmt::format("mpirun ended with {}", end.code);
  std::string report = end.cause;
  for (const std::string& line : tail.last_lines()) report += "\n    " + line;
  if (first_failure_.empty()) first_failure_ = report;
  event({{"event", "failure"}, {"cause", end.cause}, {"code", end.code}, {"progressed", end.progressed}});
  if (!broken_) broken_ = changed;
  return end;
}

// Hosts that came to a run that worked without them, and with which it does not.
void Supervisor::exclude_newcomers() {
  if (proven_.empty()) return;
  for (const Host& host : members_) {
    if (has(proven_, host)) continue;
    terminal_.print("launch: goes on without {}, with which it came to nothing", host.name);
    excluded_.push_back(host);
  }
}

int Supervisor::give_up(const End& last) {
  terminal_.error(fmt::format("launch: gave up after {} starts; the first failure was: {}", starts_, first_failure_));
  event({{"event", "gave_up"}, {"starts", starts_}});
  if (last.code == exit_usage || last.code == exit_data) return last.code;
  return exit_gave_up;
}

int Supervisor::run() {
  if (options_.is_done()) {
    terminal_.print("launch: the run in {} is done already", options_.folder.string());
    return exit_done;
  }
  End end;
  while (wait_for_hosts(end)) {
    end = watch();
    if (end.kind == End::Kind::done) {
      terminal_.print("launch: done after {} start{}, {} steps computed twice", starts_, starts_ == 1 ? "" : "s", recomputed_);
      event({{"event", "done"}, {"starts", starts_}, {"steps_recomputed", recomputed_}});
      return exit_done;
    }
    if (end.kind == End::Kind::stopped || options_.stop()) break;
    if (end.kind == End::Kind::grow) continue;
    terminal_.print("launch: {}", end.cause);
    if (end.progressed || end.code == exit_interrupted) {
      barren_ = 0;
      continue;
    }
    // What is wrong with options or data stays wrong.
    const bool hopeless = proven_.empty() && (end.code == exit_usage || end.code == exit_data);
    if (hopeless || ++barren_ >= options_.attempts) return give_up(end);
    exclude_newcomers();
    if (!pause(std::min(longest_pause, 0.1 * static_cast<double>(1U << std::min<std::size_t>(barren_, 12))))) break;
  }
  if (end.kind != End::Kind::stopped && !options_.stop()) return give_up(end);
  terminal_.error(fmt::format("launch: interrupted; the run in {} can be continued", options_.folder.string()));
  return exit_interrupted;
}

}  // namespace

int supervise(const SupervisorOptions& options, Terminal& terminal) {
  std::error_code ignored;
  fs::create_directories(options.folder.parent_path(), ignored);
  const FileLock lock(options.folder.string() + ".launch.lock");
  terminal.open_log(options.folder.string() + ".launch.log");
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  return Supervisor(options, terminal).run();
}

}  // namespace bitloom::cli
