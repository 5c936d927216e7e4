#include "cli/notice.h"

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "cli/signals.h"
#include "launch/probe.h"
#include "launch/process.h"

namespace bitloom::cli {
namespace {

constexpr auto interval = std::chrono::seconds(2);  // notices come half a minute to two minutes ahead

bool noticed(const std::string& command) {
  const std::chrono::duration<double> patience(launch::notice_seconds);
  return launch::run_all({{"sh", "-c", command}}, patience).front().code == 0;
}

void watch(const std::stop_token& stop, const std::string& command) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  while (!stop.stop_requested()) {
    if (noticed(command)) {
      request_stop();
      return;
    }
    wake.wait_for(lock, stop, interval, [] { return false; });
  }
}

}  // namespace

NoticeWatch::NoticeWatch(const std::string& command) {
  if (!command.empty()) thread_ = std::jthread([command](const std::stop_token& stop) { watch(stop, command); });
}

}  // namespace bitloom::cli
