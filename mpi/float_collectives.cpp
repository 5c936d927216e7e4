#include "mpi/float_collectives.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "mpi/float_terms.h"
#include "mpi/operation.h"

namespace bitloom::mpi {
namespace {

// Received terms of one round, of which two are under way.
constexpr std::size_t round_bytes = std::size_t{4} << 20U;
constexpr std::size_t least_piece_bytes = std::size_t{16} << 10U;
constexpr std::size_t most_piece_bytes = std::size_t{1} << 30U;
constexpr std::size_t rounds_under_way = 2;

// Operations that may be under way on one communicator, by their tags.
constexpr std::uint64_t most_operations = 8000;

// Ranks up to which values may go whole to everybody, in n - 1 messages of each; and bytes of a part, at least, so that the
// rank that adds it up takes about as long for its bytes as for its messages (about 5 us each). Few values go to few ranks
// then, in few messages of each of the others.
constexpr int most_ranks_for_whole = 16;
constexpr std::size_t least_part_bytes = std::size_t{4} << 10U;

// Number of bytes up to which values go whole to everybody: that saves a message's latency, and costs (n - 1) (n - 2) / n times
// their bytes more than parts and results do. A latency is worth about 16 KiB (20 us at 0.8 GB/s on TCP); with two ranks it is
// their summing twice what is lost.
bool goes_whole(std::size_t bytes, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  return ranks <= most_ranks_for_whole && bytes <= (std::size_t{64} << 10U) &&
         bytes * (n - 1) * (n - 2) <= (std::size_t{16} << 10U) * n;
}

// A rank's part of the values.
struct Part {
  std::size_t begin = 0, size = 0;
};

// Everybody sends everybody their part of what is to be reduced, reduces the terms of its own in the order of ranks, and sends
// everybody the result; either half may be left out. In rounds of at most `piece` values of every part, so that little memory
// is needed and rounds overlap.
template <typename T>
class Exchange final : public Operation {
 public:
  using Reduce = void (*)(std::span<const T* const> terms, T* out, std::size_t n);
  struct Plan {
    std::vector<Part> parts;     // by rank; all the same where values go whole to everybody
    const T* terms = nullptr;    // of this rank, of all parts
    T* mine = nullptr;           // this rank's part of the result
    T* results = nullptr;        // of all parts, where they are gathered
    Reduce reduce = nullptr;     // nothing where parts are only gathered
    std::size_t most_piece = 0;  // 0: no limit but that of messages
  };

  Exchange(Comm::State& state, Collective kind, const char* name, std::size_t bytes, Plan plan)
      : Operation(state, kind, name, bytes), plan_(std::move(plan)), ranks_(state.size), own_(state.rank) {
    tag_ = first_operation_tag + 2 * static_cast<int>(state.operations++ % most_operations);
    const auto n = static_cast<std::size_t>(ranks_);
    piece_ = (plan_.reduce != nullptr ? std::max(round_bytes / n, least_piece_bytes) : most_piece_bytes) / sizeof(T);
    if (plan_.most_piece > 0) piece_ = std::min(piece_, plan_.most_piece);
    std::size_t longest = 0;
    for (const Part& part : plan_.parts) longest = std::max(longest, part.size);
    rounds_ = (longest + piece_ - 1) / piece_;
    for (std::size_t i = 0; i < std::min(rounds_, rounds_under_way); ++i) slots_.emplace_back(state, name);
  }

 private:
  struct Slot {
    Slot(Comm::State& state, const char* name) : terms_under_way(state, name), results_under_way(state, name) {}
    std::unique_ptr<T[]> received;  // the other ranks' terms of this rank's piece, by rank
    Requests terms_under_way, results_under_way;
  };

  // A part's piece of a round.
  Part piece_of(int rank, std::size_t round) const {
    const Part& part = plan_.parts[static_cast<std::size_t>(rank)];
    const std::size_t begin = std::min(part.size, round * piece_);
    return {part.begin + begin, std::min(part.size - begin, piece_)};
  }

  // Calls f for the other ranks, beginning with the next, so that not all send to the same one first.
  template <typename F>
  void for_each_other(F&& f) const {
    for (int i = 1; i < ranks_; ++i) f((own_ + i) % ranks_);
  }

  bool advance() override {
    while (true) {
      bool moves = false;
      while (started_ < rounds_ && started_ < finished_ + slots_.size()) {
        exchange_terms(started_++);
        moves = true;
      }
      if (reduced_ < started_ && slot_of(reduced_).terms_under_way.test()) {
        reduce(reduced_);
        exchange_results(reduced_++);
        moves = true;
      }
      if (finished_ < reduced_ && slot_of(finished_).results_under_way.test()) {
        ++finished_;
        moves = true;
      }
      if (finished_ == rounds_) {
        slots_.clear();
        return true;
      }
      if (!moves) return false;
    }
  }

  Slot& slot_of(std::size_t round) { return slots_[round % slots_.size()]; }

  void exchange_terms(std::size_t round) {
    if (plan_.reduce == nullptr) return;
    Slot& slot = slot_of(round);
    const std::size_t size = piece_of(own_, round).size;
    // Pieces of later rounds are not longer.
    if (slot.received == nullptr) {
      slot.received = std::make_unique_for_overwrite<T[]>(size * static_cast<std::size_t>(ranks_ - 1));
    }
    for_each_other([&](int r) {
      if (size > 0) slot.terms_under_way.receive(std::as_writable_bytes(received_from(slot, r, size)), r, tag_);
    });
    for_each_other([&](int r) {
      const Part piece = piece_of(r, round);
      if (piece.size > 0) slot.terms_under_way.send(std::as_bytes(std::span(plan_.terms + piece.begin, piece.size)), r, tag_);
    });
  }

  std::span<T> received_from(Slot& slot, int r, std::size_t size) const {
    return {slot.received.get() + size * static_cast<std::size_t>(r < own_ ? r : r - 1), size};
  }

  void reduce(std::size_t round) {
    if (plan_.reduce == nullptr) return;
    Slot& slot = slot_of(round);
    const Part piece = piece_of(own_, round);
    if (piece.size == 0) return;
    std::vector<const T*> terms;
    for (int r = 0; r < ranks_; ++r) {
      terms.push_back(r == own_ ? plan_.terms + piece.begin : received_from(slot, r, piece.size).data());
    }
    plan_.reduce(terms, plan_.mine + round * piece_, piece.size);
  }

  void exchange_results(std::size_t round) {
    if (plan_.results == nullptr) return;
    Slot& slot = slot_of(round);
    const auto results_of = [&](int r) {
      const Part piece = piece_of(r, round);
      return std::span(plan_.results + piece.begin, piece.size);
    };
    for_each_other([&](int r) {
      if (!results_of(r).empty()) slot.results_under_way.receive(std::as_writable_bytes(results_of(r)), r, tag_ + 1);
    });
    for_each_other([&](int r) {
      if (!results_of(own_).empty()) slot.results_under_way.send(std::as_bytes(results_of(own_)), r, tag_ + 1);
    });
  }

  const Plan plan_;
  const int ranks_, own_;
  int tag_ = 0;
  std::size_t piece_ = 0, rounds_ = 0;
  std::vector<Slot> slots_;
  // Rounds of which terms are under way, then results.
  std::size_t started_ = 0, reduced_ = 0, finished_ = 0;
};

// Counts that divide n values among the first `parts` ranks as evenly as can be.
std::vector<std::size_t> even_counts(std::size_t n, std::size_t parts, int ranks) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(ranks), 0);
  for (std::size_t r = 0; r < parts; ++r) counts[r] = n / parts + (r < n % parts ? 1 : 0);
  return counts;
}

std::vector<Part> parts_of(std::span<const std::size_t> counts) {
  std::vector<Part> parts;
  std::size_t begin = 0;
  for (const std::size_t count : counts) {
    parts.push_back({begin, count});
    begin += count;
  }
  return parts;
}

void require_counts(const Comm::State& state, const char* name, std::span<const std::size_t> counts, std::size_t all) {
  const std::vector<Part> parts = parts_of(counts);
  const std::size_t total = parts.empty() ? 0 : parts.back().begin + parts.back().size;
  if (counts.size() == static_cast<std::size_t>(state.size) && total == all) return;
  fail(ErrorKind::internal, "{}: {} counts of {} values in all; expected {} of {}", name, counts.size(), total, state.size,
       all);
}

// The operations, begun by nobody; nothing where there is nothing to do.
template <typename T>
std::unique_ptr<Operation> all_reduce(Comm::State& state, Collective kind, const char* name, std::span<T> values,
                                      typename Exchange<T>::Reduce reduce) {
  state.require_usable(name);
  if (state.size == 1 || values.empty()) return nullptr;
  const std::size_t most = state.process->settings.elements_per_message;
  typename Exchange<T>::Plan plan{{}, values.data(), values.data(), nullptr, reduce, most};
  if (goes_whole(values.size_bytes(), state.size)) {
    plan.parts.assign(static_cast<std::size_t>(state.size), {0, values.size()});
  } else {
    const std::size_t parts =
        std::clamp(values.size_bytes() / least_part_bytes, std::size_t{1}, static_cast<std::size_t>(state.size));
    plan.parts = parts_of(even_counts(values.size(), parts, state.size));
    plan.mine += plan.parts[static_cast<std::size_t>(state.rank)].begin;
    plan.results = values.data();
  }
  return std::make_unique<Exchange<T>>(state, kind, name, values.size_bytes(), std::move(plan));
}

template <typename T>
std::unique_ptr<Operation> sum_operation(Comm::State& state, std::span<T> values) {
  return all_reduce(state, Collective::float_sum, "sum of floats", values, &sum_terms<T>);
}

template <typename T>
std::unique_ptr<Operation> max_operation(Comm::State& state, std::span<T> values) {
  return all_reduce(state, Collective::float_max, "max of floats", values, &max_terms<T>);
}

template <typename T>
std::unique_ptr<Operation> reduce_scatter_operation(Comm::State& state, std::span<const T> all, std::span<T> mine,
                                                    std::span<const std::size_t> counts) {
  constexpr const char* name = "reduce-scatter";
  state.require_usable(name);
  require_counts(state, name, counts, all.size());
  if (mine.size() != counts[static_cast<std::size_t>(state.rank)]) {
    fail(ErrorKind::internal, "{}: room for {} values, expected {}", name, mine.size(),
         counts[static_cast<std::size_t>(state.rank)]);
  }
  if (state.size == 1) {
    if (mine.data() != all.data()) std::ranges::copy(all, mine.begin());
    return nullptr;
  }
  return std::make_unique<Exchange<T>>(state, Collective::reduce_scatter, name, all.size_bytes(),
                                       typename Exchange<T>::Plan{parts_of(counts), all.data(), mine.data(), nullptr,
                                                                  &sum_terms<T>, state.process->settings.elements_per_message});
}

template <typename T>
std::unique_ptr<Operation> all_gather_operation(Comm::State& state, std::span<T> all, std::span<const std::size_t> counts) {
  constexpr const char* name = "all-gather";
  state.require_usable(name);
  require_counts(state, name, counts, all.size());
  if (state.size == 1) return nullptr;
  return std::make_unique<Exchange<T>>(state, Collective::all_gather, name, all.size_bytes(),
                                       typename Exchange<T>::Plan{parts_of(counts), nullptr, nullptr, all.data(), nullptr,
                                                                  state.process->settings.elements_per_message});
}

void finish(std::unique_ptr<Operation> operation) {
  if (operation != nullptr) operation->wait();
}

Pending start_if_any(std::unique_ptr<Operation> operation) {
  return operation != nullptr ? start(std::move(operation)) : Pending();
}

std::size_t own_bytes(const Comm& comm, std::span<const std::size_t> counts, std::size_t element) {
  const auto rank = static_cast<std::size_t>(comm.rank());
  return rank < counts.size() ? counts[rank] * element : 0;
}

}  // namespace

template <typename T>
void sum_in_order(Comm& comm, std::span<T> values) {
  const Meter meter = comm.state().meter(Collective::float_sum, values.size_bytes());
  finish(sum_operation(comm.state(), values));
}

template <typename T>
void max_of(Comm& comm, std::span<T> values) {
  const Meter meter = comm.state().meter(Collective::float_max, values.size_bytes());
  finish(max_operation(comm.state(), values));
}

template <typename T>
Pending start_sum(Comm& comm, std::span<T> values) {
  const Meter meter = comm.state().meter(Collective::float_sum, values.size_bytes());
  return start_if_any(sum_operation(comm.state(), values));
}

template <typename T>
Pending start_reduce_scatter(Comm& comm, std::span<const T> all, std::span<T> mine, std::span<const std::size_t> counts) {
  const Meter meter = comm.state().meter(Collective::reduce_scatter, all.size_bytes());
  return start_if_any(reduce_scatter_operation(comm.state(), all, mine, counts));
}

template <typename T>
Pending start_all_gather(Comm& comm, std::span<T> all, std::span<const std::size_t> counts) {
  const Meter meter = comm.state().meter(Collective::all_gather, own_bytes(comm, counts, sizeof(T)));
  return start_if_any(all_gather_operation(comm.state(), all, counts));
}

#define BITLOOM_FLOAT_COLLECTIVES(T)                                                                            \
  template void sum_in_order(Comm&, std::span<T>);                                                              \
  template void max_of(Comm&, std::span<T>);                                                                    \
  template Pending start_sum(Comm&, std::span<T>);                                                              \
  template Pending start_reduce_scatter(Comm&, std::span<const T>, std::span<T>, std::span<const std::size_t>); \
  template Pending start_all_gather(Comm&, std::span<T>, std::span<const std::size_t>);

BITLOOM_FLOAT_COLLECTIVES(float)
BITLOOM_FLOAT_COLLECTIVES(double)
BITLOOM_FLOAT_COLLECTIVES(bf16)
BITLOOM_FLOAT_COLLECTIVES(f16)
BITLOOM_FLOAT_COLLECTIVES(f1_6_9)

}  // namespace bitloom::mpi
