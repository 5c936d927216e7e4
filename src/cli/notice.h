// A cloud's notice that it takes a machine back, turned into a request to stop.
#pragma once

#include <string>
#include <thread>

namespace bitloom::cli {

inline constexpr const char* notice_command_help =
    "Shell command that every process runs again and again; when it ends with 0, this machine is about to be taken away, and "
    "the run stops at a checkpoint";

// Runs `sh -c command` every few seconds, as long as the object lives, until it ends with 0: then the run is asked to stop.
class NoticeWatch {
 public:
  // Does nothing for an empty command.
  explicit NoticeWatch(const std::string& command);

 private:
  std::jthread thread_;
};

}  // namespace bitloom::cli
