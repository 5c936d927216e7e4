// Communication between the processes ("ranks") of one run. The rest of Bitloom sees only this header; <mpi.h> is included by
// comm_state.h alone.
//
// Every member function of Comm that is marked "collective" must be called by all ranks of that Comm in the same order and by
// the thread that made the Environment, or another one where use_from_thread() says so. With one rank all of them work without
// MPI.
//
// Errors. MPI cannot recover from a lost peer, so a caller needs to know whether its peers fail too:
//   SharedError  thrown by check() and together(), on every rank, with the same kind and message: each rank may clean up and
//                leave the ordinary way.
//   GroupError   the same of a group that split() made, if it is not the whole run: the ranks of the group throw it, the others
//                know nothing of it. together() of a larger group turns it into an error of that one.
//   PeerLost     this rank waited longer than the watchdog allows, or MPI reported an error. All communicators of the process
//                are broken: every later collective throws PeerLost at once. The process should call abort_all().
//   other        an Error of this rank alone. The peers know nothing of it and will wait: let it pass through together(), or
//                call abort_all().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"

namespace bitloom::mpi {

class SharedError : public Error {
 public:
  using Error::Error;
};

class GroupError : public Error {
 public:
  GroupError(ErrorKind kind, const std::string& message, std::uint64_t group) : Error(kind, message), group_(group) {}
  // Number of the group among those of this process.
  std::uint64_t group() const noexcept { return group_; }

 private:
  std::uint64_t group_;
};

class PeerLost : public Error {
 public:
  explicit PeerLost(const std::string& message) : Error(ErrorKind::io, message) {}
};

enum class Collective {
  sum,
  max,
  broadcast,
  gather,
  barrier,
  check,
  message,
  float_sum,  // this and those below: float_collectives.h
  float_max,
  reduce_scatter,
  all_gather
};
inline constexpr std::size_t collective_count = 11;

// Messages of one channel neither overtake nor wait for those of another.
enum class Channel { main, state, records };

// Counts of what one rank has handed to a kind of collective so far.
struct Traffic {
  std::uint64_t calls = 0;
  std::uint64_t bytes_sent = 0;  // payload this rank contributed (not what the algorithm forwards); 0 with one rank
  double seconds = 0;            // wall-clock time this rank spent inside the calls, and waiting for what it had started

  Traffic& operator+=(const Traffic& other) noexcept {
    calls += other.calls;
    bytes_sent += other.bytes_sent;
    seconds += other.seconds;
    return *this;
  }
};

struct Settings {
  double watchdog_seconds = 300;         // longest wait for other ranks, and longest call of MPI; 0 = for ever
  std::size_t elements_per_message = 0;  // longer reductions and broadcasts are split; 0 = what MPI's int counts allow
  std::uint64_t most_bytes = 0;          // limit on lengths that others announce to this rank; 0 = this machine's memory
  bool progress_thread = true;           // operations that were started (pending.h) go on while the process computes
};

// How a process ends that hangs inside a call of MPI, from which no exception can take it.
struct Hang {
  int exit_code = 1;
  // Called before that on a thread of its own, with what hangs; it should not wait for anything.
  std::function<void(const std::string& message)> tell;
};

class Comm {
 public:
  // A communicator of one rank, which never touches MPI.
  Comm();
  Comm(Comm&&) noexcept;
  Comm& operator=(Comm&&) noexcept;
  ~Comm();

  int rank() const noexcept;
  int size() const noexcept;
  bool is_root() const noexcept { return rank() == 0; }
  bool broken() const noexcept;

  // Collective: ranks that pass the same colour, 0 or more, become a group, in the order of their keys and, where those are
  // equal, of their ranks here. Its messages and collectives never meet those of this communicator or of other groups; it has
  // counts of its own (traffic()) and shares all else: settings, watchdog, and that it is broken once any communicator of the
  // process is. name: the kind of group, for messages ("tensor"). Throws SharedError or GroupError for a negative colour.
  [[nodiscard]] Comm split(int colour, int key, const std::string& name);
  // Number in the whole run of a rank of this communicator. Throws Error(internal) if there is none of that number.
  int world_rank(int rank) const;

  const Settings& settings() const noexcept;
  // For all communicators of the process. Not collective, but elements_per_message must be the same on all ranks. Throws
  // Error(usage) for a negative or NaN wait or a number of elements above INT_MAX.
  void configure(const Settings& settings);

  // Collective, in place: values[i] becomes the sum over ranks, exact modulo 2^32 or 2^64 (two's complement wrap-around), so it
  // does not depend on the order of summation. All ranks pass the same length.
  void sum(std::span<std::int32_t> values);
  void sum(std::span<std::int64_t> values);

  // Messages from rank to rank, not collective; those of one rank to another in one channel arrive in their order. send()
  // returns at once and keeps the bytes until they are gone, of which every call of these functions makes sure. Throws
  // Error(usage) if `to` is this rank or none.
  void send(int to, std::vector<std::byte> bytes, Channel channel = Channel::main);
  // Waits for the next message of another rank. Throws Error(data) if it has more than `most` bytes.
  [[nodiscard]] std::vector<std::byte> receive(int from, std::uint64_t most = UINT64_MAX, Channel channel = Channel::main);
  // The next message of another rank if all of it is there already.
  [[nodiscard]] std::optional<std::vector<std::byte>> try_receive(int from, std::uint64_t most = UINT64_MAX,
                                                                  Channel channel = Channel::main);
  // Whether everything that was sent in a channel is gone.
  [[nodiscard]] bool sends_finished(Channel channel = Channel::main);
  // Waits until done() is true, which is asked again and again and may use these functions. `what` and `bytes` are for the
  // message of PeerLost.
  void wait_until(const std::function<bool()>& done, const char* what, std::size_t bytes = 0);

  // Collective, in place: values[i] becomes the largest over ranks.
  void max(std::span<std::int64_t> values);

  // Collective: everybody's bytes become the root's. All ranks pass the same length.
  void broadcast(std::span<std::byte> bytes, int root = 0);
  template <typename T>
  void broadcast(std::span<T> values, int root = 0) {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>);
    broadcast(std::as_writable_bytes(values), root);
  }
  // Collective: returns the root's bytes on every rank; what the others pass is ignored. alive: called on this rank after every
  // piece of 8 MiB, for many of them take long on a slow link. Throws Error(data) on ranks that have no room for them.
  [[nodiscard]] std::vector<std::byte> broadcast_bytes(std::vector<std::byte> bytes, int root = 0,
                                                       const std::function<void()>& alive = {});
  [[nodiscard]] std::string broadcast_text(const std::string& text, int root = 0);

  // Collective: the root gets every rank's bytes, by rank; the others get an empty vector. Lengths may differ. Throws
  // SharedError if the root has no room for them.
  [[nodiscard]] std::vector<std::vector<std::byte>> gather_bytes(std::span<const std::byte> bytes, int root = 0);

  // Collective.
  void barrier();

  // Throws Error(data) if that is more than this rank may get (Settings::most_bytes): to be asked before there is memory for
  // what rank `from` announces.
  void require_length(const char* what, int from, std::uint64_t bytes) const;

  // Collective: true on all ranks if any of them passes true ("somebody was asked to stop").
  [[nodiscard]] bool flag_any(bool flag);

  // Collective: if any rank passes a non-empty message, all throw SharedError (those of a group GroupError) with the message
  // and kind of the first such rank; in a run of several ranks the message is preceded by "rank R: ", its number in the run.
  void check(const std::string& local_error, ErrorKind kind = ErrorKind::internal);

  // Collective: runs f on each rank, then check()s what it threw. f may return a value, and may itself use collectives as long
  // as all ranks reach them.
  template <typename F>
  std::invoke_result_t<F> together(F&& f) {
    using Result = std::invoke_result_t<F>;
    std::conditional_t<std::is_void_v<Result>, std::nullptr_t, std::optional<Result>> result{};
    std::string message;
    ErrorKind kind = ErrorKind::internal;
    bool names_rank = false;
    try {
      if constexpr (std::is_void_v<Result>) {
        std::forward<F>(f)();
      } else {
        result.emplace(std::forward<F>(f)());
      }
    } catch (const SharedError&) {
      throw;  // all ranks throw it
    } catch (const PeerLost&) {
      throw;  // nobody is left to tell
    } catch (const GroupError& error) {
      if (is_of(error)) throw;
      message = described(error);
      kind = error.kind();
      names_rank = true;
    } catch (const Error& error) {
      message = described(error);
      kind = error.kind();
    } catch (const std::system_error& error) {  // from std::filesystem, say
      message = described(error);
      kind = ErrorKind::io;
    } catch (const std::exception& error) {
      message = described(error);
    }
    share(message, kind, names_rank);
    if constexpr (!std::is_void_v<Result>) return std::move(*result);
  }

  Traffic traffic(Collective kind) const noexcept;
  // Over all kinds.
  Traffic traffic() const noexcept;

  // Whether operations that were started (pending.h) go on while the process computes; false where this MPI library lets only
  // one thread call it, or the settings say so.
  bool has_progress_thread() const noexcept;
  // From now on another thread may use this communicator while its maker goes on to use others of the process; this one is then
  // used by one thread at a time. False where this MPI library lets only one thread call it, or the settings say so.
  [[nodiscard]] bool use_from_thread();

  // For mpi/ alone: comm_state.h.
  struct State;
  State& state() noexcept { return *state_; }

 private:
  friend class Environment;
  explicit Comm(std::unique_ptr<State> state) noexcept;
  static std::string described(const std::exception& error);
  // check(), of a message that may name its rank already.
  void share(const std::string& local_error, ErrorKind kind, bool names_rank);
  // Whether all ranks of this communicator throw this error.
  bool is_of(const GroupError& error) const noexcept;

  std::unique_ptr<State> state_;
};

class Watchdog;

// Starts MPI if and only if the process was started by mpirun or srun, which is seen in its environment variables, and ends it
// when destroyed. Make one, in main(), before any other thread that communicates. `settings` hold from the start of MPI on; a
// call that lasts longer ends the process as `hang` says. Throws Error(internal) on a second one and PeerLost if MPI cannot
// start.
class Environment {
 public:
  explicit Environment(const Settings& settings = {}, Hang hang = {});
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  // Waits for the other ranks, at most as long as the watchdog says. If they do not come, or the communicator is broken, MPI is
  // left as it is: the process should then end with a non-zero code, upon which the launcher ends the others.
  ~Environment();

  // All ranks of the run.
  Comm& world() noexcept { return world_; }

 private:
  bool launched_ = false;
  std::unique_ptr<Watchdog> watchdog_;
  Comm world_;
};

// Name of the machine that this process runs on.
std::string host_name();
// Collective: those of all ranks, at rank 0; empty elsewhere.
std::vector<std::string> host_names(Comm& comm);

// Whether the environment variables say that mpirun or srun started this process.
bool launched_by_mpi() noexcept;

// Ends this process and, where MPI is in use, all ranks of the run (MPI_Abort), with the given exit code. Nothing is flushed or
// destroyed. May be called from any thread, not from a signal handler. If MPI_Abort hangs, this process ends after ten seconds.
[[noreturn]] void abort_all(int code);

}  // namespace bitloom::mpi
