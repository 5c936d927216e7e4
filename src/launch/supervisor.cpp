#include "launch/supervisor.h"

#include <fmt/ranges.h>

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/field.h"
#include "core/file.h"
#include "core/metrics.h"
#include "launch/leftovers.h"
#include "launch/mpirun_output.h"
#include "launch/process.h"
#include "launch/roster.h"
#include "launch/run_mark.h"
#include "launch/time_limits.h"

namespace bitloom::launch {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr auto look_interval = std::chrono::milliseconds(20);
constexpr double kill_limit = 10;     // seconds that killed processes have to be gone
constexpr double longest_pause = 30;  // seconds between attempts that come to nothing
// Machines may vanish more often than checkpoints are written, so that all steps of a start were made before: that many of such
// starts count as one that ended by itself, as by an error at a certain step.
constexpr std::size_t kills_of_a_fault = 10;
constexpr std::size_t spared_starts = 3;  // of which nobody blames hosts that have just come

// Name of this supervisor's starts, unlike that of any other: process ids come again, in containers from 1 on.
std::string fresh_name() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

// How a start ended.
struct End {
  enum class Kind { done, stopped, grow, failed };
  Kind kind = Kind::failed;
  int code = 0;
  bool worked = false;      // made a step
  bool progressed = false;  // beyond what any start had reached
  bool killed = false;      // a process was, not by the supervisor
  std::string cause;

  // By the loss of a process or host, which says nothing of the run.
  bool is_vanished() const { return killed || cause.starts_with("host "); }
};

class Supervisor {
 public:
  Supervisor(const SupervisorOptions& options, Voice& voice)
      : options_(options),
        voice_(voice),
        segments_(shared_segments()),
        roster_(options, voice, [this](const Json& line) { event(line); }) {}
  Outcome run();

 private:
  bool wait_for_hosts(const End& last);
  bool is_spent(const End& end);
  std::vector<std::string> mpirun_command() const;
  End watch();
  End look_into(End end, const OutputTail& tail);
  void note_progress(const Mark& mark, bool first, End& end);
  void event(Json line);
  bool pause(double seconds) const;
  Outcome give_up(const End& last);

  const SupervisorOptions& options_;
  Voice& voice_;
  const std::set<fs::path> segments_;  // segments that were there before
  bool divides_groups_ = false;        // whether groups of the last start lay across hosts
  bool told_log_ = false;              // whether it was said that the log cannot be written
  Roster roster_;
  const std::string name_ = fresh_name();
  std::size_t starts_ = 0, recomputed_ = 0;
  std::size_t fruitless_starts_ = 0;         // in a row, that made no step
  std::size_t kills_ = 0;                    // since a new step, of starts that made old ones; with faults as that many
  std::optional<Clock::time_point> broken_;  // when the run stopped making steps
  std::string first_failure_;                // since a new step
  Mark furthest_;
};

void Supervisor::event(Json line) {
  line["time"] = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  try {
    MetricsWriter(options_.folder.string() + ".launch.jsonl").write(line);
  } catch (const Error& error) {  // a run is worth more than its log
    if (!told_log_) voice_.error(std::string("launch: ") + error.what());
    told_log_ = true;
  }
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

// False if too few answer for too long, or it was asked to end.
bool Supervisor::wait_for_hosts(const End& last) {
  // Where a process was killed in a run that worked, its host is there: whoever is not shows at the next start.
  if (last.progressed && last.killed) return true;
  const Clock::time_point start = Clock::now();
  for (bool told = false;; told = true) {
    roster_.ask(!told);  // whoever is too slow for that may be the one that is waited for
    if (options_.stop()) return false;
    if (roster_.is_enough()) break;
    if (seconds_since(start) > options_.patience_seconds) {
      const std::string earlier = first_failure_.empty() ? "" : "; before that: " + first_failure_;
      first_failure_ = fmt::format("{} after {:.0f} s{}", roster_.shortage(), options_.patience_seconds, earlier);
      return false;
    }
    if (!told) voice_.line(fmt::format("launch: {}; waiting", roster_.shortage()));
    if (!pause(std::min(options_.probe_seconds, 1.0))) return false;
  }
  if (roster_.is_alone())
    voice_.line(fmt::format("launch: this machine works alone until one of the {} hosts is there", options_.hosts.size()));
  if (const bool divides = roster_.divides_groups(); std::exchange(divides_groups_, divides) != divides && divides) {
    voice_.line(
        fmt::format("launch: groups of {} processes that exchange the most lie across hosts; slots= and {} in multiples "
                    "of {} keep each on one",
                    options_.group, marked_field("local"), options_.group));
  }
  return true;
}

std::vector<std::string> Supervisor::mpirun_command() const {
  std::vector<std::string> command = {options_.mpirun};
  if (geteuid() == 0) command.emplace_back("--allow-run-as-root");  // who is root in a container has no other choice
  const auto mca = [&](const char* name, const std::string& value) { command.insert(command.end(), {"--mca", name, value}); };
  if (options_.hosts.empty()) {
    command.insert(command.end(), {"-n", fmt::format("{}", roster_.processes())});
  } else {
    if (roster_.processes() < roster_.available()) {
      command.insert(command.end(), {"-n", fmt::format("{}", roster_.processes())});
    }
    std::string hosts;
    for (const Host& host : roster_.members()) hosts += fmt::format("{}{}:{}", hosts.empty() ? "" : ",", host.name, host.slots);
    command.insert(command.end(), {"--host", hosts});
    mca("plm", "rsh");  // also within a Slurm allocation
    mca("plm_rsh_agent", fmt::format("{}", fmt::join(agent_command(options_.agent), " ")));
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
  // Open MPI 5 has these options of 4, but other parameters for them.
  command.insert(command.end(), {"--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"});
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

// `first`: of this start that says where it began. It may be the last too: a start can be over before somebody looks again.
void Supervisor::note_progress(const Mark& mark, bool first, End& end) {
  Mark began;
  began.stage = mark.began_stage;
  began.step = mark.began_step;
  if (first) {
    if (furthest_.is_beyond(began)) {
      // A stage is counted as far as it had come; those before it were done.
      const std::size_t lost = furthest_.step - (furthest_.stage == began.stage ? began.step : 0);
      recomputed_ += lost;
      event({{"event", "recompute"}, {"steps", lost}});
    } else {
      furthest_ = began;
    }
  }
  if (!mark.is_beyond(began)) return;
  end.worked = true;
  if (broken_) {
    event({{"event", "recovered"}, {"seconds", seconds_since(*broken_)}});
    voice_.line(fmt::format("launch: back at work after {:.1f} s, {} processes", seconds_since(*broken_), roster_.processes()));
    broken_.reset();
  }
  if (!mark.is_beyond(furthest_)) return;
  furthest_ = mark;
  end.progressed = true;
  first_failure_.clear();  // it may be days old
  roster_.prove();
}

End Supervisor::watch() {
  const std::string name = fmt::format("{}-{}", name_, starts_);
  std::optional<Process> started;
  try {
    started.emplace(mpirun_command(), std::vector<std::string>{fmt::format("{}={}", supervised_variable, name)});
  } catch (const Error& error) {
    if (starts_ == 0) throw;  // a wrong command stays wrong
    End end;
    end.cause = error.what();
    return look_into(std::move(end), {});
  }
  Process& mpirun = *started;
  event({{"event", "start"}, {"processes", roster_.processes()}, {"number", starts_}});
  ++starts_;
  Mark mark;
  Clock::time_point changed = Clock::now();
  std::optional<Clock::time_point> killed, asked;
  End end;
  OutputTail tail;
  LauncherTalk talk;
  const auto ask_to_end = [&](End::Kind why) {
    asked = Clock::now();
    end.kind = why;
    mpirun.signal(SIGUSR1);
  };
  // Whether the program said something, which is a sign of life too.
  const auto pass_on = [&](const std::string& text) {
    bool any = false;
    for (const std::string& line : tail.add(text)) {
      // Processes that were asked to end are no failure, though mpirun says so at length.
      if (talk.holds(line) && asked) continue;
      voice_.line(line);
      any = true;
    }
    return any;
  };
  while (true) {
    if (pass_on(mpirun.read())) changed = Clock::now();
    const std::optional<int> code = mpirun.poll();
    if (Mark now = read_mark(options_.folder); now.start == name && now.text != mark.text) {
      changed = Clock::now();
      if (now.has_begun) note_progress(now, !mark.has_begun, end);
      mark = std::move(now);
    }
    if (code) {
      pass_on(mpirun.read());
      if (tail.is_inside_line()) pass_on("\n");
      end.code = *code;
      break;
    }
    if (!asked && options_.stop()) ask_to_end(End::Kind::stopped);
    const Waited waited = {!mark.text.empty(), seconds_since(changed),
                           asked ? std::optional(seconds_since(*asked)) : std::nullopt};
    if (!killed && is_overdue(waited, options_.deadline_seconds)) {
      killed = Clock::now();
      const double patience = longest_silence(waited.is_at_work, options_.deadline_seconds);
      if (waited.silent > patience) end.cause = fmt::format("no sign of life for {:g} s", patience);
      mpirun.signal_group(SIGKILL);  // ranks on other hosts go with it
    }
    if (killed && seconds_since(*killed) > kill_limit) break;  // the system does not let it go: a device that hangs
    // Where two more hosts are needed one answers before the other.
    const std::vector<Host>& found = roster_.look();
    // Not before this start has come to something; and an evaluation would begin again.
    if (!asked && end.progressed && mark.evaluated == 0 && !found.empty() && roster_.would_grow(found)) {
      for (const Host& host : found) {
        event({{"event", "join"}, {"host", host.name}});
        voice_.line(fmt::format("launch: {} is there: the run goes on with it", host.name));
      }
      ask_to_end(End::Kind::grow);
    }
    std::this_thread::sleep_for(look_interval);
  }
  roster_.stop_looking();
  if (const std::vector<pid_t> left = end_children(kill_limit); !left.empty()) {
    event({{"event", "stuck"}, {"processes", left}});
    voice_.line(fmt::format("launch: processes {} do not end, though they were killed; the run goes on without them",
                            fmt::join(left, ", ")));
  }
  remove_segments(segments_);
  end.killed = !killed && !asked && end.code == 128 + SIGKILL;
  if (!broken_) broken_ = end.kind == End::Kind::grow ? *asked : changed;
  return look_into(std::move(end), tail);
}

// Finds the meaning of an end. Only the run itself knows whether it is done.
End Supervisor::look_into(End end, const OutputTail& tail) {
  if (options_.is_done()) {
    end.kind = End::Kind::done;
  } else if (end.kind != End::Kind::failed && options_.ending_of(end.code) != Ending::interrupted) {
    end.kind = End::Kind::failed;
  }
  if (end.kind != End::Kind::failed) return end;
  if (end.cause.empty() && options_.ending_of(end.code) == Ending::interrupted)
    end.cause = "a process was told to end; all left a checkpoint";
  if (end.cause.empty()) end.cause = cause_of_end(tail.text());
  if (end.cause.empty()) end.cause = fmt::format("mpirun ended with {}", end.code);
  std::string report = end.cause;
  for (const std::string& line : tail.last_lines()) report += "\n    " + line;
  if (first_failure_.empty()) first_failure_ = report;
  event({{"event", "failure"}, {"cause", end.cause}, {"code", end.code}, {"progressed", end.progressed}});
  if (!broken_) broken_ = Clock::now();
  return end;
}

// Whether there have been too many starts like this one, which failed before it came to a new step.
bool Supervisor::is_spent(const End& end) {
  if (!end.worked) return ++fruitless_starts_ >= options_.attempts;
  fruitless_starts_ = 0;
  kills_ += end.is_vanished() ? 1 : kills_of_a_fault;
  return kills_ >= kills_of_a_fault * options_.attempts;
}

Outcome Supervisor::give_up(const End& last) {
  voice_.error(fmt::format("launch: gave up after {} starts; the first failure was: {}", starts_, first_failure_));
  event({{"event", "gave_up"}, {"starts", starts_}});
  return {Outcome::Kind::gave_up, last.code};
}

Outcome Supervisor::run() {
  if (options_.is_done()) {
    voice_.line(fmt::format("launch: the run in {} is done already", options_.folder.string()));
    return {Outcome::Kind::done, 0};
  }
  End end;
  while (wait_for_hosts(end)) {
    end = watch();
    if (end.kind == End::Kind::done) {
      voice_.line(
          fmt::format("launch: done after {} start{}, {} steps computed twice", starts_, starts_ == 1 ? "" : "s", recomputed_));
      event({{"event", "done"}, {"starts", starts_}, {"steps_recomputed", recomputed_}});
      return {Outcome::Kind::done, 0};
    }
    if (end.kind == End::Kind::stopped || options_.stop()) break;
    const bool grows = end.kind == End::Kind::grow;
    if (!grows) voice_.line(fmt::format("launch: {}", end.cause));
    if (grows || end.progressed || options_.ending_of(end.code) == Ending::interrupted) {
      fruitless_starts_ = kills_ = 0;
      continue;
    }
    // Wrong options or data stay wrong.
    const bool hopeless = !roster_.is_proven() && options_.ending_of(end.code) == Ending::unusable;
    if (is_spent(end) || hopeless) return give_up(end);
    // Faults of rank 0's own disk are not those of other hosts.
    const bool is_own_disk = end.cause.starts_with("rank 0: ") && options_.ending_of(end.code) == Ending::disk;
    const bool is_spared = end.worked && end.is_vanished() && kills_ <= spared_starts;
    if (!is_own_disk && !is_spared) roster_.suspect_newcomers();
    if (!pause(std::min(longest_pause, 0.1 * static_cast<double>(1U << std::min<std::size_t>(fruitless_starts_, 12))))) break;
  }
  if (end.kind != End::Kind::stopped && !options_.stop()) return give_up(end);
  voice_.error(fmt::format("launch: interrupted; the run in {} can be continued", options_.folder.string()));
  return {Outcome::Kind::interrupted, end.code};
}

}  // namespace

Outcome supervise(const SupervisorOptions& options, Voice& voice) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  return Supervisor(options, voice).run();
}

}  // namespace bitloom::launch
