// The thread that moves operations under way.
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <system_error>

#include "mpi/operation.h"

namespace bitloom::mpi {
namespace {

// Between two looks of the thread at what is under way. Data moves only when it looks.
constexpr auto nap = std::chrono::microseconds(50);
// By how much naps may be longer; the system's own value doubles them.
constexpr unsigned long timer_slack_nanoseconds = 1000;

// As the settings want it, which may have changed since it was last needed.
Progress& progress_of(Process& process) {
  const bool with_thread = process.allows_threads && process.settings.progress_thread;
  if (process.progress == nullptr || (process.progress->has_thread() != with_thread && process.progress->is_idle())) {
    process.progress.reset();
    process.has_threads = process.has_threads || with_thread;
    process.progress = std::make_shared<Progress>(with_thread);
    process.moves_by_hand = !process.progress->has_thread();
  }
  return *process.progress;
}

}  // namespace

Progress::Progress(bool with_thread) {
  if (!with_thread) return;
  // Signals are for the threads that were there before.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    // Whoever waits moves operations then.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Progress::~Progress() {
  if (!has_thread()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Progress::add(std::shared_ptr<Operation> operation) {
  {
    const std::lock_guard lock(mutex_);
    operations_.push_back(std::move(operation));
    added_ = true;
  }
  changed_.notify_all();
}

bool Progress::is_idle() {
  const std::lock_guard lock(mutex_);
  std::erase_if(operations_, [](const auto& operation) { return operation->is_over(); });
  return operations_.empty();
}

void Progress::poll() {
  for (const auto& operation : operations_) operation->poll();
  std::erase_if(operations_, [](const auto& operation) { return operation->is_over(); });
}

void Progress::run() {
  prctl(PR_SET_TIMERSLACK, timer_slack_nanoseconds);
  std::vector<std::shared_ptr<Operation>> seen;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !operations_.empty(); });
    if (stop_) return;
    added_ = false;
    seen = operations_;
    lock.unlock();
    bool is_any_over = false;
    for (const auto& operation : seen) is_any_over = operation->poll() || is_any_over;
    seen.clear();
    lock.lock();
    std::erase_if(operations_, [](const auto& operation) { return operation->is_over(); });
    if (!is_any_over) changed_.wait_for(lock, nap, [this] { return stop_ || added_; });
  }
}

// The thread that moves operations is there from now on, and with it the lock around calls of MPI.
bool Comm::use_from_thread() { return size() == 1 || progress_of(*state_->process).has_thread(); }

void Process::move_operations() {
  if (progress != nullptr) progress->poll();
}

Pending start(std::unique_ptr<Operation> operation) {
  std::shared_ptr<Operation> shared = std::move(operation);
  Comm::State& state = shared->state();
  Progress& progress = progress_of(*state.process);
  if (!shared->poll()) progress.add(shared);
  return Pending(std::move(shared));
}

}  // namespace bitloom::mpi
