// Bytes of all ranks on their way to the root beside the messages of updates, so that a checkpoint does not stop the run: in
// pieces, of which each rank has one on its way and sends the next when the root has it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "mpi/comm.h"

namespace bitloom::mpi {

class StateGather {
 public:
  // comm outlives this.
  explicit StateGather(Comm& comm);

  // On every rank, at the same point of the run, when the root is done with the gathering before.
  void begin();
  bool under_way() const { return under_way_; }
  // Adds this rank's pieces, one after the other; last: it has no more.
  void add(std::span<const std::byte> bytes, bool last);
  // Whether this rank has given its last.
  bool given() const { return given_; }
  // Moves what can be moved now. Throws PeerLost, and Error(data) at a root that has no room for them.
  void poll();
  // Whether this rank is done: all it had is at the root; at the root, what all ranks had.
  bool is_done() const;
  // From now on pieces are as large as can be: nothing else is to travel.
  void hurry() { hurry_ = true; }
  // Gives nothing more, and forgets what has not been sent; it is then to be polled until it is done, on every rank.
  void drop();
  // At the root, once it is done: what each rank had, by rank. Elsewhere and before it forgets what it has.
  std::vector<std::vector<std::byte>> end();

 private:
  void send_piece();
  void receive_pieces();

  Comm& comm_;
  bool under_way_ = false;
  bool hurry_ = false;
  bool given_ = false;
  // Not at the root.
  std::vector<std::byte> waiting_;
  std::size_t sent_ = 0;  // bytes of `waiting_`
  bool sent_last_ = false;
  bool on_its_way_ = false;  // a piece that the root has not confirmed
  // The root's, by rank.
  std::vector<std::vector<std::byte>> received_;
  std::vector<bool> complete_;
};

}  // namespace bitloom::mpi
