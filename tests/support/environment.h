// Environment variables while a test runs.
#pragma once

#include <stdlib.h>  // setenv is POSIX, not C++

#include <cstdlib>
#include <optional>
#include <string>

namespace bitloom::test {

// Sets an environment variable, or removes it, until the end of the scope.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value != nullptr ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

}  // namespace bitloom::test
