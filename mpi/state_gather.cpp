#include "mpi/state_gather.h"

#include <algorithm>
#include <utility>

namespace bitloom::mpi {
namespace {

// A piece delays the messages of an update that are sent after it: 50 ms at 10 Mbit/s.
constexpr std::size_t state_piece_bytes = std::size_t{64} << 10U;
constexpr std::size_t hurried_bytes = std::size_t{64} << 20U;

// The last byte of a piece.
constexpr std::byte more{0};
constexpr std::byte last_one{1};

}  // namespace

StateGather::StateGather(Comm& comm) : comm_(comm) {}

void StateGather::begin() {
  under_way_ = true;
  hurry_ = given_ = sent_last_ = false;
  waiting_.clear();
  sent_ = 0;
  if (!comm_.is_root()) return;
  received_.assign(static_cast<std::size_t>(comm_.size()), {});
  complete_.assign(static_cast<std::size_t>(comm_.size()), false);
}

void StateGather::add(std::span<const std::byte> bytes, bool last) {
  std::vector<std::byte>& to = comm_.is_root() ? received_[0] : waiting_;
  to.insert(to.end(), bytes.begin(), bytes.end());
  given_ = last;
  if (comm_.is_root()) complete_[0] = last;
}

bool StateGather::is_done() const {
  if (comm_.is_root()) return std::find(complete_.begin(), complete_.end(), false) == complete_.end();
  return sent_last_ && !on_its_way_;
}

void StateGather::poll() {
  if (comm_.is_root()) {
    if (under_way_) receive_pieces();
  } else {
    send_piece();
  }
}

void StateGather::send_piece() {
  if (on_its_way_) on_its_way_ = !comm_.try_receive(0, 1, Channel::state).has_value();
  if (!under_way_ || on_its_way_ || sent_last_ || (sent_ == waiting_.size() && !given_)) return;
  const std::size_t count = std::min(waiting_.size() - sent_, hurry_ ? hurried_bytes : state_piece_bytes);
  const auto from = waiting_.begin() + static_cast<std::ptrdiff_t>(sent_);
  std::vector<std::byte> piece(from, from + static_cast<std::ptrdiff_t>(count));
  sent_ += count;
  if (sent_ == waiting_.size()) {
    waiting_.clear();
    sent_ = 0;
    sent_last_ = given_;
  }
  piece.push_back(sent_last_ ? last_one : more);
  comm_.send(0, std::move(piece), Channel::state);
  on_its_way_ = true;
}

void StateGather::receive_pieces() {
  for (int rank = 1; rank < comm_.size(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (complete_[r]) continue;
    const auto piece = comm_.try_receive(rank, hurried_bytes + 1, Channel::state);
    if (!piece || piece->empty()) continue;
    comm_.require_length("checkpoint", rank, received_[r].size() + piece->size());
    received_[r].insert(received_[r].end(), piece->begin(), piece->end() - 1);
    complete_[r] = piece->back() == last_one;
    comm_.send(rank, {more}, Channel::state);
  }
}

void StateGather::drop() {
  hurry_ = true;
  if (comm_.is_root()) {
    complete_[0] = true;
  } else if (!sent_last_) {
    waiting_.clear();
    sent_ = 0;
    given_ = true;
  }
}

std::vector<std::vector<std::byte>> StateGather::end() {
  under_way_ = false;
  waiting_.clear();
  sent_ = 0;
  return std::exchange(received_, {});
}

}  // namespace bitloom::mpi
