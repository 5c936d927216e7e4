// The hosts of a supervised run: which of them can be used, which are left out for a while, which come back.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/clock.h"
#include "launch/hosts.h"
#include "launch/probe.h"
#include "launch/process.h"
#include "launch/supervisor.h"

namespace bitloom::launch {

class Roster {
 public:
  using Event = std::function<void(const nlohmann::json& line)>;

  Roster(const SupervisorOptions& options, Voice& voice, Event event)
      : options_(options), voice_(voice), event_(std::move(event)) {}

  // Hosts of the next start, or the one under way; this machine, for rank 0, is the first.
  const std::vector<Host>& members() const { return members_; }
  // Processes that they have room for, and those of them that the run uses.
  std::size_t available() const;
  std::size_t processes() const { return usable_of(available()); }
  // Whether a group of ranks (SupervisorOptions::group) lies on two hosts.
  bool divides_groups() const;
  // Whether these hosts would make the run larger.
  bool would_grow(const std::vector<Host>& others) const;
  // Whether they are enough for a start.
  bool is_enough() const;
  // Describes the hosts that are missing.
  std::string shortage() const;
  // Whether there are others that this machine goes on without.
  bool is_alone() const { return !options_.hosts.empty() && members_.size() == 1; }

  // Asks all hosts. Members are those that can be used; none if this machine cannot. Names those that do not answer. quick: a
  // start need not wait for slow ones; the first call of all does.
  void ask(bool quick);
  // Asks hosts that are no members, again and again, without waiting for answers; returns those that can join, of all that were
  // asked the last time.
  const std::vector<Host>& look();
  // No more answers to what was asked.
  void stop_looking() {
    probes_.clear();
    joining_.clear();
    next_probe_ = options_.hosts.size();
  }

  // The members have come to a step together.
  void prove();
  bool is_proven() const { return !proven_.empty(); }
  // They have not: members that came to a run that worked without them are left out for a while, longer each time. What was
  // wrong may have passed by then.
  void suspect_newcomers();

 private:
  struct Probe {
    Host host;
    Process process;
    Clock::time_point start = Clock::now();
  };
  struct Exclusion {
    double seconds = 0;
    Clock::time_point start;
  };

  std::size_t usable_of(std::size_t available) const { return options_.usable ? options_.usable(available) : available; }
  // Processes of whole groups on a host of that many slots, or all if none fits.
  std::size_t room_of(std::size_t slots) const;
  double patience(double limit) const;
  bool stays(const Host& host, Presence presence);
  bool is_excluded(const Host& host) const;
  void name_absent(const std::map<std::string, std::string>& absent);

  const SupervisorOptions& options_;
  Voice& voice_;
  Event event_;
  std::vector<Host> members_;
  std::set<std::string> found_;                // names, of those that look() has found since all were asked
  std::set<std::string> proven_;               // names, of the last members that came to a step
  std::map<std::string, Exclusion> excluded_;  // by name
  std::set<std::string> leaving_;              // names of hosts that were so when they were asked last
  std::set<std::string> absent_;               // hosts that were named last
  std::vector<Probe> probes_;
  std::vector<Host> joining_;                       // that have answered in this round
  std::size_t next_probe_ = options_.hosts.size();  // host that is asked next in this round; all have been
  Clock::time_point looked_ = Clock::now();
  bool asked_ = false;
};

}  // namespace bitloom::launch
