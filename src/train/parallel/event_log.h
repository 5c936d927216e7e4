// A log of when each process did what in a step: passes of micro-batches, messages, sums, the optimiser. Pictures of it and the
// pipeline's bubble come from here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "core/clock.h"
#include "mpi/comm.h"
#include "nn/engine.h"

namespace bitloom::train {

// recompute: a forward pass again, before the backward pass. receive: a wait for a message. reduce: a sum over processes.
enum class EventKind : std::uint8_t { forward, recompute, backward, send, receive, reduce, optimizer };
const char* name_of(EventKind kind);

struct Event {
  EventKind kind = EventKind::forward;
  std::uint64_t micro_batch = 0, chunk = 0;  // of passes and messages; chunk: which of the process's parts of the net
  double begin = 0, end = 0;                 // in seconds since the step began
};

// Events of one process after those of another.
using Events = std::vector<std::vector<Event>>;

// The share of time in which processes compute no pass, from the begin of the first pass to the end of the last one of all
// (Huang et al. 2019, section 2.3: (K - 1) / (M + K - 1) for K stages of equal cost and M micro-batches). 0 without passes.
double bubble_of(const Events& events);

// Events of a step; left_out: number of those of each process that came after the most that are logged.
struct StepEvents {
  Events events;
  std::vector<std::uint64_t> left_out;
};

// Which steps are logged, so that a long run's log stays short.
struct EventLogOptions {
  std::uint64_t first_steps = 3;
  std::uint64_t every = 0;          // later steps whose number is a multiple of this; 0: none
  std::size_t most_events = 10000;  // of a process in a step
};

class EventLog {
 public:
  explicit EventLog(const EventLogOptions& options = {}) : options_(options) {}

  // Collective where the step is one to log, and the only step that pays for it: times begin when all ranks are here. Returns
  // whether it is.
  bool begin_step(std::uint64_t step, mpi::Comm& comm);
  bool is_on() const { return is_on_; }
  std::uint64_t step() const { return step_; }

  void add(const Event& event);
  // Events of this process, and how many more there were.
  const std::vector<Event>& events() const { return events_; }
  std::uint64_t left_out() const { return left_out_; }
  double now() const { return seconds_since(start_); }

  // Collective, of a step that is logged, which ends with it: all ranks' events at rank 0, by rank; none elsewhere.
  StepEvents gather(mpi::Comm& comm);

 private:
  EventLogOptions options_;
  Clock::time_point start_ = Clock::now();
  std::uint64_t step_ = 0;
  bool is_on_ = false;
  std::vector<Event> events_;
  std::uint64_t left_out_ = 0;
};

// Logs what happens while it lives; nothing without a log or in a step that is not logged. With an engine it waits for the
// device at both ends, whose work a GPU would otherwise do later.
class EventSpan {
 public:
  EventSpan(EventLog* log, EventKind kind, std::uint64_t micro_batch = 0, std::uint64_t chunk = 0,
            nn::Engine* engine = nullptr);
  EventSpan(const EventSpan&) = delete;
  EventSpan& operator=(const EventSpan&) = delete;
  ~EventSpan();

 private:
  EventLog* log_;  // none: off
  nn::Engine* engine_;
  Event event_;
};

// Lines of events.jsonl for a step, one for each process:
// {"step": 0, "rank": 1, "bubble": 0.2, "events": [{"kind": "forward", "micro_batch": 0, "chunk": 0, "begin": 0.001, "end":
// 0.002}], "left_out": 0} Times are in seconds, to a microsecond; the bubble is that of all processes and of the events that
// are there.
std::vector<nlohmann::json> to_json(std::uint64_t step, const StepEvents& events);

}  // namespace bitloom::train
