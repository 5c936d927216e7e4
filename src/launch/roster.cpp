#include "launch/roster.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/field.h"
#include "core/progress.h"
#include "core/text.h"

namespace bitloom::launch {
namespace {

constexpr double probe_limit = 6;            // seconds that a host has to answer,
constexpr double quick_limit = 1;            // and when a run may go on without it; it can join later
constexpr double first_exclusion = 4;        // in probe intervals
constexpr double longest_exclusion = 3600;   // seconds
constexpr std::size_t most_named = 20;       // hosts in a message; events name all
constexpr std::size_t longest_reason = 100;  // characters

// Why a host cannot be used: the last line of what asking it wrote.
std::string reason_of(const Ended& answer, double limit) {
  std::string last;
  for (const std::string& line : split(answer.output, '\n')) {
    if (!line.empty()) last = line;
  }
  for (char& c : last) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';  // it may be anything; the terminal shall not obey it
  }
  if (last.empty() && answer.code == -1) return fmt::format("nothing within {:g} s", limit);
  if (last.empty()) return fmt::format("ended with {}", answer.code);
  return last.substr(0, longest_reason);
}

}  // namespace

double Roster::patience(double limit) const { return limit + (options_.notice.empty() ? 0 : notice_seconds); }

std::size_t Roster::available() const {
  std::size_t count = 0;
  for (const Host& host : members_) count += host.slots;
  return count;
}

std::size_t Roster::room_of(std::size_t slots) const { return slots < options_.group ? slots : slots - slots % options_.group; }

bool Roster::divides_groups() const {
  std::size_t rank = 0;
  for (const Host& host : members_) {
    if (rank >= processes()) break;
    if (rank % options_.group != 0) return true;
    rank += host.slots;
  }
  return false;
}

bool Roster::would_grow(const std::vector<Host>& others) const {
  std::size_t more = 0;
  for (const Host& host : others) more += room_of(host.slots);
  return usable_of(available() + more) > processes();
}

// A run does not begin on this machine alone where hosts were named, unless that was asked for.
bool Roster::is_enough() const {
  return processes() >= std::max<std::size_t>(options_.min_workers, 1) &&
         (!is_alone() || options_.may_begin_alone || is_proven());
}

std::string Roster::shortage() const {
  if (processes() == 0 && available() >= options_.min_workers) {
    return fmt::format("{} processes have a host, among which the run cannot be divided", available());
  }
  if (processes() < options_.min_workers) {
    return fmt::format("{} processes have a host, {} are needed", processes(), options_.min_workers);
  }
  return fmt::format("none of the {} hosts can be used; {} 1 begins on this machine alone", options_.hosts.size(),
                     marked_field("min_workers"));
}

bool Roster::is_excluded(const Host& host) const {
  const auto found = excluded_.find(host.name);
  return found != excluded_.end() && seconds_since(found->second.start) < found->second.seconds;
}

// Whether a host that was asked can be used. Says so when it turns out to be leaving.
bool Roster::stays(const Host& host, Presence presence) {
  if (presence != Presence::leaving) {
    leaving_.erase(host.name);
    return presence == Presence::there;
  }
  if (!leaving_.insert(host.name).second) return false;
  event_({{"event", "leaving"}, {"host", host.name}});
  voice_.line(fmt::format("launch: {} is about to be taken away: it is left out until that is over", host.name));
  return false;
}

void Roster::ask(bool quick) {
  // Rank 0 holds the accumulators and writes the checkpoints: it runs here, where nobody takes the machine away.
  std::vector<Host> asked = {{"localhost", options_.local}};
  asked.insert(asked.end(), options_.hosts.begin(), options_.hosts.end());
  std::vector<std::vector<std::string>> commands;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    commands.push_back(probe_command(i == 0 ? "" : options_.agent, asked[i], options_.notice));
  }
  // Who was slow to answer when it was found may be so again.
  const double limit = patience(quick && asked_ && found_.empty() ? quick_limit : probe_limit);
  found_.clear();
  const std::vector<Ended> answers = run_all(commands, std::chrono::duration<double>(limit), options_.stop);
  members_.clear();
  if (options_.stop && options_.stop()) return;
  std::map<std::string, std::string> absent;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    Presence presence = presence_of(answers[i].code);
    if (i == 0 && presence == Presence::absent) presence = Presence::there;                      // it was too busy to say
    if (i == 1 && !answers[i].started && !asked_) fail(ErrorKind::io, "{}", answers[i].output);  // the agent itself
    if (presence == Presence::absent) absent[asked[i].name] = reason_of(answers[i], limit);
    if (stays(asked[i], presence) && (i == 0 || !is_excluded(asked[i]))) {
      members_.push_back({asked[i].name, room_of(asked[i].slots)});
    }
    if (members_.empty()) break;
  }
  // Hosts without room for a group come last, or all groups after them would lie across hosts.
  if (!members_.empty()) {
    std::stable_partition(members_.begin() + 1, members_.end(), [&](const Host& host) { return host.slots >= options_.group; });
  }
  asked_ = true;
  name_absent(absent);
}

// Once, until others are absent.
void Roster::name_absent(const std::map<std::string, std::string>& absent) {
  std::set<std::string> names;
  for (const auto& [name, reason] : absent) names.insert(name);
  if (names == std::exchange(absent_, names) || names.empty()) return;
  event_({{"event", "absent"}, {"hosts", absent}});
  std::string list;
  std::size_t named = 0;
  for (const auto& [name, reason] : absent) {
    if (named++ == most_named) break;
    list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", name, reason);
  }
  if (named > most_named) list += fmt::format(" and {} more", absent.size() - most_named);
  voice_.line(fmt::format("launch: cannot be reached: {}", list));
}

const std::vector<Host>& Roster::look() {
  if (probes_.empty() && next_probe_ == options_.hosts.size() && seconds_since(looked_) >= options_.probe_seconds) {
    looked_ = Clock::now();
    next_probe_ = 0;
    joining_.clear();
  }
  std::set<std::string> members;
  if (next_probe_ < options_.hosts.size()) {
    for (const Host& member : members_) members.insert(member.name);
  }
  for (; next_probe_ < options_.hosts.size() && probes_.size() < most_processes; ++next_probe_) {
    const Host& host = options_.hosts[next_probe_];
    if (is_excluded(host) || members.contains(host.name)) continue;
    try {
      probes_.push_back({host, Process(probe_command(options_.agent, host, options_.notice))});
    } catch (const Error&) {
      next_probe_ = options_.hosts.size();  // no process to spare now
      break;
    }
  }
  std::vector<Probe> waiting;
  for (Probe& probe : probes_) {
    const std::optional<int> answer = probe.process.poll();
    if (answer && stays(probe.host, presence_of(*answer))) {
      joining_.push_back(probe.host);
      found_.insert(probe.host.name);
    }
    if (!answer && seconds_since(probe.start) < patience(probe_limit)) waiting.push_back(std::move(probe));
  }
  probes_ = std::move(waiting);
  return joining_;
}

void Roster::prove() {
  proven_.clear();
  for (const Host& host : members_) {
    proven_.insert(host.name);
    excluded_.erase(host.name);
  }
}

void Roster::suspect_newcomers() {
  if (proven_.empty()) return;
  for (const Host& host : members_) {
    if (proven_.contains(host.name)) continue;
    Exclusion& exclusion = excluded_[host.name];
    exclusion.seconds = exclusion.seconds == 0 ? first_exclusion * options_.probe_seconds : 2 * exclusion.seconds;
    exclusion.seconds = std::min(exclusion.seconds, longest_exclusion);
    exclusion.start = Clock::now();
    event_({{"event", "excluded"}, {"host", host.name}, {"seconds", exclusion.seconds}});
    voice_.line(fmt::format("launch: goes on without {}, with which it came to nothing, for {}", host.name,
                            format_duration(exclusion.seconds)));
  }
}

}  // namespace bitloom::launch
