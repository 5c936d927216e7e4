#include "train/parallel/event_log.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"

namespace bitloom::train {
namespace {

constexpr std::array<const char*, 7> names{"forward", "recompute", "backward", "send", "receive", "reduce", "optimizer"};

bool is_pass(EventKind kind) {
  return kind == EventKind::forward || kind == EventKind::recompute || kind == EventKind::backward;
}

double microseconds(double seconds) { return std::round(seconds * 1e6) / 1e6; }

}  // namespace

const char* name_of(EventKind kind) { return names[static_cast<std::size_t>(kind)]; }

double bubble_of(const Events& events) {
  double busy = 0;
  std::optional<double> begin, end;
  for (const std::vector<Event>& each : events) {
    for (const Event& event : each) {
      if (!is_pass(event.kind)) continue;
      busy += event.end - event.begin;
      begin = std::min(begin.value_or(event.begin), event.begin);
      end = std::max(end.value_or(event.end), event.end);
    }
  }
  const double all = begin ? static_cast<double>(events.size()) * (*end - *begin) : 0;
  return all > 0 ? 1 - busy / all : 0;
}

bool EventLog::begin_step(std::uint64_t step, mpi::Comm& comm) {
  step_ = step;
  events_.clear();
  left_out_ = 0;
  is_on_ = step < options_.first_steps || (options_.every > 0 && step % options_.every == 0);
  if (!is_on_) return false;
  comm.barrier();
  start_ = Clock::now();
  return true;
}

void EventLog::add(const Event& event) {
  if (events_.size() < options_.most_events) {
    events_.push_back(event);
  } else {
    ++left_out_;
  }
}

StepEvents EventLog::gather(mpi::Comm& comm) {
  is_on_ = false;
  const std::vector<std::vector<std::byte>> bytes = comm.gather_bytes(std::as_bytes(std::span(events_)));
  const std::vector<std::vector<std::byte>> counts = comm.gather_bytes(std::as_bytes(std::span(&left_out_, 1)));
  StepEvents all;
  for (std::size_t r = 0; r < bytes.size(); ++r) {
    if (bytes[r].size() % sizeof(Event) != 0) {
      fail(ErrorKind::internal, "events: rank {} sends {} bytes; expected a multiple of {}", r, bytes[r].size(), sizeof(Event));
    }
    std::vector<Event>& events = all.events.emplace_back(bytes[r].size() / sizeof(Event));
    if (!events.empty()) std::memcpy(events.data(), bytes[r].data(), bytes[r].size());
    if (counts[r].size() != sizeof(left_out_)) {
      fail(ErrorKind::internal, "events: rank {} sends a count of {} bytes; expected {}", r, counts[r].size(),
           sizeof(left_out_));
    }
    std::memcpy(&all.left_out.emplace_back(), counts[r].data(), sizeof(left_out_));
  }
  return all;
}

EventSpan::EventSpan(EventLog* log, EventKind kind, std::uint64_t micro_batch, std::uint64_t chunk, nn::Engine* engine)
    : log_(log != nullptr && log->is_on() ? log : nullptr), engine_(engine), event_{kind, micro_batch, chunk} {
  if (log_ == nullptr) return;
  if (engine_ != nullptr) engine_->synchronize();
  event_.begin = log_->now();
}

EventSpan::~EventSpan() {
  if (log_ == nullptr) return;
  try {
    if (engine_ != nullptr) engine_->synchronize();
    event_.end = log_->now();
    log_->add(event_);
  } catch (...) {  // Whatever is wrong with the device shows in the next op, which may throw.
  }
}

std::vector<nlohmann::json> to_json(std::uint64_t step, const StepEvents& step_events) {
  const auto& [events, left_out] = step_events;
  const double bubble = bubble_of(events);
  std::vector<nlohmann::json> lines;
  for (std::size_t rank = 0; rank < events.size(); ++rank) {
    nlohmann::json list = nlohmann::json::array();
    for (const Event& event : events[rank]) {
      list.push_back({{"kind", name_of(event.kind)},
                      {"micro_batch", event.micro_batch},
                      {"chunk", event.chunk},
                      {"begin", microseconds(event.begin)},
                      {"end", microseconds(event.end)}});
    }
    lines.push_back(
        {{"step", step}, {"rank", rank}, {"bubble", bubble}, {"events", std::move(list)}, {"left_out", left_out[rank]}});
  }
  return lines;
}

}  // namespace bitloom::train
