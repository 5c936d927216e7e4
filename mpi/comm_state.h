// The state of a Comm, and the only file of the project that includes <mpi.h>. Private to mpi/.
#pragma once

// The C++ bindings that MPI-3 removed would only add symbols and warnings.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mpi/comm.h"
#include "mpi/meter.h"
#include "mpi/watchdog.h"

namespace bitloom::mpi {

// The one place where a size becomes one of MPI's int counts. Throws Error(internal).
int count_of(std::size_t elements);

// Tags of a communicator's messages; MPI's own collectives need none.
enum Tag : int {
  gather_tag = 1,            // gather_bytes()
  channel_tag = 2,           // and one for every channel
  started_tag = 8,           // messages of pending.h
  first_operation_tag = 16,  // two for every operation of float_collectives.h
};

// Sums are taken over unsigned types, for which C defines overflow; the bits are those of two's complement.
inline MPI_Datatype sum_type(std::int32_t) { return MPI_UINT32_T; }
inline MPI_Datatype sum_type(std::int64_t) { return MPI_UINT64_T; }

// Messages under way; in containers that leave them where they are, because MPI knows their addresses.
struct Message {
  std::vector<std::byte> bytes;
  Channel channel = Channel::main;
  MPI_Request request = MPI_REQUEST_NULL;
};
using Outgoing = std::list<Message>;
using Incoming = std::map<std::pair<Channel, int>, Message>;  // by channel and rank: the one that has begun to arrive

class Progress;

// State that all communicators of a process share.
struct Process {
  int rank = 0;  // in the run
  int size = 1;
  std::atomic<bool> broken{false};
  bool ended = false;  // MPI_Finalize has been called, or is not to be
  Settings settings;
  Watchdog* watchdog = nullptr;  // set in processes that MPI has started
  std::uint64_t groups = 0;      // that split() has made
  // Messages of groups that ended while they were under way.
  std::list<Outgoing> unsent;
  std::list<Incoming> unreceived;

  // MPI is called by one thread at a time. There is a second thread from when the first operation is started (operation.h), if
  // MPI allows it; until then there is no lock to take.
  bool allows_threads = false;
  bool has_threads = false;
  std::mutex turn;
  std::unique_lock<std::mutex> take_turn() { return has_threads ? std::unique_lock(turn) : std::unique_lock<std::mutex>(); }
  // Operations that were started; without a thread whoever waits moves them.
  std::shared_ptr<Progress> progress;
  bool moves_by_hand = false;
  void move_operations();
  // From now on nobody calls MPI; nobody is inside a call when it returns.
  void break_off(const std::string& reason);
  // Why the peers were lost, for whoever uses a communicator next: the first reason stays.
  void keep_reason(const std::string& reason);
  std::string reason() const;

 private:
  mutable std::mutex reason_turn_;
  std::string reason_;
};

struct Comm::State {
  explicit State(std::shared_ptr<Process> shared) : process(std::move(shared)) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  std::shared_ptr<Process> process;
  MPI_Comm handle = MPI_COMM_NULL;  // of several ranks
  int rank = 0;
  int size = 1;
  // For a group: its number in this process, from 1; its kind; the numbers of its ranks in the run.
  std::uint64_t group_number = 0;
  std::string group_kind;
  std::vector<int> world_ranks;
  std::array<Traffic, collective_count> traffic{};
  std::uint64_t operations = 0;  // of float_collectives.h, which all ranks start in the same order
  Outgoing outgoing;
  Incoming incoming;
  std::list<Message> refused;  // by their receiver, for their length: they arrive in vain

  bool is_group() const { return group_number > 0; }
  // For messages: "rank 1 of 4", "rank 1 of 4 of the tensor group (rank 5 of 8)".
  std::string self() const;
  // "rank 1", "rank 1 of the tensor group (rank 5)".
  std::string named(int r) const;
  // Number of a rank of this communicator in the run.
  int world_rank(int r) const { return is_group() ? world_ranks[static_cast<std::size_t>(r)] : r; }

  // Counts a new call; with one rank nothing is sent.
  Meter meter(Collective kind, std::size_t bytes) {
    return Meter(traffic[static_cast<std::size_t>(kind)], size > 1 ? bytes : 0);
  }
  // Times a piece of a call that was counted before.
  Meter meter(Collective kind) { return Meter(traffic[static_cast<std::size_t>(kind)]); }

  [[noreturn]] void lose(const std::string& message);
  void require_usable(const char* operation) const;
  // Message of a call after that.
  std::string lost_earlier(const char* operation) const;
  void require_rank(const char* operation, int root) const;
  // Throws Error(usage) unless there is another rank of this number.
  void require_peer(const char* operation, int peer) const;
  // The longest that others may announce.
  std::uint64_t most_bytes() const;
  void require_length(const char* what, int from, std::uint64_t bytes) const;
  // Throws the error that all ranks of this communicator throw.
  [[noreturn]] void fail_on_all(ErrorKind kind, const std::string& message) const;

  // Every call of MPI goes through here: f() makes one and returns its code, which becomes an error. The watchdog knows of it.
  template <typename F>
  void call(const char* operation, F&& f) {
    const std::unique_lock<std::mutex> turn = process->take_turn();
    require_usable(operation);
    const Watchdog::Inside inside(process->watchdog, operation);
    verify(f(), operation);
  }
  // By whoever has the turn.
  void verify(int code, const char* operation);

  // One MPI_Testall over requests that may be finished already.
  bool test(std::span<MPI_Request> requests, const char* operation);

  // Waits until all requests are finished or the watchdog runs out. In the second case the requests stay pending, which is safe
  // after their buffers are gone because a broken communicator never lets MPI progress again.
  void wait(std::span<MPI_Request> requests, const char* operation, std::size_t bytes) {
    wait_until([&] { return test(requests, operation); }, operation, bytes);
  }
  void wait(MPI_Request& request, const char* operation, std::size_t bytes) { wait({&request, 1}, operation, bytes); }

  // The same for anything that `done` tests. How a waiting rank backs off: data moves only while somebody calls MPI_Test, so it
  // first spins, then gives its core to others (ranks may share cores, and the other rank's OpenMP threads want them), and
  // sleeps once it is clear that a peer is late.
  template <typename F>
  void wait_until(F&& done, const char* operation, std::size_t bytes) {
    constexpr double spin_seconds = 50e-6;
    constexpr double yield_seconds = 5e-3;
    constexpr double yield_seconds_per_byte = 5e-9;  // while a long message is likely on its way: naps would halve its speed
    constexpr auto nap = std::chrono::microseconds(50);
    Patience patience(Clock::now());
    const double nap_after = yield_seconds + yield_seconds_per_byte * static_cast<double>(bytes);
    while (true) {
      const double elapsed = patience.waited(Clock::now());  // taken before the test, so that the last moment counts
      if (done()) return;
      if (process->moves_by_hand) process->move_operations();
      const double most = process->settings.watchdog_seconds;
      if (most > 0 && elapsed > most) lose_by_waiting(operation, bytes, elapsed);
      if (elapsed < spin_seconds) continue;
      if (elapsed < nap_after) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(nap);
      }
    }
  }
  [[noreturn]] void lose_by_waiting(const char* operation, std::size_t bytes, double elapsed);

  // groups.cpp
  std::unique_ptr<State> split(int colour, int key, const std::string& name);

  // messages.cpp
  // Forgets messages that are gone; returns whether all of a channel are.
  bool sent(Channel channel, const char* operation);
  // The next message of a rank, if all of it is there now. One that has begun to arrive goes on between calls.
  std::optional<std::vector<std::byte>> try_receive(int from, std::uint64_t most, Channel channel, const char* operation);
  // Receives a message that was found and is refused.
  void drain(int length, MPI_Message* found, const char* operation);

  // collectives.cpp
  // Calls start(offset, count) for each message of a transfer of `elements` elements.
  template <typename F>
  void for_each_message(std::size_t elements, F&& start) const {
    const std::size_t limit = elements_per_message();
    for (std::size_t offset = 0; offset < elements; offset += std::min(limit, elements - offset)) {
      start(offset, count_of(std::min(limit, elements - offset)));
    }
  }
  std::size_t elements_per_message() const;
  template <typename T>
  void reduce(std::span<T> values, MPI_Datatype type, MPI_Op operation, const char* name);
  void broadcast(std::span<std::byte> bytes, int root, const char* name);
  std::vector<std::byte> broadcast_bytes(std::vector<std::byte> bytes, int root, const char* name,
                                         const std::function<void()>& alive = {});
  std::vector<std::vector<std::byte>> gather_bytes(std::span<const std::byte> bytes, int root, const char* name);
  void barrier(const char* name);
  // Fails on all ranks unless the root can have what the ranks announce.
  void require_room(std::span<const std::int64_t> lengths, int root, const char* operation) const;
  // Collective: the largest of one value per rank.
  std::int64_t largest(std::int64_t value, const char* name);
};

}  // namespace bitloom::mpi
