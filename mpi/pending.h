// Communication that goes on while the caller computes. A thread of the process moves it, from when the first operation is
// started; where MPI lets only one thread call it, or Settings::progress_thread is off, it moves whenever the caller waits for
// anything or asks done().
//
// All ranks of a communicator start their operations on it, these and the blocking ones of float_collectives.h, in the same
// order; several may be under way, and those of different communicators do not wait for each other. Until an operation is over,
// its buffers are not to be touched (those that are only sent, not to be changed), and its communicator not to be destroyed.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "mpi/comm.h"

namespace bitloom::mpi {

class Operation;

// An operation that was started, or nothing, which is over.
class Pending {
 public:
  Pending() noexcept;
  Pending(Pending&& other) noexcept;
  // Waits for what it had, as the destructor does.
  Pending& operator=(Pending&& other) noexcept;
  // Waits; a second at most while an exception is on its way, because the others may never do their part: after that
  // communicators are broken. Errors are lost here, except that communicators stay broken.
  ~Pending();

  // Whether it is over, be it by an error.
  [[nodiscard]] bool done();
  // Until it is over. Throws PeerLost as the blocking form does, whenever the error came up.
  void wait();

 private:
  friend Pending start(std::unique_ptr<Operation> operation);
  explicit Pending(std::shared_ptr<Operation> operation) noexcept;
  void finish() noexcept;

  std::shared_ptr<Operation> operation_;
};

// Messages of a length that both ranks know, to and from the caller's memory. Those of one rank to another arrive in the order
// in which they are started, and never meet those of Comm::send(). Counted as messages by the sender. Throw Error(usage) if
// `to` or `from` is this rank or none, PeerLost, and in wait() what a message of another length is: Error(internal).
[[nodiscard]] Pending start_send(Comm& comm, int to, std::span<const std::byte> bytes);
[[nodiscard]] Pending start_receive(Comm& comm, int from, std::span<std::byte> bytes);

}  // namespace bitloom::mpi
