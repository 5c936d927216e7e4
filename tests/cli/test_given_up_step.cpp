// A run that is asked to stop within a long step.
#include <csignal>

#include "tests/cli/gpt_run.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

// A machine that is about to vanish was given seconds, and a step of many micro-batches took minutes.
TEST_CASE("a run that is asked to stop gives up its step between micro-batches, and goes on to the same model", "[gpt]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const auto args = [](const std::string& out) {
    return with(quick_gpt(out, 3), {"--batch", "64", "--micro-batch", "2", "--evaluate-every", "1"});
  };
  REQUIRE(run_program(folder.path(), args("whole")).code == 0);
  const Hold hold(folder.path(), 1);
  Background background(folder.path(), with(args("stopped"), Hold::option()));
  REQUIRE(background.wait_for("step 1/3"));
  background.signal(SIGTERM);
  const Outcome stopped = background.wait();
  INFO(stopped.out << stopped.err);
  CHECK(stopped.code == 4);
  CHECK(has(stopped.err, "stopped after step 1 of 3"));  // it is held before the second, and begins it when it is let go
  const Outcome resumed = run_program(folder.path(), {"train", "gpt", "--resume", "--out", "stopped"});
  INFO(resumed.out << resumed.err);
  REQUIRE(resumed.code == 0);
  CHECK(has(resumed.out, "going on from step 1"));
  CHECK(same_tensors(folder / "stopped/checkpoint.safetensors", folder / "whole/checkpoint.safetensors"));
  CHECK(read_file(folder / "stopped/model.safetensors") == read_file(folder / "whole/model.safetensors"));
}
