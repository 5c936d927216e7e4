// Sums in two halves.
#include "mpi/comm_state.h"

namespace bitloom::mpi {

struct PendingSum::State {
  Comm::State* comm;
  std::size_t bytes;
  std::vector<MPI_Request> requests{};  // empty when there is nothing to wait for
};

PendingSum::PendingSum(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
PendingSum::PendingSum(PendingSum&& other) noexcept = default;

PendingSum::~PendingSum() {
  if (state_ == nullptr || state_->comm->broken) return;
  try {
    end();
  } catch (const std::exception&) {
    // The communicator is marked broken now; the next collective reports it.
  }
}

bool PendingSum::poll() {
  if (state_ == nullptr || state_->requests.empty()) return true;
  Comm::State& comm = *state_->comm;
  comm.require_usable("sum");
  const Meter meter(comm.traffic[static_cast<std::size_t>(Collective::sum)]);
  if (!comm.test(state_->requests, "sum")) return false;
  state_->requests.clear();
  return true;
}

void PendingSum::end() {
  if (state_ == nullptr || state_->requests.empty()) return;
  Comm::State& comm = *state_->comm;
  comm.require_usable("sum");
  const Meter meter(comm.traffic[static_cast<std::size_t>(Collective::sum)]);
  comm.wait(state_->requests, "sum", state_->bytes);
  state_->requests.clear();
}

template <typename T>
PendingSum Comm::begin(std::span<T> values) {
  const Meter meter = state_->meter(Collective::sum, values.size_bytes());
  state_->require_usable("sum");
  auto pending = std::make_unique<PendingSum::State>(PendingSum::State{state_.get(), values.size_bytes()});
  if (state_->size > 1) {
    state_->for_each_message(values.size(), [&](std::size_t offset, int count) {
      MPI_Request& request = pending->requests.emplace_back(MPI_REQUEST_NULL);
      T* const begin = values.data() + offset;
      state_->call(
          "sum", [&] { return MPI_Iallreduce(MPI_IN_PLACE, begin, count, sum_type(T{}), MPI_SUM, MPI_COMM_WORLD, &request); });
    });
  }
  return PendingSum(std::move(pending));
}

PendingSum Comm::sum_begin(std::span<std::int32_t> values) { return begin(values); }
PendingSum Comm::sum_begin(std::span<std::int64_t> values) { return begin(values); }

}  // namespace bitloom::mpi
