// Message of the error that an operation throws.
#pragma once

#include <string>

#include "core/error.h"

namespace bitloom::test {

// The message of the Error of that kind which `operation` throws; what happened instead otherwise.
template <typename Operation>
std::string message_of(ErrorKind kind, Operation operation) {
  try {
    operation();
  } catch (const Error& error) {
    return error.kind() == kind ? error.what() : std::string("an error of another kind: ") + error.what();
  }
  return "no error";
}

// True if `text` contains `part`.
inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace bitloom::test
