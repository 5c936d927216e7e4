// The file by which a worker is known in the folder that it shares with others, and who has the worker's name there.
//
// A worker writes its file anew every few seconds, all the while: whoever would have its name, and is another run, sees that
// within one such time. No clock is compared with that of another machine.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "core/clock.h"

namespace bitloom::train {

// In a run's folder: by which the run is known to be the same in other processes, on other machines and under another path.
inline constexpr const char* run_identity_name = "worker.json";
// Signs of life that have to be missing before another run may take over a name: a file server that is slow, or shows a file
// as it was a minute ago, is not to make two workers of one.
inline constexpr int missing_signs = 9;

class Presence {
 public:
  // file: NAME.json in the folder. run: the folder of the worker's run; none: whose name it is, is not looked at.
  // sign_seconds: between signs of life.
  Presence(std::filesystem::path file, std::filesystem::path run, double sign_seconds);
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;
  // Leaves the file: a worker that is gone without leave() is waited for.
  ~Presence();

  // Whether the name is this worker's; asked again and again while it is not yet known if another run that has it is at work.
  // Throws Error(busy) if that is so, Error(io).
  bool take();
  // Says from which round on there will be messages. The name has been taken. Throws as take() does, if another has it by now.
  void show(std::uint64_t next);
  void leave();
  // Throws Error(busy) if another has the name by now, as far as the last sign of life has shown.
  void require() const;

 private:
  // As the file says.
  struct Holder {
    std::string text;
    bool is_whole = false;
    std::optional<std::uint64_t> next;
    std::string run, start;  // nothing in files of older programs
    std::string host, folder;
    std::int64_t process = 0;
  };
  std::optional<Holder> read() const;
  bool has_been_silent(const Holder& holder);
  [[noreturn]] void refuse(const Holder& holder) const;
  void take_run_identity();
  void write();
  void write_unless_taken();
  void give_signs();
  void end_signs();

  std::filesystem::path file_, run_;
  double sign_seconds_;
  std::string identity_;  // of the run
  std::string start_;     // of this process's worker alone
  // How long another one's file has not changed.
  std::string seen_;
  int missing_ = 0;
  std::optional<Clock::time_point> counted_;

  mutable std::mutex mutex_;
  std::condition_variable ends_;
  bool is_ending_ = false;
  std::optional<std::uint64_t> next_;
  std::uint64_t signs_ = 0;
  std::optional<Holder> taken_by_;
  std::thread thread_;  // gives signs of life while the name is this worker's
};

}  // namespace bitloom::train
