// The way of bundles along the tree of ranks: those of workers up to the root, merged wherever they meet, its replies down to
// all ranks. Ranks need not be at the same update: replies wait until they are asked for, and so do bundles of ranks below that
// are ahead.
//
// Usually every update waits for all workers. With a quorum below 1 it waits for them until a deadline, after that for this
// share of them. Later messages are folded into the update that the root works on, statistics into the next that has some, or
// dropped: such runs depend on the time that things take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "mpi/bundle.h"
#include "mpi/comm.h"
#include "mpi/tree.h"

namespace bitloom::mpi {

enum class Late { fold, drop };

struct TreeOptions {
  int fan_in = 8;
  double quorum = 1;            // the share of all workers that is enough after the deadline
  double deadline_seconds = 1;  // wait of the root after its own workers are done; ranks below it wait a part of that
  Late late = Late::fold;
  // Whether messages may come after their update with a quorum of 1, too, and their totals count where they are folded.
  bool late_counts = false;
};

// Throws Error(usage).
void check(const TreeOptions& options);

// Counts of what a rank sent and missed, and how long it waited.
struct TreeCounts {
  std::uint64_t sent_up = 0;    // bytes to the rank above
  std::uint64_t sent_down = 0;  // bytes to those below, together
  std::uint64_t missed = 0;     // updates whose reply came before this rank's workers had finished, or begun
  double merge = 0;             // seconds of decoding, merging and encoding what passes,
  double wait = 0;              // and of looking for the next of it, or waiting
  TreeCounts& operator+=(const TreeCounts& other);
};

class BundleTree {
 public:
  // Collective. `workers` are this rank's; comm outlives this. The first `feedback` vectors of a bundle may be folded into any
  // other update, those behind them, statistics, into one that has them too.
  BundleTree(Comm& comm, const TreeOptions& options, std::size_t workers, std::size_t feedback);

  // Updates before this one are closed: of a run that goes on.
  void begin_at(std::uint64_t update) { next_ = update; }

  bool is_root() const { return tree_.is_root(); }
  std::size_t all_workers() const { return all_; }

  // Called whenever this moves what has arrived: something else that is to move meanwhile. It must not use this tree.
  void set_beside(std::function<void()> beside) { beside_ = std::move(beside); }

  // Moves what has arrived; to be called now and then while this rank computes.
  void poll();

  // Sends what this rank's workers have for an update, and the ranks below it, up; at the root it is returned instead. Without
  // `own` nothing is waited for, and they have what was put in.
  std::optional<Bundle> gather(std::uint64_t update, std::optional<Bundle> own);
  // Puts in what this rank's workers have for an update, before it is gathered; late if it has been.
  void put(Bundle own);
  // Workers of this rank and those below it, in all and whose messages for an update are here.
  std::size_t workers() const { return below_; }
  std::size_t present(std::uint64_t update) const;
  // `seconds` of the root's, at this rank: in proportion to the levels below it.
  double share_of_deadline(double seconds) const;
  // At the root: a reply for all, in its encoded form. Replies are given in the order of updates.
  void spread(std::vector<std::byte> reply);
  // Whether the reply to `update` is here, after a look for messages.
  bool has_reply(std::uint64_t update);
  // Waits for the next reply.
  Bundle next_reply();
  // Waits until the reply to an update is here, and has been sent on. Before that others may need what this rank has to pass
  // on, which does not happen while it waits for something else.
  void settle(std::uint64_t update);
  // Waits until what was sent is gone. Nothing moves while a rank computes, unless it polls.
  void finish_sends();
  // Collective, after the last reply: waits for what is late, and forgets it.
  void close();

  // Tells all ranks that one of them asks to stop, whatever is under way; once.
  void signal();
  // Whether a rank did.
  bool is_signalled() const { return is_signalled_; }
  // At the root: tells all other ranks that it is at work, though they wait for its reply.
  void tell_alive();
  // How often a rank has heard that.
  std::uint64_t signs_of_life() const { return signs_; }
  // Takes and forgets what is under way, whatever that is: all ranks call this again and again until it is true.
  bool has_ended();

  // The replies that nobody has asked for yet; at the root these are all that some rank may still lack.
  const std::deque<Bundle>& replies() const { return replies_; }
  void set_replies(std::deque<Bundle> replies) { replies_ = std::move(replies); }

  TreeCounts take_counts();

 private:
  struct Parts {
    std::vector<Bundle> bundles;
    std::size_t workers = 0;
  };
  void accumulate(int child, const std::vector<std::byte>& message);
  void tell(std::uint64_t mark);
  void take_late(Bundle bundle);
  bool has_statistics(const Bundle& bundle) const;
  void fold_late_statistics(std::uint64_t update, std::vector<Bundle>& bundles);
  void take_reply(std::vector<std::byte> message);
  void send_up(Bundle bundle);
  void look();
  template <typename F>
  void wait(F&& f);
  void wait_until(const std::function<bool()>& done, const char* what);
  bool holds_reply(std::uint64_t update) const { return !replies_.empty() && replies_.back().update >= update; }

  Comm& comm_;
  TreeOptions options_;
  Tree tree_;
  std::size_t all_ = 0, below_ = 0;  // workers: in all; of this rank and those below it
  std::size_t feedback_;
  std::uint64_t next_ = 0;                     // updates before it are closed here
  std::map<std::uint64_t, Parts> parts_;       // messages of updates that are not closed
  std::vector<Bundle> late_statistics_;        // at the root, until an update has some
  std::deque<Bundle> replies_;                 // not asked for yet
  std::size_t ended_ = 0;                      // children that have nothing more to send
  bool asked_ = false, is_signalled_ = false;  // to stop: by a rank from here on; by one, as all know
  std::uint64_t signs_ = 0;                    // of life, of the root's
  bool is_over_ = false, told_end_ = false;    // the rank above has nothing more to send; nor has this one, as it knows
  std::function<void()> beside_;
  TreeCounts counts_;
};

}  // namespace bitloom::mpi
