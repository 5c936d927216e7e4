#include "mpi/operation.h"

#include <optional>

#include "core/clock.h"

namespace bitloom::mpi {

void Requests::receive(std::span<std::byte> bytes, int from, int tag) {
  const int count = count_of(bytes.size());
  expected_.push_back({count, from});
  MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
  state_->call(name_, [&] { return MPI_Irecv(bytes.data(), count, MPI_BYTE, from, tag, state_->handle, &request); });
}

void Requests::send(std::span<const std::byte> bytes, int to, int tag) {
  const int count = count_of(bytes.size());
  MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
  state_->call(name_, [&] { return MPI_Isend(bytes.data(), count, MPI_BYTE, to, tag, state_->handle, &request); });
}

bool Requests::test() {
  if (requests_.empty()) return true;
  statuses_.resize(requests_.size());
  int done = 0;
  std::optional<std::size_t> wrong;  // place of a message of another length, which is `length`
  int length = 0;
  state_->call(name_, [&] {
    const int code = MPI_Testall(count_of(requests_.size()), requests_.data(), &done, statuses_.data());
    if (code == MPI_ERR_IN_STATUS) {
      for (const MPI_Status& status : statuses_) {
        if (status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING) return status.MPI_ERROR;
      }
    }
    if (code != MPI_SUCCESS || done == 0) return code;
    for (std::size_t i = 0; i < expected_.size() && !wrong; ++i) {
      if (const int result = MPI_Get_count(&statuses_[i], MPI_BYTE, &length); result != MPI_SUCCESS) return result;
      if (length != expected_[i].bytes) wrong = i;
    }
    return code;
  });
  if (done == 0) return false;
  if (wrong) {
    fail(ErrorKind::internal, "{}: {} got {} bytes from {}, expected {}", name_, state_->self(), length,
         state_->named(expected_[*wrong].from), expected_[*wrong].bytes);
  }
  requests_.clear();
  expected_.clear();
  return true;
}

bool Operation::poll() {
  if (is_over()) return true;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || is_over()) return is_over();
  bool over = true;
  try {
    over = advance();
  } catch (const std::exception& error) {
    // Requests may be left, and their buffers will not be.
    error_ = std::current_exception();
    state_.process->break_off(error.what());
  } catch (...) {
    error_ = std::current_exception();
    state_.process->break_off(name_);
  }
  if (over) over_.store(true, std::memory_order_release);
  return over;
}

void Operation::wait() {
  try {
    state_.wait_until([this] { return poll(); }, name_, bytes_);
  } catch (...) {
    // The thread may be at it, but does not begin again.
    const std::lock_guard lock(mutex_);
    over_ = true;
    throw;
  }
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void Operation::leave(double seconds) {
  const Clock::time_point start = Clock::now();
  const auto ends = [&] {
    if (!poll() && seconds_since(start) > seconds) {
      state_.process->break_off(fmt::format("{} of {} bytes was left while it was under way", name_, bytes_));
    }
    return is_over() || state_.process->broken;
  };
  state_.wait_until(ends, name_, bytes_);
  const std::lock_guard lock(mutex_);
  over_ = true;
}

}  // namespace bitloom::mpi
