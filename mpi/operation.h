// Operations that take several calls of MPI, moved by whoever comes by, and the thread that does. Private to mpi/.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "mpi/comm_state.h"
#include "mpi/pending.h"

namespace bitloom::mpi {

class Operation {
 public:
  // name and bytes: for messages.
  Operation(Comm::State& state, Collective kind, const char* name, std::size_t bytes)
      : state_(state), kind_(kind), name_(name), bytes_(bytes) {}
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;

  // Moves what can be moved now, unless another thread is at it. Whether it is over; by an error too, after which all
  // communicators are broken.
  bool poll();
  bool is_over() const noexcept { return over_.load(std::memory_order_acquire); }
  // Waits for the end and throws the error there was. Whatever happens, nobody touches the operation's buffers afterwards.
  void wait();
  // The same, but after `seconds` all communicators are broken instead.
  void leave(double seconds);
  Comm::State& state() { return state_; }
  Collective kind() const { return kind_; }

 protected:
  // Moves what can be moved now; whether it is over. Called by one thread at a time, and not again after that or an error.
  virtual bool advance() = 0;

  Comm::State& state_;
  const Collective kind_;
  const char* const name_;
  const std::size_t bytes_;

 private:
  std::mutex mutex_;
  std::atomic<bool> over_{false};
  std::exception_ptr error_;
};

// Requests that belong together, and the lengths of the messages among them that are received.
class Requests {
 public:
  explicit Requests(Comm::State& state, const char* name) : state_(&state), name_(name) {}
  // Receives come before sends.
  void receive(std::span<std::byte> bytes, int from, int tag);
  void send(std::span<const std::byte> bytes, int to, int tag);
  // Whether all are finished, which forgets them. Throws PeerLost, and Error(internal) for a message of another length.
  bool test();

 private:
  struct Expected {
    int bytes = 0, from = 0;
  };
  Comm::State* state_;
  const char* name_;
  std::vector<MPI_Request> requests_;
  std::vector<Expected> expected_;  // of the first requests
  std::vector<MPI_Status> statuses_;
};

// Operations under way and the thread that moves them.
class Progress {
 public:
  // Without a thread if there can be none.
  explicit Progress(bool with_thread);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  bool has_thread() const { return thread_.joinable(); }
  void add(std::shared_ptr<Operation> operation);
  bool is_idle();
  // Moves all; for programs without the thread.
  void poll();

 private:
  void run();

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Operation>> operations_;
  bool added_ = false;
  bool stop_ = false;
  std::thread thread_;
};

// Begins it and leaves the rest to the thread.
Pending start(std::unique_ptr<Operation> operation);

}  // namespace bitloom::mpi
