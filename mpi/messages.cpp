// Messages from rank to rank.
#include <algorithm>
#include <climits>

#include "mpi/comm_state.h"

namespace bitloom::mpi {
namespace {

constexpr int tag_of(Channel channel) { return channel_tag + static_cast<int>(channel); }

}  // namespace

bool Comm::State::sent(Channel channel, const char* operation) {
  const auto is_over = [&](Message& message) { return test({&message.request, 1}, operation); };
  outgoing.remove_if(is_over);
  refused.remove_if(is_over);
  return std::none_of(outgoing.begin(), outgoing.end(), [&](const Message& message) { return message.channel == channel; });
}

std::optional<std::vector<std::byte>> Comm::State::try_receive(int from, std::uint64_t most, Channel channel,
                                                               const char* operation) {
  sent(channel, operation);
  const auto [place, fresh] = incoming.try_emplace({channel, from});
  Message& message = place->second;
  if (fresh) {
    MPI_Message found = MPI_MESSAGE_NULL;
    MPI_Status status;
    int there = 0;
    call(operation, [&] { return MPI_Improbe(from, tag_of(channel), handle, &there, &found, &status); });
    if (there == 0) {
      incoming.erase(place);
      return std::nullopt;
    }
    int length = 0;
    call(operation, [&] { return MPI_Get_count(&status, MPI_BYTE, &length); });
    most = std::min(most, most_bytes());
    // MPI says MPI_UNDEFINED, a negative number, if an int cannot hold it.
    if (length < 0 || static_cast<std::uint64_t>(length) > most) {
      incoming.erase(place);
      if (length >= 0 && static_cast<std::uint64_t>(length) <= most_bytes()) drain(length, &found, operation);
      fail(ErrorKind::data, "{}: {} sends a message of {} bytes; expected at most {}", operation, named(from),
           length < 0 ? fmt::format("more than {}", INT_MAX) : std::to_string(length), most);
    }
    message.bytes.resize(static_cast<std::size_t>(length));
    call(operation, [&] { return MPI_Imrecv(message.bytes.data(), length, MPI_BYTE, &found, &message.request); });
  }
  if (!test({&message.request, 1}, operation)) return std::nullopt;
  std::vector<std::byte> bytes = std::move(message.bytes);
  incoming.erase(place);
  return bytes;
}

// A long message whose receiver never takes it would keep its sender waiting. (To receive a part of one is an error, after
// which Open MPI 4.1 writes beyond the memory that it was given, on TCP and between processes.)
void Comm::State::drain(int length, MPI_Message* found, const char* operation) {
  Message& message = refused.emplace_back();
  message.bytes.resize(static_cast<std::size_t>(length));
  call(operation, [&] { return MPI_Imrecv(message.bytes.data(), length, MPI_BYTE, found, &message.request); });
}

void Comm::send(int to, std::vector<std::byte> bytes, Channel channel) {
  State& state = *state_;
  const Meter meter = state.meter(Collective::message, bytes.size());
  state.require_usable("send");
  state.require_peer("send", to);
  const int count = count_of(bytes.size());
  Message& message = state.outgoing.emplace_back(Message{std::move(bytes), channel});
  state.call("send", [&] {
    return MPI_Isend(message.bytes.data(), count, MPI_BYTE, to, tag_of(channel), state.handle, &message.request);
  });
  state.sent(channel, "send");
}

std::vector<std::byte> Comm::receive(int from, std::uint64_t most, Channel channel) {
  const Meter meter(state_->traffic[static_cast<std::size_t>(Collective::message)]);
  state_->require_usable("receive");
  state_->require_peer("receive", from);
  std::optional<std::vector<std::byte>> bytes;
  const auto arrived = [&] { return (bytes = state_->try_receive(from, most, channel, "receive")).has_value(); };
  state_->wait_until(arrived, "receive", 0);
  return *std::move(bytes);
}

std::optional<std::vector<std::byte>> Comm::try_receive(int from, std::uint64_t most, Channel channel) {
  const Meter meter(state_->traffic[static_cast<std::size_t>(Collective::message)]);
  state_->require_usable("receive");
  state_->require_peer("receive", from);
  return state_->try_receive(from, most, channel, "receive");
}

bool Comm::sends_finished(Channel channel) {
  const Meter meter(state_->traffic[static_cast<std::size_t>(Collective::message)]);
  state_->require_usable("send");
  return state_->sent(channel, "send");
}

}  // namespace bitloom::mpi
