// The state of an exchange in checkpoints.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "mpi/bit_stream.h"
#include "mpi/sparse_exchange.h"

namespace bitloom::mpi {
namespace {

// What worker `worker` kept.
std::string residual_name(const std::string& prefix, std::uint64_t worker) {
  return fmt::format("{}.residual.{}", prefix, worker);
}

std::vector<std::int64_t> widened(std::span<const std::int32_t> values) { return {values.begin(), values.end()}; }

// Messages with their lengths in front, one after the other.
void append(std::vector<std::byte>& all, std::span<const std::byte> message) {
  put_varint(all, message.size());
  all.insert(all.end(), message.begin(), message.end());
}

// Takes the first of such messages off.
std::span<const std::byte> next(std::span<const std::byte>& rest) {
  const std::uint64_t length = get_varint(rest, "length");
  if (length > rest.size()) fail(ErrorKind::data, "exchange: {} bytes are left of a message of {}", rest.size(), length);
  const std::span<const std::byte> message = rest.first(length);
  rest = rest.subspan(length);
  return message;
}

std::span<const std::uint8_t> as_numbers(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

}  // namespace

std::vector<SparseVector> SparseExchange::kept_by(std::size_t worker) const {
  std::vector<SparseVector> vectors;
  for (std::size_t v = 0; v < feedback_.size(); ++v) {
    const Residual& kept = residuals_[worker][v];
    vectors.push_back(feedback_[v].narrow ? to_sparse(widened(kept.narrow)) : to_sparse(kept.wide));
  }
  for (const std::vector<std::int64_t>& kept : kept_statistics_[worker]) vectors.push_back(to_sparse(kept));
  return vectors;
}

// Collective: what workers keep, in the root's file.
void SparseExchange::save_residuals(TensorFile& file, const std::string& prefix) {
  if (options_.residuals == Residuals::none) return;
  const bool sum = options_.residuals == Residuals::sum;
  std::vector<std::byte> mine;
  Bundle total;
  for (std::size_t w = 0; w < residuals_.size(); ++w) {
    Bundle bundle;
    bundle.vectors = kept_by(w);
    if (sum) {
      total = w == 0 ? std::move(bundle) : merge({std::move(total), std::move(bundle)});
    } else {
      append(mine, encode(bundle));
    }
  }
  if (sum) append(mine, encode(total));
  const std::vector<std::vector<std::byte>> all = comm_.gather_bytes(mine);
  if (!comm_.is_root()) return;
  const auto put = [&](std::size_t worker, std::span<const std::byte> message) {
    file.put(residual_name(prefix, worker), {message.size()}, as_numbers(message));
  };
  std::size_t worker = 0;  // ranks carry them in their order
  for (const std::vector<std::byte>& rank : all) {
    for (std::span<const std::byte> rest = rank; !rest.empty(); ++worker) {
      const std::span<const std::byte> message = next(rest);
      if (!sum) {
        put(worker, message);
      } else {
        Bundle bundle = decode_bundle(message);
        total = worker == 0 ? std::move(bundle) : merge({std::move(total), std::move(bundle)});
      }
    }
  }
  if (sum) put(0, encode(total));
}

void SparseExchange::save(TensorFile& file, const std::string& prefix) {
  if (comm_.is_root()) {
    // The root has all answers that any rank has not asked for.
    std::vector<std::byte> answers;
    for (const Bundle& answer : tree_.answers()) append(answers, encode(answer));
    file.put(prefix + ".answers", {answers.size()}, as_numbers(answers));
  }
  if (options_.exact()) return;  // nothing is kept
  save_residuals(file, prefix);
  if (!comm_.is_root()) return;
  std::vector<double> state;
  for (const Direction* direction : {&up_, &down_}) {
    state.insert(state.end(),
                 {direction->multiple, direction->owed, direction->saved, static_cast<double>(direction->vectors_steered)});
  }
  state.insert(state.end(), up_.rms.begin(), up_.rms.end());
  state.insert(state.end(), down_.rms.begin(), down_.rms.end());
  file.put(prefix + ".thresholds", {up_thresholds_.size()}, up_thresholds_);
  file.put(prefix + ".state", {state.size()}, state);
  for (std::size_t v = 0; v < feedback_.size(); ++v) {
    file.put(fmt::format("{}.answer_residual.{}", prefix, v), {answer_residuals_[v].size()}, answer_residuals_[v]);
  }
}

void SparseExchange::load_residuals(const TensorFile& file, const std::string& prefix) {
  if (options_.residuals == Residuals::none) return;
  const bool sum = options_.residuals == Residuals::sum;
  Bundle bundle;
  std::uint64_t users = 1;  // workers that have a part of it
  if (sum) {
    bundle = residual_of(file, residual_name(prefix, 0));
    users = users_of(bundle, residual_name(prefix, 0));
  }
  for (std::size_t w = 0; w < residuals_.size(); ++w) {
    for (Residual& kept : residuals_[w]) {
      std::fill(kept.narrow.begin(), kept.narrow.end(), 0);
      std::fill(kept.wide.begin(), kept.wide.end(), 0);
    }
    for (std::vector<std::int64_t>& kept : kept_statistics_[w]) std::fill(kept.begin(), kept.end(), 0);
    if (!sum) bundle = residual_of(file, residual_name(prefix, first_ + w));
    const std::uint64_t place = sum ? first_ + w : 0;
    if (place < users) keep(w, bundle, place);
  }
}

// What one worker kept, or all of them.
Bundle SparseExchange::residual_of(const TensorFile& file, const std::string& name) const {
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
      if (place == 0) add_to(kept_statistics_[w][v - feedback_.size()], vector);
      continue;
    }
    Residual& kept = residuals_[w][v];
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
  std::deque<Bundle> answers;
  for (std::span<const std::byte> rest = std::as_bytes(messages); !rest.empty();) answers.push_back(decode_bundle(next(rest)));
  tree_.set_answers(std::move(answers));
  if (options_.exact()) return;
  const std::size_t n = feedback_.size();
  load_residuals(file, prefix);
  const auto thresholds = file.get(prefix + ".thresholds", DType::u64, {n}).as<std::uint64_t>();
  up_thresholds_.assign(thresholds.begin(), thresholds.end());
  const auto state = file.get(prefix + ".state", DType::f64, {2 * (4 + n)}).as<double>();
  for (Direction* direction : {&up_, &down_}) {
    const auto numbers = state.subspan(direction == &up_ ? 0 : 4, 4);
    direction->multiple = numbers[0];
    direction->owed = numbers[1];
    direction->saved = numbers[2];
    direction->vectors_steered = static_cast<std::size_t>(numbers[3]);
    const auto rms = state.subspan(direction == &up_ ? 8 : 8 + n, n);
    direction->rms.assign(rms.begin(), rms.end());
  }
  for (std::size_t v = 0; v < n; ++v) {
    const auto kept = file.get(fmt::format("{}.answer_residual.{}", prefix, v)).as<std::int64_t>();
    if (!kept.empty() && kept.size() != feedback_[v].size) {
      fail(ErrorKind::data, "{}.answer_residual.{}: {} elements; expected {}", prefix, v, kept.size(), feedback_[v].size);
    }
    answer_residuals_[v].assign(kept.begin(), kept.end());
  }
}

}  // namespace bitloom::mpi
