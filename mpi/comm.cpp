#include "mpi/comm.h"

// The C++ bindings that MPI-3 removed would only add symbols and warnings.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <list>
#include <map>
#include <thread>

#include "mpi/meter.h"

namespace bitloom::mpi {
namespace {

// How a waiting rank backs off. Data moves only while somebody calls MPI_Test, so it first spins, then gives its core to others
// (ranks may share cores, and the other rank's OpenMP threads want them), and sleeps once it is clear that a peer is late.
constexpr double spin_seconds = 50e-6;
constexpr double yield_seconds = 5e-3;
constexpr double yield_seconds_per_byte = 5e-9;  // while a long message is likely on its way: naps would halve its speed
constexpr auto nap = std::chrono::microseconds(50);

// Messages of gather_bytes and of send(); collectives have a context of their own and need no tag.
constexpr int gather_tag = 1;
constexpr int message_tag = 2;

// The one place where a size becomes one of MPI's int counts.
int count_of(std::size_t elements) {
  if (elements > static_cast<std::size_t>(INT_MAX)) {
    fail(ErrorKind::internal, "a message of {} elements exceeds MPI's limit of {}", elements, INT_MAX);
  }
  return static_cast<int>(elements);
}

// Sums are taken over unsigned types, for which C defines overflow; the bits are those of two's complement.
MPI_Datatype sum_type(std::int32_t) { return MPI_UINT32_T; }
MPI_Datatype sum_type(std::int64_t) { return MPI_UINT64_T; }

std::atomic<bool> environment_exists{false};

}  // namespace

struct Comm::State {
  int rank = 0;
  int size = 1;
  bool broken = false;
  Settings settings;
  std::array<Traffic, collective_count> traffic{};
  // Messages under way; in containers that leave them where they are, because MPI knows their addresses.
  struct Message {
    std::vector<std::byte> bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  std::list<Message> outgoing;
  std::map<int, Message> incoming;  // by rank: the one that has begun to arrive

  std::size_t elements_per_message() const {
    return settings.elements_per_message == 0 ? static_cast<std::size_t>(INT_MAX) : settings.elements_per_message;
  }

  // Counts a new call; with one rank nothing is sent.
  Meter meter(Collective kind, std::size_t bytes) {
    return Meter(traffic[static_cast<std::size_t>(kind)], size > 1 ? bytes : 0);
  }

  [[noreturn]] void lose(const std::string& message) {
    broken = true;
    throw PeerLost(message);
  }

  void require_usable(const char* operation) const {
    if (broken) throw PeerLost(fmt::format("{}: rank {} of {} lost its peers earlier", operation, rank, size));
  }

  void require_rank(const char* operation, int root) const {
    if (root < 0 || root >= size)
      fail(ErrorKind::internal, "{}: root is {}, expected a rank in [0, {})", operation, root, size);
  }

  // Turns the return code of an MPI function into an error.
  void verify(int code, const char* operation) {
    if (code == MPI_SUCCESS) return;
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
    lose(fmt::format("{}: MPI reported on rank {} of {}: {} (code {})", operation, rank, size,
                     std::string(text.data(), static_cast<std::size_t>(length)), code));
  }

  // One MPI_Testall over requests that may be finished already.
  bool test(std::span<MPI_Request> requests, const char* operation) {
    int done = 0;
    verify(MPI_Testall(count_of(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE), operation);
    return done != 0;
  }

  // Waits until all requests are finished or the watchdog runs out. In the second case the requests stay pending, which is safe
  // after their buffers are gone because a broken communicator never lets MPI progress again.
  void wait(std::span<MPI_Request> requests, const char* operation, std::size_t bytes) {
    wait_until([&] { return test(requests, operation); }, operation, bytes);
  }
  void wait(MPI_Request& request, const char* operation, std::size_t bytes) { wait({&request, 1}, operation, bytes); }

  // The same for anything that `done` tests.
  template <typename F>
  void wait_until(F&& done, const char* operation, std::size_t bytes) {
    const Clock::time_point start = Clock::now();
    const double nap_after = yield_seconds + yield_seconds_per_byte * static_cast<double>(bytes);
    while (true) {
      const double elapsed = seconds_since(start);  // taken before the test: a rank that was itself suspended gets one more try
      if (done()) return;
      if (settings.watchdog_seconds > 0 && elapsed > settings.watchdog_seconds) {
        lose(
            fmt::format("{} of {} bytes: rank {} of {} waited {:.1f} s for its peers, the watchdog allows {:g} s; a peer has "
                        "died, hangs or is much slower",
                        operation, bytes, rank, size, elapsed, settings.watchdog_seconds));
      }
      if (elapsed < spin_seconds) continue;
      if (elapsed < nap_after) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(nap);
      }
    }
  }

  // Forgets messages that are gone; returns whether all are.
  bool sent(const char* operation) {
    outgoing.remove_if([&](Message& message) { return test({&message.request, 1}, operation); });
    return outgoing.empty();
  }

  // Throws Error(usage) unless there is another rank of this number.
  void require_peer(const char* operation, int peer) const {
    if (peer < 0 || peer >= size || peer == rank) {
      fail(ErrorKind::usage, "{}: rank {}; expected another one than {} in [0, {})", operation, peer, rank, size);
    }
  }

  // The next message of a rank, if all of it is there now. One that has begun to arrive goes on between calls.
  std::optional<std::vector<std::byte>> try_receive(int from, const char* operation) {
    sent(operation);
    const auto [place, fresh] = incoming.try_emplace(from);
    Message& message = place->second;
    if (fresh) {
      MPI_Message handle = MPI_MESSAGE_NULL;
      MPI_Status status;
      int there = 0;
      verify(MPI_Improbe(from, message_tag, MPI_COMM_WORLD, &there, &handle, &status), operation);
      if (there == 0) {
        incoming.erase(place);
        return std::nullopt;
      }
      int length = 0;
      verify(MPI_Get_count(&status, MPI_BYTE, &length), operation);
      message.bytes.resize(static_cast<std::size_t>(length));
      verify(MPI_Imrecv(message.bytes.data(), length, MPI_BYTE, &handle, &message.request), operation);
    }
    if (!test({&message.request, 1}, operation)) return std::nullopt;
    std::vector<std::byte> bytes = std::move(message.bytes);
    incoming.erase(place);
    return bytes;
  }

  // Calls start(offset, count, request) for each message of a transfer of `elements` elements.
  template <typename F>
  void for_each_message(std::size_t elements, F&& start) const {
    const std::size_t limit = elements_per_message();
    for (std::size_t offset = 0; offset < elements; offset += std::min(limit, elements - offset)) {
      start(offset, count_of(std::min(limit, elements - offset)));
    }
  }

  template <typename T>
  void reduce(std::span<T> values, MPI_Datatype type, MPI_Op operation, const char* name) {
    require_usable(name);
    if (size == 1) return;
    for_each_message(values.size(), [&](std::size_t offset, int count) {
      MPI_Request request = MPI_REQUEST_NULL;
      verify(MPI_Iallreduce(MPI_IN_PLACE, values.data() + offset, count, type, operation, MPI_COMM_WORLD, &request), name);
      wait(request, name, values.size_bytes());
    });
  }

  void broadcast(std::span<std::byte> bytes, int root, const char* name) {
    require_usable(name);
    require_rank(name, root);
    if (size == 1) return;
    for_each_message(bytes.size(), [&](std::size_t offset, int count) {
      MPI_Request request = MPI_REQUEST_NULL;
      verify(MPI_Ibcast(bytes.data() + offset, count, MPI_BYTE, root, MPI_COMM_WORLD, &request), name);
      wait(request, name, bytes.size());
    });
  }

  std::vector<std::byte> broadcast_bytes(std::vector<std::byte> bytes, int root, const char* name) {
    std::uint64_t length = bytes.size();
    broadcast(std::as_writable_bytes(std::span(&length, 1)), root, name);
    if (rank != root) bytes.assign(length, std::byte{0});
    broadcast(std::span(bytes), root, name);
    return bytes;
  }

  // Point-to-point messages, because MPI_Igatherv has int displacements, which limit the total of all ranks.
  std::vector<std::vector<std::byte>> gather_bytes(std::span<const std::byte> bytes, int root, const char* name) {
    require_usable(name);
    require_rank(name, root);
    std::vector<std::uint64_t> lengths(static_cast<std::size_t>(size), bytes.size());
    const std::uint64_t length = bytes.size();
    if (size > 1) {
      MPI_Request request = MPI_REQUEST_NULL;
      verify(MPI_Igather(&length, 1, MPI_UINT64_T, lengths.data(), 1, MPI_UINT64_T, root, MPI_COMM_WORLD, &request), name);
      wait(request, name, sizeof length);
    }
    // All buffers exist before the first message starts: running out of memory must not free one that MPI writes to.
    std::vector<std::vector<std::byte>> gathered;
    for (int source = 0; rank == root && source < size; ++source) {
      if (source == rank) {
        gathered.emplace_back(bytes.begin(), bytes.end());
      } else {
        gathered.emplace_back(lengths[static_cast<std::size_t>(source)]);
      }
    }
    std::vector<MPI_Request> requests;
    if (rank != root) {
      for_each_message(bytes.size(), [&](std::size_t offset, int count) {
        MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
        verify(MPI_Isend(bytes.data() + offset, count, MPI_BYTE, root, gather_tag, MPI_COMM_WORLD, &request), name);
      });
    }
    for (int source = 0; rank == root && source < size; ++source) {
      if (source == rank) continue;
      std::vector<std::byte>& received = gathered[static_cast<std::size_t>(source)];
      for_each_message(received.size(), [&](std::size_t offset, int count) {
        MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
        verify(MPI_Irecv(received.data() + offset, count, MPI_BYTE, source, gather_tag, MPI_COMM_WORLD, &request), name);
      });
    }
    if (!requests.empty()) wait(requests, name, bytes.size());
    return gathered;
  }

  void barrier(const char* name) {
    require_usable(name);
    if (size == 1) return;
    MPI_Request request = MPI_REQUEST_NULL;
    verify(MPI_Ibarrier(MPI_COMM_WORLD, &request), name);
    wait(request, name, 0);
  }

  // Collective: the largest of one value per rank.
  std::int64_t largest(std::int64_t value, const char* name) {
    reduce(std::span(&value, 1), MPI_INT64_T, MPI_MAX, name);
    return value;
  }
};

// ---- PendingSum ----

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

// ---- Comm ----

Comm::Comm() : state_(std::make_unique<State>()) {}
Comm::Comm(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Comm::Comm(Comm&&) noexcept = default;
Comm& Comm::operator=(Comm&&) noexcept = default;
Comm::~Comm() = default;

int Comm::rank() const noexcept { return state_->rank; }
int Comm::size() const noexcept { return state_->size; }
bool Comm::broken() const noexcept { return state_->broken; }
const Settings& Comm::settings() const noexcept { return state_->settings; }

void Comm::configure(const Settings& settings) {
  if (!(settings.watchdog_seconds >= 0)) {
    fail(ErrorKind::usage, "watchdog_seconds is {}, expected a number of seconds or 0 for no limit", settings.watchdog_seconds);
  }
  if (settings.elements_per_message > static_cast<std::size_t>(INT_MAX)) {
    fail(ErrorKind::usage, "elements_per_message is {}, expected at most {}", settings.elements_per_message, INT_MAX);
  }
  state_->settings = settings;
}

Traffic Comm::traffic(Collective kind) const noexcept { return state_->traffic[static_cast<std::size_t>(kind)]; }

void Comm::sum(std::span<std::int32_t> values) {
  const Meter meter = state_->meter(Collective::sum, values.size_bytes());
  state_->reduce(values, sum_type(std::int32_t{}), MPI_SUM, "sum");
}

void Comm::sum(std::span<std::int64_t> values) {
  const Meter meter = state_->meter(Collective::sum, values.size_bytes());
  state_->reduce(values, sum_type(std::int64_t{}), MPI_SUM, "sum");
}

template <typename T>
PendingSum Comm::begin(std::span<T> values) {
  const Meter meter = state_->meter(Collective::sum, values.size_bytes());
  state_->require_usable("sum");
  auto pending = std::make_unique<PendingSum::State>(PendingSum::State{state_.get(), values.size_bytes()});
  if (state_->size > 1) {
    state_->for_each_message(values.size(), [&](std::size_t offset, int count) {
      MPI_Request& request = pending->requests.emplace_back(MPI_REQUEST_NULL);
      state_->verify(
          MPI_Iallreduce(MPI_IN_PLACE, values.data() + offset, count, sum_type(T{}), MPI_SUM, MPI_COMM_WORLD, &request), "sum");
    });
  }
  return PendingSum(std::move(pending));
}

PendingSum Comm::sum_begin(std::span<std::int32_t> values) { return begin(values); }
PendingSum Comm::sum_begin(std::span<std::int64_t> values) { return begin(values); }

void Comm::send(int to, std::vector<std::byte> bytes) {
  State& state = *state_;
  const Meter meter = state.meter(Collective::message, bytes.size());
  state.require_usable("send");
  state.require_peer("send", to);
  const int count = count_of(bytes.size());
  State::Message& message = state.outgoing.emplace_back(State::Message{std::move(bytes)});
  state.verify(MPI_Isend(message.bytes.data(), count, MPI_BYTE, to, message_tag, MPI_COMM_WORLD, &message.request), "send");
  state.sent("send");
}

std::vector<std::byte> Comm::receive(int from) {
  const Meter meter(state_->traffic[static_cast<std::size_t>(Collective::message)]);
  state_->require_usable("receive");
  state_->require_peer("receive", from);
  std::optional<std::vector<std::byte>> bytes;
  const auto arrived = [&] { return (bytes = state_->try_receive(from, "receive")).has_value(); };
  state_->wait_until(arrived, "receive", 0);
  return *std::move(bytes);
}

std::optional<std::vector<std::byte>> Comm::try_receive(int from) {
  const Meter meter(state_->traffic[static_cast<std::size_t>(Collective::message)]);
  state_->require_usable("receive");
  state_->require_peer("receive", from);
  return state_->try_receive(from, "receive");
}

bool Comm::sends_finished() {
  const Meter meter(state_->traffic[static_cast<std::size_t>(Collective::message)]);
  state_->require_usable("send");
  return state_->sent("send");
}

void Comm::wait_until(const std::function<bool()>& done, const char* what, std::size_t bytes) {
  state_->require_usable(what);
  state_->wait_until(done, what, bytes);
}

void Comm::max(std::span<std::int64_t> values) {
  const Meter meter = state_->meter(Collective::max, values.size_bytes());
  state_->reduce(values, MPI_INT64_T, MPI_MAX, "max");
}

void Comm::broadcast(std::span<std::byte> bytes, int root) {
  const Meter meter = state_->meter(Collective::broadcast, root == rank() ? bytes.size() : 0);
  state_->broadcast(bytes, root, "broadcast");
}

std::vector<std::byte> Comm::broadcast_bytes(std::vector<std::byte> bytes, int root) {
  const Meter meter = state_->meter(Collective::broadcast, root == rank() ? bytes.size() : 0);
  return state_->broadcast_bytes(std::move(bytes), root, "broadcast");
}

std::string Comm::broadcast_text(const std::string& text, int root) {
  const auto bytes = std::as_bytes(std::span(text));
  const std::vector<std::byte> shared = broadcast_bytes({bytes.begin(), bytes.end()}, root);
  return {reinterpret_cast<const char*>(shared.data()), shared.size()};
}

std::vector<std::vector<std::byte>> Comm::gather_bytes(std::span<const std::byte> bytes, int root) {
  const Meter meter = state_->meter(Collective::gather, root == rank() ? 0 : bytes.size());
  return state_->gather_bytes(bytes, root, "gather");
}

void Comm::barrier() {
  const Meter meter = state_->meter(Collective::barrier, 0);
  state_->barrier("barrier");
}

bool Comm::flag_any(bool flag) {
  const Meter meter = state_->meter(Collective::max, sizeof(std::int64_t));
  return state_->largest(flag ? 1 : 0, "max of a flag") != 0;
}

void Comm::check(const std::string& local_error, ErrorKind kind) {
  const Meter meter = state_->meter(Collective::check, local_error.size());
  // The lowest failing rank has the largest size - rank.
  const std::int64_t failed = state_->largest(local_error.empty() ? 0 : size() - rank(), "check");
  if (failed == 0) return;
  const int root = size() - static_cast<int>(failed);
  auto code = static_cast<std::int32_t>(kind);
  state_->broadcast(std::as_writable_bytes(std::span(&code, 1)), root, "check");
  const auto local = std::as_bytes(std::span(local_error));
  const std::vector<std::byte> shared = state_->broadcast_bytes({local.begin(), local.end()}, root, "check");
  const std::string message(reinterpret_cast<const char*>(shared.data()), shared.size());
  throw SharedError(static_cast<ErrorKind>(code), size() == 1 ? message : fmt::format("rank {}: {}", root, message));
}

std::string Comm::described(const std::exception& error) {
  const std::string message = error.what();
  return message.empty() ? "an error without a message" : message;
}

// ---- Environment ----

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::vector<std::string> host_names(Comm& comm) {
  const std::string name = host_name();
  std::vector<std::string> names;
  for (const std::vector<std::byte>& bytes : comm.gather_bytes(std::as_bytes(std::span(name)))) {
    names.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return names;
}

bool launched_by_mpi() noexcept {
  // Open MPI 4, PRRTE and Slurm with PMIx, MPICH and Slurm with PMI-2.
  constexpr std::array<const char*, 3> variables{"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};
  return std::any_of(variables.begin(), variables.end(), [](const char* name) { return std::getenv(name) != nullptr; });
}

Environment::Environment() : launched_(launched_by_mpi()) {
  if (environment_exists.exchange(true)) fail(ErrorKind::internal, "a second mpi::Environment in one process");
  if (!launched_) return;
  Comm::State& state = *world_.state_;
  int provided = MPI_THREAD_SINGLE;
  state.verify(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED) state.lose("MPI_Init_thread: this MPI library does not support MPI_THREAD_FUNNELED");
  state.verify(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  state.verify(MPI_Comm_rank(MPI_COMM_WORLD, &state.rank), "MPI_Comm_rank");
  state.verify(MPI_Comm_size(MPI_COMM_WORLD, &state.size), "MPI_Comm_size");
}

Environment::~Environment() {
  // MPI starts once per process, so a second Environment stays forbidden after a launched one.
  if (!launched_) {
    environment_exists = false;
    return;
  }
  try {
    world_.state_->barrier("end of the run");
    MPI_Finalize();
  } catch (const std::exception&) {
    // MPI_Finalize would wait for the lost peers for ever.
  }
}

void abort_all(int code) {
  int started = 0;
  int ended = 0;
  if (MPI_Initialized(&started) == MPI_SUCCESS && MPI_Finalized(&ended) == MPI_SUCCESS && started != 0 && ended == 0) {
    MPI_Abort(MPI_COMM_WORLD, code);
  }
  _exit(code);
}

}  // namespace bitloom::mpi
