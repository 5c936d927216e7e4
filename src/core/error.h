// Errors that users see. Library code throws one of these; only src/cli turns them into text and exit codes.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace bitloom {

// Kinds of error, as far as the caller's next action is concerned.
enum class ErrorKind {
  usage,        // an option, a net description or an argument is wrong: exit code 2
  data,         // a data set, image, model or checkpoint cannot be used: exit code 3
  interrupted,  // stopped on request, a checkpoint is left behind: exit code 4
  io,           // the operating system refused (disk full, permission): exit code 5
  busy,         // another process holds the run folder or the cache: exit code 6
  internal,     // a bug in Bitloom: exit code 70
};

// Carries one message that names the argument, the value and what was expected.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(kind, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace bitloom
