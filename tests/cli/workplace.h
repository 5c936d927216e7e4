// A folder in which a test runs several commands, one after another.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <string>

#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

namespace bitloom::test {

class Workplace {
 public:
  // The standard output of a command that ends well; `ranks` above 0: under mpirun.
  std::string run(const Args& args, int ranks = 0) const {
    const Outcome outcome = ranks == 0 ? run_program(folder.path(), args) : run_ranks(folder.path(), ranks, args);
    INFO(fmt::format("{}", fmt::join(args, " ")) << "\n" << outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    return outcome.out;
  }

  // A command ends with `code`, and `text` is in its message.
  void refuses(const Args& args, int code, const std::string& text) const {
    const Outcome outcome = run_program(folder.path(), args);
    INFO(fmt::format("{}", fmt::join(args, " ")) << "\n" << outcome.out << outcome.err);
    CHECK(outcome.code == code);
    CHECK(has(outcome.err, text));
  }

  std::filesystem::path operator/(const std::string& name) const { return folder / name; }

  TempDir folder;
};

}  // namespace bitloom::test
