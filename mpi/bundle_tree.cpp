#include "mpi/bundle_tree.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/field.h"
#include "core/stopwatch.h"

namespace bitloom::mpi {
namespace {

// Updates of messages that tell that a rank has no more, that one asks to stop, and that the root is at work.
constexpr std::uint64_t end_mark = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t stop_mark = end_mark - 1;
constexpr std::uint64_t alive_mark = end_mark - 2;

std::vector<std::byte> message_of_mark(std::uint64_t mark) {
  Bundle bundle;
  bundle.update = mark;
  return encode(bundle);
}

}  // namespace

void check(const TreeOptions& options) {
  if (options.fan_in < 1) fail_field(ErrorKind::usage, "fan_in", "{}; expected at least 1", options.fan_in);
  if (!(options.quorum > 0) || options.quorum > 1) {
    fail_field(ErrorKind::usage, "quorum", "{}; expected a share of the workers, above 0 to 1", options.quorum);
  }
  if (!(options.deadline_seconds >= 0)) {
    fail_field(ErrorKind::usage, "deadline", "{} seconds; expected 0 or more", options.deadline_seconds);
  }
}

TreeCounts& TreeCounts::operator+=(const TreeCounts& other) {
  sent_up += other.sent_up;
  sent_down += other.sent_down;
  missed += other.missed;
  merge += other.merge;
  wait += other.wait;
  return *this;
}

BundleTree::BundleTree(Comm& comm, const TreeOptions& options, std::size_t workers, std::size_t feedback)
    : comm_(comm), options_(options), tree_(comm.rank(), comm.size(), options.fan_in), feedback_(feedback) {
  check(options);
  std::vector<std::int64_t> carried(static_cast<std::size_t>(comm.size()));
  carried[static_cast<std::size_t>(comm.rank())] = static_cast<std::int64_t>(workers);
  comm.sum(std::span(carried));
  for (const std::int64_t count : carried) all_ += static_cast<std::size_t>(count);
  const std::vector<int> ranks = tree_.subtree();
  for (const int rank : ranks) below_ += static_cast<std::size_t>(carried[static_cast<std::size_t>(rank)]);
}

void BundleTree::send_up(Bundle bundle) {
  std::vector<std::byte> bytes = to_message(std::move(bundle));
  counts_.sent_up += bytes.size();
  comm_.send(tree_.parent(), std::move(bytes));
}

// Messages that arrive meanwhile are decoded, which is no waiting.
template <typename F>
void BundleTree::wait(F&& f) {
  const Clock::time_point start = Clock::now();
  const double before = counts_.merge;
  f();
  counts_.wait += std::max(0.0, seconds_since(start) - (counts_.merge - before));
}

void BundleTree::wait_until(const std::function<bool()>& done, const char* what) {
  wait([&] {
    comm_.wait_until(
        [&] {
          look();
          return done();
        },
        what);
  });
}

void BundleTree::accumulate(int child, const std::vector<std::byte>& message) {
  const Stopwatch stopwatch(counts_.merge);
  Bundle bundle = from_message(message);
  if (bundle.update == end_mark) {
    ++ended_;
    return;
  }
  if (bundle.update == stop_mark) return signal();
  if (bundle.update < next_ && options_.quorum == 1 && !options_.late_counts) {
    fail(ErrorKind::data, "exchange: rank {} sent update {} after update {}", child, bundle.update, next_ - 1);
  }
  if (bundle.workers > all_) {
    fail(ErrorKind::data, "exchange: rank {} sends {} workers; expected at most {}", child, bundle.workers, all_);
  }
  put(std::move(bundle));
}

// Only the root knows which updates are closed for all.
void BundleTree::take_late(Bundle bundle) {
  if (!is_root()) {
    send_up(std::move(bundle));
    return;
  }
  if (options_.late == Late::drop) return;
  // Totals belong to updates that are over.
  Bundle statistics;
  statistics.vectors.resize(bundle.vectors.size());
  for (std::size_t v = feedback_; v < bundle.vectors.size(); ++v) statistics.vectors[v] = std::exchange(bundle.vectors[v], {});
  if (has_statistics(statistics)) late_statistics_.push_back(std::move(statistics));
  bundle.update = next_;
  bundle.workers = bundle.worker_bytes = 0;
  if (!options_.late_counts) bundle.totals.clear();
  parts_[next_].bundles.push_back(std::move(bundle));
}

bool BundleTree::has_statistics(const Bundle& bundle) const {
  return std::any_of(bundle.vectors.begin() + static_cast<std::ptrdiff_t>(std::min(feedback_, bundle.vectors.size())),
                     bundle.vectors.end(), [](const SparseVector& vector) { return vector.size != 0; });
}

// Into an update that has some as well: how many images they are of is one of them, so that means stay means.
void BundleTree::fold_late_statistics(std::uint64_t update, std::vector<Bundle>& bundles) {
  if (std::none_of(bundles.begin(), bundles.end(), [&](const Bundle& bundle) { return has_statistics(bundle); })) return;
  for (Bundle& late : late_statistics_) {
    late.update = update;
    bundles.push_back(std::move(late));
  }
  late_statistics_.clear();
}

void BundleTree::take_reply(std::vector<std::byte> message) {
  const Stopwatch stopwatch(counts_.merge);
  for (const int child : tree_.children()) {
    counts_.sent_down += message.size();
    comm_.send(child, message);
  }
  Bundle reply = decode_bundle(message);
  if (reply.update == stop_mark) {
    is_signalled_ = true;
  } else if (reply.update == end_mark) {
    is_over_ = true;
  } else if (reply.update == alive_mark) {
    ++signs_;
  } else {
    replies_.push_back(std::move(reply));
  }
}

void BundleTree::poll() {
  wait([&] { look(); });
}

void BundleTree::look() {
  if (beside_) beside_();
  for (const int child : tree_.children()) {
    while (const auto message = comm_.try_receive(child)) accumulate(child, *message);
  }
  if (is_root()) return;
  while (auto message = comm_.try_receive(tree_.parent())) take_reply(*std::move(message));
}

double BundleTree::share_of_deadline(double seconds) const {
  return seconds * tree_.height() / std::max(tree_.whole_height(), 1);
}

void BundleTree::put(Bundle own) {
  if (own.update < next_) return take_late(std::move(own));
  Parts& parts = parts_[own.update];
  parts.workers += own.workers;
  parts.bundles.push_back(std::move(own));
}

std::size_t BundleTree::present(std::uint64_t update) const {
  const auto found = parts_.find(update);
  return found == parts_.end() ? 0 : found->second.workers;
}

std::optional<Bundle> BundleTree::gather(std::uint64_t update, std::optional<Bundle> own) {
  const bool waits = own.has_value();
  if (options_.quorum < 1 && has_reply(update)) ++counts_.missed;
  Parts& parts = parts_[update];
  if (own) {
    own->update = update;
    put(*std::move(own));
  }
  // Rounding must not make it one more.
  const auto enough = static_cast<std::size_t>(std::ceil(options_.quorum * static_cast<double>(all_) - 1e-9));
  const Clock::time_point start = Clock::now();
  const auto complete = [&] {
    if (parts.workers >= below_) return true;
    if (options_.quorum < 1 && !is_root() && holds_reply(update)) return true;
    return options_.quorum < 1 && seconds_since(start) >= share_of_deadline(options_.deadline_seconds) &&
           (!is_root() || parts.workers >= enough);
  };
  if (waits) wait_until(complete, "exchange of gradients");
  const Stopwatch stopwatch(counts_.merge);
  next_ = update + 1;
  fold_late_statistics(update, parts.bundles);
  Bundle merged = merge(std::move(parts.bundles));
  merged.update = update;
  parts_.erase(update);
  if (is_root()) return merged;
  if (merged.workers > 0) send_up(std::move(merged));
  return std::nullopt;
}

void BundleTree::spread(std::vector<std::byte> reply) { take_reply(std::move(reply)); }

bool BundleTree::has_reply(std::uint64_t update) {
  // A first look only tells MPI to move what came while nobody looked.
  for (int look = 0; look < 2; ++look) poll();
  return holds_reply(update);
}

void BundleTree::settle(std::uint64_t update) {
  const double waited = counts_.wait;
  const auto here = [&] { return is_root() || holds_reply(update); };
  wait_until(here, "exchange of weight changes");
  // With a quorum nobody need receive what this rank sent up too late.
  if (options_.quorum == 1) finish_sends();
  counts_.wait = waited;  // this was between updates
}

// Messages of others may have to be received before they receive.
void BundleTree::finish_sends() {
  const auto gone = [&] { return comm_.sends_finished(); };
  wait_until(gone, "exchange between ranks");
}

Bundle BundleTree::next_reply() {
  if (!is_root()) {
    const auto arrived = [&] { return !replies_.empty(); };
    wait_until(arrived, "exchange of weight changes");
  }
  if (replies_.empty()) fail(ErrorKind::internal, "exchange: the root has sent no reply");
  Bundle reply = std::move(replies_.front());
  replies_.pop_front();
  return reply;
}

void BundleTree::close() {
  if (options_.quorum < 1) {
    const auto ended = [&] { return ended_ == tree_.children().size(); };
    wait_until(ended, "end of a stage");
    if (!is_root()) comm_.send(tree_.parent(), message_of_mark(end_mark));
  }
  finish_sends();
  late_statistics_.clear();
}

// The root tells all others, so that whoever asks hears it as they do. A mark that a rank has heard may be one of the stage
// before, which the root of this one does not know.
void BundleTree::signal() {
  if (!std::exchange(asked_, true)) tell(stop_mark);
}

void BundleTree::tell_alive() { tell(alive_mark); }

// The root all others, any other rank the one above.
void BundleTree::tell(std::uint64_t mark) {
  std::vector<std::byte> message = message_of_mark(mark);
  if (is_root()) return take_reply(std::move(message));
  comm_.send(tree_.parent(), std::move(message));
}

// First up, then down: after a mark nothing comes from the rank that sent it.
bool BundleTree::has_ended() {
  poll();
  if (ended_ < tree_.children().size()) return false;
  if (!std::exchange(told_end_, true)) tell(end_mark);
  return is_over_ && comm_.sends_finished();
}

TreeCounts BundleTree::take_counts() { return std::exchange(counts_, {}); }

}  // namespace bitloom::mpi
