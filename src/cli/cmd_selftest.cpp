// bitloom selftest: whether the processes of this run compute what one process does, in all their layouts.
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/device.h"
#include "cli/options.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/progress.h"
#include "models/parity/parity.h"
#include "nn/engine.h"

namespace bitloom::cli {

using Json = nlohmann::json;

int selftest(Session& session, std::span<const std::string> args) {
  bool parity = false;
  bool json = false;
  bool quiet = false;
  std::size_t every = 1;
  std::string device = "cpu", backend;
  Options options(
      "bitloom selftest --parity [options]",
      "Trains small nets (a GPT with dropout, a convolutional net with batch norm) for three steps by all processes of "
      "this run, in every grid of data, pipeline and tensor parallel processes, schedule, level of sharding, kind of "
      "recomputation and with all or 3 bits of activations' inputs, and compares parameters and losses with those of "
      "one process. For a check of a cluster: mpirun -n 8 bitloom selftest --parity.");
  options.group("Options");
  options.flag("parity", parity, "All layouts of the processes, beside one process");
  declare_device(options, device);
  options.text("backend", backend, "NAME",
               fmt::format("Implementation that computes: {}; \"\": the device's own", fmt::join(nn::backends(), ", ")));
  options.count("every", every, 1, 1000000, "Test of every Nth layout alone, where all take too long; 1: all");
  options.flag("quiet", quiet, "Rows of failures alone");
  options.flag("json", json, "A last line of JSON");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  if (!parity) fail(ErrorKind::usage, "--parity: missing; expected it, the only test that there is");
  const Clock::time_point start = Clock::now();
  std::size_t all = 0;
  models::Parity test(session.comm, session.comm.together([&] { return choose_device(device); }), backend);
  std::vector<models::ParityCase> cases;
  for (const models::ParityCase& each : models::parity_cases(session.comm.size())) {
    if (all++ % every == 0) cases.push_back(each);
  }
  session.terminal.print("net data x stages x tensor, schedule, sharded, recomputed, bits: {} layouts of {} process{}",
                         cases.size(), session.comm.size(), session.comm.size() == 1 ? "" : "es");
  std::size_t failures = 0;
  std::size_t equal = 0;
  double largest = 0;
  for (const models::ParityCase& the_case : cases) {
    const models::ParityResult result = test.run(the_case);
    failures += result.passes() ? 0 : 1;
    equal += result.difference == 0 ? 1 : 0;
    largest = std::max(largest, result.difference);
    if (quiet && result.passes()) continue;
    session.terminal.print("{}  {:>9}  {}", models::to_text(the_case),
                           result.difference == 0 ? "same bits" : fmt::format("{:.1e}", result.difference),
                           result.passes()     ? "ok"
                           : result.limit == 0 ? "FAILED: expected the same bits"
                                               : fmt::format("FAILED: expected at most {:.0e}", result.limit));
  }
  const double seconds = seconds_since(start);
  session.terminal.print("{} of {} layouts agree with one process, {} to the bit; largest difference {:.1e}; {}",
                         cases.size() - failures, cases.size(), equal, largest, format_duration(seconds));
  if (json) {
    session.terminal.print("{}", Json{{"processes", session.comm.size()},
                                      {"layouts", cases.size()},
                                      {"failures", failures},
                                      {"same_bits", equal},
                                      {"largest_difference", largest},
                                      {"seconds", seconds}}
                                     .dump());
  }
  return failures == 0 ? exit_done : exit_internal;
}

}  // namespace bitloom::cli
