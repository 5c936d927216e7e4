// A disk that is full, and a process that has as many open files as it may have, for tests.
#pragma once

#include <signal.h>  // POSIX
#include <sys/resource.h>
#include <unistd.h>

namespace bitloom::test {

// Until the end of the scope, the system refuses to let any file of this process grow beyond `bytes`.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    old_handler_ = ::signal(SIGXFSZ, SIG_IGN);  // else the process is killed
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    ::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int) = nullptr;
};

// Until the end of the scope, the system opens no further file for this process.
class NoMoreFiles {
 public:
  NoMoreFiles() {
    ::getrlimit(RLIMIT_NOFILE, &old_);
    const int next = ::dup(0);
    ::close(next);
    const rlimit limit{static_cast<rlim_t>(next), old_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  NoMoreFiles(const NoMoreFiles&) = delete;
  NoMoreFiles& operator=(const NoMoreFiles&) = delete;
  ~NoMoreFiles() { ::setrlimit(RLIMIT_NOFILE, &old_); }

 private:
  rlimit old_{};
};

}  // namespace bitloom::test
