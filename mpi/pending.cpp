#include "mpi/pending.h"

#include <exception>
#include <utility>

#include "mpi/operation.h"

namespace bitloom::mpi {
namespace {

// One message.
class Transfer final : public Operation {
 public:
  Transfer(Comm::State& state, const char* name, std::size_t bytes)
      : Operation(state, Collective::message, name, bytes), requests(state, name) {}
  Requests requests;

 private:
  bool advance() override { return requests.test(); }
};

}  // namespace

Pending::Pending() noexcept = default;
Pending::Pending(std::shared_ptr<Operation> operation) noexcept : operation_(std::move(operation)) {}
Pending::Pending(Pending&& other) noexcept = default;

Pending& Pending::operator=(Pending&& other) noexcept {
  if (this == &other) return *this;
  finish();
  operation_ = std::move(other.operation_);
  return *this;
}

Pending::~Pending() { finish(); }

void Pending::finish() noexcept {
  if (operation_ == nullptr) return;
  try {
    if (std::uncaught_exceptions() == 0) return wait();
    constexpr double patience_seconds = 1;
    std::exchange(operation_, nullptr)->leave(patience_seconds);
  } catch (const std::exception&) {
    // Whoever uses a communicator next is told that it is broken.
  }
}

bool Pending::done() {
  if (operation_ == nullptr) return true;
  Process& process = *operation_->state().process;
  if (process.moves_by_hand) process.move_operations();
  return operation_->is_over();
}

void Pending::wait() {
  if (operation_ == nullptr) return;
  const std::shared_ptr<Operation> operation = std::exchange(operation_, nullptr);
  const Meter meter = operation->state().meter(operation->kind());
  operation->wait();
}

Pending start_send(Comm& comm, int to, std::span<const std::byte> bytes) {
  Comm::State& state = comm.state();
  const Meter meter = state.meter(Collective::message, bytes.size());
  state.require_usable("send");
  state.require_peer("send", to);
  auto transfer = std::make_unique<Transfer>(state, "send", bytes.size());
  transfer->requests.send(bytes, to, started_tag);
  return start(std::move(transfer));
}

Pending start_receive(Comm& comm, int from, std::span<std::byte> bytes) {
  Comm::State& state = comm.state();
  const Meter meter = state.meter(Collective::message);
  state.require_usable("receive");
  state.require_peer("receive", from);
  auto transfer = std::make_unique<Transfer>(state, "receive", bytes.size());
  transfer->requests.receive(bytes, from, started_tag);
  return start(std::move(transfer));
}

}  // namespace bitloom::mpi
