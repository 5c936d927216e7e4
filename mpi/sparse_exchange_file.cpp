// The state of an exchange in checkpoints.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "mpi/sparse_exchange.h"

namespace bitloom::mpi {
namespace {

// Bytes of copies that a checkpoint under way may make of what workers keep, before they wait for it.
constexpr std::size_t most_copies = std::size_t{256} << 20U;

// Name of the tensor with the error feedback of worker `worker`.
std::string error_feedback_name(const std::string& prefix, std::uint64_t worker) {
  return fmt::format("{}.residual.{}", prefix, worker);
}

}  // namespace

// Moves what a checkpoint under way has of this rank, and what others send of it.
void SparseExchange::move_state() {
  if (snapshot_ != nullptr) {
    bool last = false;
    const std::vector<std::byte> ready = snapshot_->take(last);
    if (last) snapshot_.reset();
    if (last || !ready.empty()) gather_.add(ready, last);
  }
  gather_.poll();
  if (!comm_.is_root() && gather_.under_way() && gather_.is_done()) gather_.end();
}

void SparseExchange::wait_for_save() {
  if (!gather_.under_way()) return;
  gather_.hurry();
  comm_.wait_until(
      [&] {
        move_state();
        return is_saved();
      },
      "gathering of a checkpoint");
}

void SparseExchange::cancel_save() {
  if (!gather_.under_way()) return;
  snapshot_.reset();
  gather_.drop();
  wait_for_save();
  gather_.end();
}

void SparseExchange::save(TensorFile& file, const std::string& prefix) {
  cancel_save();
  begin_save(file, prefix);
  wait_for_save();
  if (comm_.is_root()) end_save(file, prefix);
}

void SparseExchange::end_save(TensorFile& file, const std::string& prefix) {
  if (gather_.under_way()) put_error_feedback(file, prefix, gather_.end());
}

// Puts the workers' error feedback, as their ranks sent it, into a file; that of one rank at a time is in memory twice.
void SparseExchange::put_error_feedback(TensorFile& file, const std::string& prefix,
                                        std::vector<std::vector<std::byte>> by_rank) const {
  const auto put = [&](std::size_t worker, std::span<const std::byte> message) {
    file.put_raw(error_feedback_name(prefix, worker), message);
  };
  Bundle total;
  std::size_t worker = 0;  // ranks carry them in their order
  for (std::vector<std::byte>& rank : by_rank) {
    const std::vector<std::byte> bytes = std::exchange(rank, {});
    for (std::span<const std::byte> rest = bytes; !rest.empty(); ++worker) {
      const std::span<const std::byte> message = next_message(rest);
      if (options_.error_feedback != ErrorFeedback::sum) {
        put(worker, message);
      } else {
        Bundle bundle = decode_bundle(message);
        total = worker == 0 ? std::move(bundle) : merge({std::move(total), std::move(bundle)});
      }
    }
  }
  if (options_.error_feedback == ErrorFeedback::sum) put(0, encode(total));
}

void SparseExchange::begin_save(TensorFile& file, const std::string& prefix) {
  if (comm_.is_root()) {
    // The root has all replies that any rank has not asked for.
    std::vector<std::byte> replies;
    for (const Bundle& reply : tree_.replies()) append_message(replies, encode(reply));
    file.put_raw(prefix + ".answers", replies);
  }
  if (options_.exact()) return;  // nothing is kept
  if (options_.keeps()) {
    gather_.begin();
    snapshot_ = std::make_unique<KeptSnapshot>(kept_, options_.error_feedback == ErrorFeedback::sum, most_copies);
  }
  if (!comm_.is_root()) return;
  std::vector<double> state;
  const auto append = [&](const auto& numbers) { state.insert(state.end(), numbers.begin(), numbers.end()); };
  append(up_.state());
  append(down_.state());
  append(up_.all_rms());
  append(down_.all_rms());
  file.put(prefix + ".thresholds", {up_thresholds_.size()}, up_thresholds_);
  file.put(prefix + ".state", {state.size()}, state);
  if (begun_at_) file.put(prefix + ".begun_at", {1}, std::vector<std::uint64_t>{*begun_at_});
  for (std::size_t v = 0; v < feedback_.size(); ++v) {
    file.put(fmt::format("{}.answer_residual.{}", prefix, v), {reply_error_feedback_[v].size()}, reply_error_feedback_[v]);
  }
}

void SparseExchange::load_error_feedback(const TensorFile& file, const std::string& prefix) {
  if (options_.error_feedback == ErrorFeedback::none) return;
  const bool sum = options_.error_feedback == ErrorFeedback::sum;
  Bundle bundle;
  std::uint64_t users = 1;  // workers that have a part of it
  if (sum) {
    bundle = error_feedback_of(file, error_feedback_name(prefix, 0));
    users = users_of(bundle, error_feedback_name(prefix, 0));
  }
  for (std::size_t w = 0; w < kept_.workers(); ++w) {
    for (ErrorVector& error : kept_[w].feedback) {
      std::fill(error.narrow.begin(), error.narrow.end(), 0);
      std::fill(error.wide.begin(), error.wide.end(), 0);
    }
    for (std::vector<std::int64_t>& sums : kept_[w].statistics) std::fill(sums.begin(), sums.end(), 0);
    if (!sum) bundle = error_feedback_of(file, error_feedback_name(prefix, first_ + w));
    const std::uint64_t place = sum ? first_ + w : 0;
    if (place < users) keep(w, bundle, place);
  }
}

// Error feedback of one worker, or the sum of all.
Bundle SparseExchange::error_feedback_of(const TensorFile& file, const std::string& name) const {
  const auto numbers = file.get(name).as<std::uint8_t>();
  Bundle bundle = decode_bundle(std::as_bytes(numbers));
  const std::size_t n = feedback_.size();
  const std::size_t all = n + statistics_.size();
  if (bundle.vectors.size() != all) fail(ErrorKind::data, "{}: {} vectors; expected {}", name, bundle.vectors.size(), all);
  for (std::size_t v = 0; v < all; ++v) {
    const std::uint64_t size = v < n ? feedback_[v].size : statistics_[v - n];
    if (bundle.vectors[v].size != size) {
      fail(ErrorKind::data, "{}: a vector of {} elements; expected {}", name, bundle.vectors[v].size, size);
    }
  }
  return bundle;
}

// How many workers it takes to keep a sum: usually the first alone.
std::uint64_t SparseExchange::users_of(const Bundle& sum, const std::string& name) const {
  std::uint64_t users = 1;
  for (std::size_t v = 0; v < feedback_.size(); ++v) {
    const auto limit =
        static_cast<std::uint64_t>(feedback_[v].narrow ? largest_kept<std::int32_t> : largest_kept<std::int64_t>);
    for (const std::int64_t value : sum.vectors[v].value) users = std::max(users, (magnitude(value) - 1) / limit + 1);
  }
  if (users > tree_.all_workers()) {
    fail(ErrorKind::data, "{}: values that {} workers kept; expected at most {}", name, users, tree_.all_workers());
  }
  return users;
}

// Gives worker `w` of this rank the part of a sum that is for the worker of number `place`.
void SparseExchange::keep(std::size_t w, const Bundle& sum, std::uint64_t place) {
  for (std::size_t v = 0; v < sum.vectors.size(); ++v) {
    const SparseVector& vector = sum.vectors[v];
    if (v >= feedback_.size()) {
      if (place == 0) add_to(kept_[w].statistics[v - feedback_.size()], vector);
      continue;
    }
    ErrorVector& kept = kept_[w].feedback[v];
    for (std::size_t i = 0; i < vector.index.size(); ++i) {
      if (feedback_[v].narrow) {
        kept.narrow[vector.index[i]] = share_of_kept<std::int32_t>(vector.value[i], place);
      } else {
        kept.wide[vector.index[i]] = share_of_kept<std::int64_t>(vector.value[i], place);
      }
    }
  }
}

void SparseExchange::load(const TensorFile& file, const std::string& prefix) {
  const auto messages = file.get(prefix + ".answers").as<std::uint8_t>();
  std::deque<Bundle> replies;
  for (std::span<const std::byte> rest = std::as_bytes(messages); !rest.empty();)
    replies.push_back(decode_bundle(next_message(rest)));
  tree_.set_replies(std::move(replies));
  if (options_.exact()) return;
  const std::size_t n = feedback_.size();
  load_error_feedback(file, prefix);
  const auto thresholds = file.get(prefix + ".thresholds", DType::u64, {n}).as<std::uint64_t>();
  up_thresholds_.assign(thresholds.begin(), thresholds.end());
  constexpr std::size_t each = ThresholdControl::state_size;
  const auto state = file.get(prefix + ".state", DType::f64, {2 * (each + n)}).as<double>();
  up_.restore(state.first(each), state.subspan(2 * each, n));
  down_.restore(state.subspan(each, each), state.last(n));
  begun_at_.reset();
  if (const std::string name = prefix + ".begun_at"; file.contains(name)) {
    begun_at_ = file.get(name, DType::u64, {1}).as<std::uint64_t>()[0];
  }
  for (std::size_t v = 0; v < n; ++v) {
    const auto kept = file.get(fmt::format("{}.answer_residual.{}", prefix, v)).as<std::int64_t>();
    if (!kept.empty() && kept.size() != feedback_[v].size) {
      fail(ErrorKind::data, "{}.answer_residual.{}: {} elements; expected {}", prefix, v, kept.size(), feedback_[v].size);
    }
    reply_error_feedback_[v].assign(kept.begin(), kept.end());
  }
}

}  // namespace bitloom::mpi
