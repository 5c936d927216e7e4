// Parts that all operations have in common.
#include <unistd.h>

#include <climits>
#include <filesystem>

#include "mpi/comm_state.h"

namespace bitloom::mpi {

int count_of(std::size_t elements) {
  if (elements > static_cast<std::size_t>(INT_MAX)) {
    fail(ErrorKind::internal, "a message of {} elements exceeds MPI's limit of {}", elements, INT_MAX);
  }
  return static_cast<int>(elements);
}

void Comm::State::lose(const std::string& message) {
  process->break_off(message);
  throw PeerLost(message);
}

void Comm::State::lose_by_waiting(const char* operation, std::size_t bytes, double elapsed) {
  lose(
      fmt::format("{} of {} bytes: {} waited {:.1f} s for its peers, the watchdog allows {:g} s; a peer has died, hangs or is "
                  "much slower",
                  operation, bytes, self(), elapsed, process->settings.watchdog_seconds));
}

void Comm::State::require_usable(const char* operation) const {
  if (process->broken) throw PeerLost(lost_earlier(operation));
}

std::string Comm::State::lost_earlier(const char* operation) const {
  const std::string reason = process->reason();
  return fmt::format("{}: {} lost its peers earlier{}{}", operation, self(), reason.empty() ? "" : ": ", reason);
}

void Comm::State::require_rank(const char* operation, int root) const {
  if (root < 0 || root >= size) {
    fail(ErrorKind::internal, "{}: rank {}, expected one in [0, {})", operation, root, size);
  }
}

void Comm::State::require_peer(const char* operation, int peer) const {
  if (peer < 0 || peer >= size || peer == rank) {
    fail(ErrorKind::usage, "{}: rank {}; expected another one than {} in [0, {})", operation, peer, rank, size);
  }
}

std::uint64_t Comm::State::most_bytes() const {
  static const auto memory =
      static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return process->settings.most_bytes == 0 ? memory : process->settings.most_bytes;
}

void Comm::State::require_length(const char* what, int from, std::uint64_t bytes) const {
  if (bytes <= most_bytes()) return;
  fail(ErrorKind::data, "{}: {} announces {} bytes; {} takes at most {}", what, named(from), bytes, named(rank), most_bytes());
}

void Comm::State::fail_on_all(ErrorKind kind, const std::string& message) const {
  if (size == process->size) throw SharedError(kind, message);
  throw GroupError(kind, message, group_number);
}

// Turns the return code of an MPI function into an error.
void Comm::State::verify(int code, const char* operation) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  const std::string message = fmt::format("{}: MPI reported on {}: {} (code {})", operation, self(),
                                          std::string(text.data(), static_cast<std::size_t>(length)), code);
  process->keep_reason(message);
  process->broken = true;
  throw PeerLost(message);
}

bool Comm::State::test(std::span<MPI_Request> requests, const char* operation) {
  int done = 0;
  call(operation, [&] { return MPI_Testall(count_of(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE); });
  return done != 0;
}

void Process::keep_reason(const std::string& reason) {
  const std::lock_guard lock(reason_turn_);
  if (reason_.empty()) reason_ = reason;
}

std::string Process::reason() const {
  const std::lock_guard lock(reason_turn_);
  return reason_;
}

void Process::break_off(const std::string& reason) {
  keep_reason(reason);
  const std::unique_lock<std::mutex> no_others = take_turn();
  broken = true;
}

Comm::Comm() : state_(std::make_unique<State>(std::make_shared<Process>())) {}
Comm::Comm(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Comm::Comm(Comm&&) noexcept = default;
Comm& Comm::operator=(Comm&&) noexcept = default;
Comm::~Comm() = default;

int Comm::rank() const noexcept { return state_->rank; }
int Comm::size() const noexcept { return state_->size; }
bool Comm::broken() const noexcept { return state_->process->broken; }
const Settings& Comm::settings() const noexcept { return state_->process->settings; }

int Comm::world_rank(int rank) const {
  state_->require_rank("world_rank", rank);
  return state_->world_rank(rank);
}

void Comm::configure(const Settings& settings) {
  if (!(settings.watchdog_seconds >= 0)) {
    fail(ErrorKind::usage, "watchdog_seconds is {}, expected a number of seconds or 0 for no limit", settings.watchdog_seconds);
  }
  if (settings.elements_per_message > static_cast<std::size_t>(INT_MAX)) {
    fail(ErrorKind::usage, "elements_per_message is {}, expected at most {}", settings.elements_per_message, INT_MAX);
  }
  Process& process = *state_->process;
  process.settings = settings;
  if (process.watchdog != nullptr) process.watchdog->allow(settings.watchdog_seconds);
}

bool Comm::has_progress_thread() const noexcept {
  const Process& process = *state_->process;
  return process.allows_threads && process.settings.progress_thread;
}

Traffic Comm::traffic(Collective kind) const noexcept { return state_->traffic[static_cast<std::size_t>(kind)]; }
Traffic Comm::traffic() const noexcept {
  Traffic total;
  for (std::size_t kind = 0; kind < collective_count; ++kind) total += traffic(static_cast<Collective>(kind));
  return total;
}

void Comm::require_length(const char* what, int from, std::uint64_t bytes) const { state_->require_length(what, from, bytes); }

void Comm::wait_until(const std::function<bool()>& done, const char* what, std::size_t bytes) {
  state_->require_usable(what);
  state_->wait_until(done, what, bytes);
}

bool Comm::is_of(const GroupError& error) const noexcept { return state_->is_group() && error.group() == state_->group_number; }

std::string Comm::described(const std::exception& error) {
  std::string message = error.what();
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error);
      file != nullptr && !file->path1().empty()) {
    message = fmt::format("{}: {}", file->path1().string(), file->code().message());
  }
  return message.empty() ? "an error without a message" : message;
}

}  // namespace bitloom::mpi
