// The exchange of an update between logical workers: what each of them computed goes, filtered, up a tree of ranks that merge
// it, and the root's reply comes down to all (the essay "Distributed training", "thresholded gradients"; error feedback: Stich
// et al. 2018; compression in both directions: Tang et al. 2019, DoubleSqueeze).
//
// An update has F feedback vectors, of which a worker sends the large elements and keeps the rest for later, S statistics,
// whose sums since they were last sent are sent as they are, but only in some updates, and a few totals. Everything is an
// integer, and every threshold is decided by the root from sums: results depend on the number of workers, not on who carries
// them.
//
//   begin(); for each worker of this rank: begin_worker(), add..., end_worker();
//   if (auto merged = gather()) spread(the root's reply to it);
//   next_reply(), for this update or, where replies may be late (--staleness), for one before
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/safetensors.h"
#include "mpi/bundle.h"
#include "mpi/bundle_tree.h"
#include "mpi/comm.h"
#include "mpi/kept_state.h"
#include "mpi/merger.h"
#include "mpi/sparse_filter.h"
#include "mpi/state_gather.h"
#include "mpi/threshold_control.h"

namespace bitloom::mpi {

// How a worker treats the part it did not send: forget it; keep it, in checkpoints too; keep it, but in checkpoints only the
// sum over workers, which is small however many these are: after a restart the first worker has all of it.
enum class ErrorFeedback { none, exact, sum };

struct ExchangeOptions {
  // Threshold of what a worker sends, in root mean squares of what it computes in an update; 0 sends all.
  double threshold = 0;
  // If one of these is not 0, thresholds follow from it: from the bytes that a worker's messages have on average, and the
  // root's replies; or from how many times fewer these are than the f32 gradients of what the update trains.
  std::uint64_t bytes_per_update = 0;
  double compression = 0;
  // With a ratio, how long the last messages of a run are, of their mean length; the first have 2 minus that. Who begins
  // updates says where between them these are. 1: all alike.
  double last_messages = 0.3;
  // How finely values are sent: 1 (sign), or as 4, 8, 16 bits are for values up to four thresholds, above which codes are
  // longer; 0: all of it.
  unsigned value_bits = 4;
  ErrorFeedback error_feedback = ErrorFeedback::exact;
  // Updates between those that carry statistics: their sums since then, if what is not sent is kept. 0: as many as suit the
  // budget, which who begins updates settles.
  std::size_t statistics_every = 0;
  // Number of updates that workers compute before they need the reply to one: the age of their weights, in updates.
  std::size_t staleness = 0;
  TreeOptions tree;

  // Everything is sent in every update: the sums of a dense run.
  bool exact() const { return threshold == 0 && !has_budget(); }
  // Workers keep what they do not send.
  bool keeps() const { return !exact() && error_feedback != ErrorFeedback::none; }
  bool has_budget() const { return bytes_per_update != 0 || compression != 0; }
};

// Throws Error(usage).
void check(const ExchangeOptions& options);

// Counts of the messages of an update, or of several.
struct ExchangeCounts {
  std::uint64_t updates = 0;                // updates whose replies were asked for
  std::uint64_t worker_bytes = 0;           // at the root: bytes of all workers' bundles, before any were merged
  std::uint64_t reply_bytes = 0;            // at the root: bytes of its replies
  std::uint64_t replies = 0;                // at the root: replies it gave
  double wanted_bytes = 0;                  // at the root: bytes that a worker's messages should have had, over updates
  std::uint64_t workers = 0;                // at the root: workers in time, over updates
  std::uint64_t worker_updates = 0;         // bundles of this rank's workers,
  std::uint64_t sent_elements = 0;          // elements of feedback vectors that they hold
  std::uint64_t elements = 0;               // and that these vectors have
  std::uint64_t at_limit = 0;               // elements of what is kept that could not grow on, over updates
  std::vector<std::uint64_t> vector_bytes;  // bytes of each vector in these bundles
  double encode = 0;                        // seconds of this rank
  TreeCounts tree;                          // of this rank
  ExchangeCounts& operator+=(const ExchangeCounts& other);
};

class SparseExchange {
 public:
  // Collective. Workers first .. first + count of `workers` are this rank's; comm outlives this, and carries one exchange at a
  // time: ranks that are done with an update take what comes for messages of the next. Bundles have the feedback vectors first,
  // then the statistics. Throws Error(usage), and Error(io) if what is to be kept in a file cannot be.
  SparseExchange(Comm& comm, const ExchangeOptions& options, std::size_t workers, std::size_t first, std::size_t count,
                 std::vector<FeedbackVector> feedback, std::vector<std::uint64_t> statistics,
                 const ErrorFeedbackPlace& place = {});
  SparseExchange(const SparseExchange&) = delete;
  SparseExchange& operator=(const SparseExchange&) = delete;

  const ExchangeOptions& options() const { return options_; }
  std::size_t first_worker() const { return first_; }
  std::size_t local_workers() const { return count_; }

  // Not while an update is under way.
  void set_merger(std::unique_ptr<Merger> merger) { merger_ = std::move(merger); }
  // Bytes of a worker's message, and of the reply, that thresholds follow from, on average over a run, while bundles have
  // `elements` elements of feedback vectors; 0 without a budget.
  double budget(std::uint64_t elements) const;
  // Bytes that a worker keeps, its statistics included.
  std::size_t error_feedback_bytes() const { return kept_.bytes_of_worker(); }
  std::size_t error_feedback_bytes_in_file() const { return kept_.bytes_in_file(); }  // of this rank's workers

  // Starts an update. statistics: whether it carries them. length: with a ratio, of its messages, in mean lengths.
  void begin(std::uint64_t update, bool statistics, double length = 1);
  void begin_worker(std::size_t worker);
  // Adds a worker's results: feedback vector `v`, of 32 bits if it is narrow. One that is left out is left out by all workers.
  void add(std::size_t v, std::span<const std::int32_t> fresh);
  void add(std::size_t v, std::span<const std::int64_t> fresh);
  // In every update; without error feedback only those of the updates that carry statistics count.
  void add_statistics(std::size_t s, std::span<const std::int64_t> values);
  void add_totals(std::span<const std::int64_t> totals);
  void end_worker();

  // Sends what this rank's workers did, and those of the ranks below it. At the root: what all workers sent.
  std::optional<Bundle> gather();
  // Where is_late() says so: lets an update go for which this rank's workers have computed nothing.
  void pass(std::uint64_t update);
  // Tells the root that the run is to stop, where what this rank sends may come too late to say so.
  void ask_to_stop() {
    if (options_.tree.quorum < 1) tree_.signal();
  }
  // Whether a rank did.
  bool is_stop_asked() const { return tree_.is_signalled(); }
  // Whether others have not waited for this rank.
  bool is_late(std::uint64_t update) { return options_.tree.quorum < 1 && tree_.has_reply(update); }
  // Root only: of what feedback vector `v` got, what its reply may hold; the rest is kept for later replies.
  SparseVector limit(std::size_t v, const SparseVector& merged);
  // Root only: the reply for all ranks.
  void spread(Bundle reply);
  // The next reply, which is that to `update`, on every rank. Moves the thresholds.
  Bundle next_reply(std::uint64_t update);
  // Waits until the reply to an update is here.
  void settle(std::uint64_t update) { tree_.settle(update); }
  // To be called now and then while this rank computes.
  void poll() { tree_.poll(); }
  // Replies that have not been asked for, where a checkpoint was loaded or settle() has been called.
  std::size_t replies_waiting() const { return tree_.replies().size(); }
  // Collective, after the last reply.
  void close() { tree_.close(); }

  // The first `count` totals. Throws Error(data) where workers added fewer.
  std::span<const std::int64_t> totals(const Bundle& bundle, std::size_t count) const;

  // At the root: what the root mean square of a dense sum over `workers` would be, were they independent of one another.
  double rms_of_sum(std::size_t v, std::uint64_t workers) const;

  // Since the last call.
  ExchangeCounts take_counts();

  // Collective. The root's file gets all state, what all workers kept included. One that has begun is broken off.
  void save(TensorFile& file, const std::string& prefix);
  // The same in parts, while updates go on. On every rank between the same two updates, when the root has ended the one before:
  // what the root's file gets now, and what it gets of all workers, is the state of now.
  void begin_save(TensorFile& file, const std::string& prefix);
  // At the root: whether all of it is here.
  bool is_saved() const { return !gather_.under_way() || gather_.is_done(); }
  // Collective: waits until it is, with nothing else on the way.
  void wait_for_save();
  // At the root, then.
  void end_save(TensorFile& file, const std::string& prefix);
  // Collective: breaks off what has begun.
  void cancel_save();
  // On every rank; any number of ranks may have written it. Throws Error(data).
  void load(const TensorFile& file, const std::string& prefix);

 private:
  SparseFilter filter(std::uint64_t threshold, bool narrow) const;
  void require_sizes(const Bundle& bundle) const;
  std::size_t vectors_in(const Bundle& bundle) const;
  std::uint64_t elements_in(const Bundle& bundle) const;
  double wanted(const Bundle& bundle) const;  // bytes, of this update
  template <typename T>
  void add_fresh(std::size_t v, std::span<const T> fresh, std::span<T> kept);
  std::uint64_t threshold_of(const ThresholdControl& control, std::size_t v) const;
  Kept& kept() { return kept_[options_.error_feedback == ErrorFeedback::none ? 0 : worker_]; }
  void move_state();
  void put_error_feedback(TensorFile& file, const std::string& prefix, std::vector<std::vector<std::byte>> by_rank) const;
  void load_error_feedback(const TensorFile& file, const std::string& prefix);
  Bundle error_feedback_of(const TensorFile& file, const std::string& name) const;
  std::uint64_t users_of(const Bundle& sum, const std::string& name) const;
  void keep(std::size_t w, const Bundle& sum, std::uint64_t place);
  std::size_t statistic(std::size_t s) const { return feedback_.size() + s; }  // its place in Bundle::vectors
  void check_size(const char* what, std::uint64_t size, std::uint64_t expected) const;

  Comm& comm_;
  ExchangeOptions options_;
  BundleTree tree_;
  std::size_t first_, count_;
  std::vector<FeedbackVector> feedback_;
  std::vector<std::uint64_t> statistics_;

  std::optional<std::uint64_t> begun_at_;  // at the root: the last update that showed how large elements of a vector are

  // On every rank, equal: what workers filter by.
  std::vector<std::uint64_t> up_thresholds_;
  KeptState kept_;  // state of this rank's workers; those that keep nothing share an empty one
  // A checkpoint under way.
  std::unique_ptr<KeptSnapshot> snapshot_;  // until all of it is in gather_
  StateGather gather_;
  // The root's.
  ThresholdControl up_, down_;
  std::vector<std::vector<std::int64_t>> reply_error_feedback_;  // by feedback vector; empty before its first reply

  // The update under way.
  std::uint64_t update_ = 0;
  bool with_statistics_ = false;
  double length_ = 1;
  bool with_magnitudes_ = false;  // they are counted; sent if a vector is there that was not before
  std::size_t worker_ = 0;        // counted from first_
  Bundle current_;
  std::vector<std::int64_t> current_rms_;         // by feedback vector, in sixteenths
  std::vector<std::int64_t> current_magnitudes_;  // by feedback vector and bit width: how many elements have it
  bool current_is_new_ = false;
  std::unique_ptr<Merger> merger_ = std::make_unique<Merger>();
  std::vector<std::size_t> vector_sizes_;  // scratch
  std::size_t user_totals_ = 0;
  ExchangeCounts counts_;
};

}  // namespace bitloom::mpi
