// bitloom launch, with a script in place of mpirun that plays the run: what it does at which start, the test says.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

// Begins every script: its arguments in `arguments`, the hosts of this start in $hosts and, line by line, in `started`; what a
// run does; an end when asked.
constexpr const char* prologue = R"(#!/bin/sh
printf '%s\n' "$@" > arguments
hosts=none
while [ $# -gt 0 ]; do
  case $1 in --host) hosts=,$2,;; esac
  shift
done
echo "$hosts" >> started
mkdir -p run
: > run/options.ini
write() { echo "$1" > run/next && mv run/next run/progress.json; }
# mark STEP of this start, which began at step $began
began=$(cat steps 2>/dev/null || echo 0)
mark() { write "{\"stage\":0,\"step\":$1,\"start\":\"$BITLOOM_SUPERVISED\",\"beat\":$1,\"began_stage\":0,\"began_step\":$began}"; }
# Steps go on where the last start left them.
step() {
  steps=$(($(cat steps 2>/dev/null || echo 0) + 1))
  echo $steps > steps
  mark $steps
  sleep 0.05
}
until_asked() { while :; do step; done; }
finish() { step; step; : > run/model.safetensors; exit 0; }
trap 'exit 4' USR1
)";

class Play {
 public:
  explicit Play(const std::string& script) {
    executable("mpirun", prologue + script);
    // A host is there if the test says so.
    executable("agent", "#!/bin/sh\ntest -e up-$1 && exit 0\necho no route to $1 >&2\nexit 255\n");
  }

  Outcome launch(const std::string& hosts, const Args& more = {}, const char* kind = "binary",
                 const std::string& agent = "./agent", const Args& division = {}) {
    Args args = {"launch", "--mpirun", "./mpirun"};
    if (!hosts.empty()) {
      write_file(folder_ / "hosts", hosts);
      args = with(args, {"--hostfile", "hosts", "--agent", agent, "--probe-seconds", "0.5"});
    }
    return run_program(folder_.path(),
                       with(with(with(args, more), {"--", "train", kind, "--data", "synth", "--out", "run"}), division));
  }

  void up(const std::string& host) const { write_file(folder_ / ("up-" + host), ""); }
  // The hosts of each start.
  std::vector<std::string> started() const {
    std::vector<std::string> lines;
    std::string line;
    for (const char c : std::filesystem::exists(folder_ / "started") ? read_file(folder_ / "started") : "") {
      if (c == '\n') {
        lines.push_back(std::exchange(line, ""));
      } else {
        line += c;
      }
    }
    return lines;
  }
  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }

  void executable(const std::string& name, const std::string& text) const { write_program(folder_ / name, text); }

 private:
  TempDir folder_;
};

// Host n2 comes while a start on n1 runs; the first start with it ends as `failure` says, the second one finishes.
std::string n2_fails_first(const std::string& failure) {
  return R"(
case $hosts in
  *,n2:1,*)
    test -e failed && finish
    : > failed
)" + failure +
         R"(;;
esac
: > up-n2
until_asked
)";
}

Outcome launch_that_n2_joins(Play& play) {
  play.up("n1");
  const Outcome outcome = play.launch("n1\nn2\n");
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(has(outcome.out, "launch: n2 is there: the run goes on with it"));
  return outcome;
}

}  // namespace

// It was excluded for good, whatever had been wrong.
TEST_CASE("a host with which a start came to nothing joins again later", "[launch]") {
  Play play(n2_fails_first("exit 9"));
  const Outcome outcome = launch_that_n2_joins(play);
  CHECK(has(outcome.out, "launch: goes on without n2, with which it came to nothing, for 2.0 s"));
  const std::vector<std::string> started = play.started();
  REQUIRE(started.size() >= 4);
  CHECK_FALSE(has(started.front(), "n2"));
  CHECK(has(started.back(), "n2"));
  const auto failed = std::find_if(started.begin(), started.end(), [](const auto& hosts) { return has(hosts, "n2"); });
  CHECK_FALSE(has(*(failed + 1), "n2"));
}

// The start for which the run was stopped gave hosts a second.
TEST_CASE("a host that takes long to answer joins", "[launch]") {
  Play play(R"(
case $hosts in *,n2:1,*) finish;; esac
test $(wc -l < started) -gt 3 && exit 9
: > up-n2
until_asked
)");
  play.executable("slow", "#!/bin/sh\ntest $1 = n2 && test -e up-n2 && sleep 2\nexec ./agent \"$@\"\n");
  play.up("n1");
  const Outcome outcome = play.launch("n1\nn2\n", {"--attempts", "1"}, "binary", "./slow");
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  CHECK(play.started().size() == 2);
}

// Each look at the hosts gave them a second, until the launch had waited long enough.
TEST_CASE("hosts that take long to answer are there for a start that cannot do without them", "[launch]") {
  Play play("test $(wc -l < started) -gt 1 && finish\nstep\nexit 9\n");
  play.executable("slow", "#!/bin/sh\ntest $1 = n2 && sleep 2\nexec ./agent \"$@\"\n");
  play.up("n1");
  play.up("n2");
  const Outcome outcome = play.launch("n1\nn2\n", {"--min-workers", "3", "--patience", "10"}, "binary", "./slow");
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  CHECK(play.started() == std::vector<std::string>(2, ",localhost:1,n1:1,n2:1,"));
}

// A host that had vanished since it was asked kept mpirun waiting for minutes.
TEST_CASE("mpirun reaches hosts by the agent as those are asked", "[launch]") {
  const auto arguments = [](const std::string& agent) {
    Play play("finish\n");
    play.executable("ssh", "#!/bin/sh\ntest \"$1 $3\" = '-o -o' && shift 4 && exec ./agent \"$@\"\n");
    play.up("n1");
    const Outcome outcome = play.launch("n1\n", {}, "binary", agent);
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 0);
    return read_file(play / "arguments");
  };
  CHECK(has(arguments("./ssh"), "\nplm_rsh_agent\n./ssh -o BatchMode=yes -o ConnectTimeout=5\n"));
  CHECK(has(arguments("./agent"), "\nplm_rsh_agent\n./agent\n"));
}

// Open MPI 5 ignored the parameters of 4 for this, and ended where there were fewer cores than processes.
TEST_CASE("mpirun is told in words that Open MPI 4 and 5 know that there may be more processes than cores", "[launch]") {
  Play play("finish\n");
  CHECK(play.launch("").code == 0);
  CHECK(has(read_file(play / "arguments"), "\n--map-by\n:OVERSUBSCRIBE\n--bind-to\nnone\n"));
}

// Only hosts that answered in the same fiftieth of a second counted together.
TEST_CASE("hosts that make the run larger together join though one answers after the other", "[launch]") {
  Play play(R"(
case $hosts in
  *,n2:1,n3:1,*)
    echo '{"event":"result","steps":12}' > run/metrics.jsonl
    exit 0;;
esac
: > up-n2
: > up-n3
for i in 1 2 3 4 5 6 7 8; do for j in 1 2 3 4 5 6 7 8 9 10; do step; done; done
exit 9
)");
  play.executable("slow", R"(#!/bin/sh
if test $1 = n3 && test -e up-n3; then
  until test -e asked-n2; do sleep 0.05; done
  sleep 0.3
fi
./agent "$@" || exit
if test $1 = n2; then : > asked-n2; fi
)");
  play.up("n1");
  // Three processes do not divide the batch.
  const Outcome outcome = play.launch("n1\nn2\nn3\n", {}, "gpt", "./slow", {"--batch", "4"});
  INFO(outcome.out << outcome.err);
  CHECK(has(outcome.out, "launch: n2 is there: the run goes on with it"));
  CHECK(has(outcome.out, "launch: n3 is there: the run goes on with it"));
  REQUIRE(play.started().size() == 2);
  CHECK(play.started().front() == ",localhost:1,n1:1,");
}

namespace {

// Steps 100 to 130 in the first start; the others come from 100 to 110 and end as `end` says, but the tenth finishes.
std::string repeats_steps(const std::string& end) {
  return R"(
began=100
case $(wc -l < started) in
  1) mark 130; exit 137;;
  10) mark 140; : > run/model.safetensors; exit 0;;
esac
mark 110
)" + end;
}

}  // namespace

// Its checkpoint came after more steps than it made until the next kill.
TEST_CASE("a launch does not give up starts that make steps until they are killed", "[launch]") {
  Play play(repeats_steps("exit 137\n"));
  const Outcome outcome = play.launch("", {"--attempts", "2"});
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  CHECK(play.started().size() == 10);
  // An error at the same step again and again is one of the run.
  Play own(repeats_steps("exit 9\n"));
  const Outcome given_up = own.launch("", {"--attempts", "2"});
  INFO(given_up.out << given_up.err);
  CHECK(given_up.code == 8);
  CHECK(own.started().size() == 3);
  // So is a kill, if there are far more of them.
  Play killed("began=100\ncase $(wc -l < started) in 1) mark 130;; *) mark 110;; esac\nexit 137\n");
  CHECK(killed.launch("", {"--attempts", "1"}).code == 8);
  CHECK(killed.started().size() == 11);
}

// It told of one that was days old, after which the run had gone on.
TEST_CASE("a launch that gives up tells the first failure since the run came further", "[launch]") {
  Play play(R"(
case $(wc -l < started) in
  1) echo first trouble; step;;
  2) step; echo second trouble;;
  *) echo third trouble;;
esac
exit 9
)");
  const Outcome outcome = play.launch("", {"--attempts", "1"});
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 8);
  CHECK(play.started().size() == 3);
  CHECK(has(outcome.err, "gave up after 3 starts; the first failure was: mpirun ended with 9"));
  CHECK(has(outcome.err, "second trouble"));
  CHECK_FALSE(has(outcome.err, "first trouble"));
}

TEST_CASE("a host that came to a start that was killed at its work is not suspected", "[launch]") {
  Play play(n2_fails_first("began=0; mark 1; exit 137"));
  const Outcome outcome = launch_that_n2_joins(play);
  CHECK_FALSE(has(outcome.out, "goes on without"));
}

TEST_CASE("a launch starts no more processes than a binary net's training can be divided among", "[launch]") {
  const auto processes = [](const Args& division) {
    Play play("finish\n");
    const Outcome outcome = play.launch("", {"--local", "10"}, "binary", "", division);
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    const std::string log = read_file(play / "run.launch.jsonl");
    const std::string key = "\"processes\":";
    REQUIRE(has(log, key));
    return std::stoi(log.substr(log.find(key) + key.size()));
  };
  CHECK(processes({"--exchange", "sparse", "--workers", "8"}) == 8);
  CHECK(processes({"--batch", "4"}) == 4);
  CHECK(processes({"--batch-per-rank", "1"}) == 10);
  CHECK(processes({}) == 10);
}

// It watched the first.
TEST_CASE("of an option that is given twice to the run a launch takes the last, as the run does", "[launch]") {
  Play play("finish\n");
  const Outcome outcome = play.launch("", {}, "binary", "", {"--out", "elsewhere", "--out", "run"});
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  CHECK(std::filesystem::exists(play / "run.launch.jsonl"));
}

TEST_CASE("a host that came when rank 0 had trouble with its own disk is not suspected", "[launch]") {
  Play play(n2_fails_first(R"(
    echo "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD"
    echo "with errorcode 5."
    exit 5)"));
  const Outcome outcome = launch_that_n2_joins(play);
  CHECK(has(outcome.out, "launch: rank 0: exit code 5"));
  CHECK_FALSE(has(outcome.out, "goes on without"));
}

// Where a start was over before somebody looked at its progress twice, nothing was said of it and no step was counted.
TEST_CASE("a start that ends at once has recovered the run, and its steps count", "[launch]") {
  Play play(R"(
if ! test -e broken; then : > broken; mark 12; exit 137; fi
# Before it says where it begins, a mark tells nothing of how far it is.
write "{\"stage\":0,\"step\":0,\"start\":\"$BITLOOM_SUPERVISED\",\"beat\":1}"
sleep 0.3
began=5
mark 20
: > run/model.safetensors
)");
  const Outcome outcome = play.launch("");
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(has(outcome.out, "launch: back at work after"));
  CHECK(has(outcome.out, "launch: done after 2 starts, 7 steps computed twice"));
}

// The names were made of process id and number: in a container both come again.
TEST_CASE("the progress of an earlier start is not taken for that of one whose process id is the same", "[launch]") {
  Play play(R"(
write "{\"stage\":0,\"step\":7,\"start\":\"$PPID-0\",\"beat\":7}"
sleep 6
finish
)");
  const Outcome outcome = play.launch("", {"--deadline", "4"});
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  CHECK(play.started().size() == 1);
}

// It trained on this machine alone, and never said that there was no such host.
TEST_CASE("hosts that cannot be reached are named, and a run does not begin without any unless told to", "[launch]") {
  Play play("finish\n");
  const Outcome none = play.launch("nowhere\n", {"--patience", "0"});
  INFO(none.out << none.err);
  CHECK(none.code == 8);
  CHECK(has(none.out, "launch: cannot be reached: nowhere (no route to nowhere)"));
  CHECK(has(none.err, "none of the 1 hosts can be used; --min-workers 1 begins on this machine alone after 0 s"));
  CHECK(play.started().empty());

  play.up("n1");
  const Outcome some = play.launch("n[1-3]\n");
  CHECK(some.code == 0);
  CHECK(has(some.out, "launch: cannot be reached: n2 (no route to n2), n3 (no route to n3)"));
  CHECK(play.started().back() == ",localhost:1,n1:1,");

  Play alone("finish\n");
  const Outcome told = alone.launch("nowhere\n", {"--min-workers", "1"});
  CHECK(told.code == 0);
  CHECK(has(told.out, "launch: cannot be reached: nowhere (no route to nowhere)"));
  CHECK(has(told.out, "launch: this machine works alone until one of the 1 hosts is there"));
  CHECK(alone.started() == std::vector<std::string>{",localhost:1,"});

  // An agent that is not there is a mistake in the command.
  Play no_agent("finish\n");
  const Outcome agent = no_agent.launch("n1\n", {}, "binary", "./no-such-agent");
  CHECK(agent.code == 5);
  CHECK(has(agent.err, "./no-such-agent: cannot be started: No such file or directory"));
  CHECK(no_agent.started().empty());
}

// Rank 0 was alone on this machine, so that every group of ranks lay across two hosts.
TEST_CASE("hosts get whole groups of the ranks that exchange the most", "[launch]") {
  const std::string done = "echo '{\"event\":\"result\",\"steps\":12}' > run/metrics.jsonl\n";
  // The hosts of a start, and what is printed before it.
  const auto start = [&](const std::string& hosts, const Args& division, const Args& options = {}, const char* kind = "gpt") {
    Play play(done);
    for (const char* host : {"n1", "n2", "n3"}) play.up(host);
    const Outcome outcome = play.launch(hosts, options, kind, "./agent", division);
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 0);
    REQUIRE(play.started().size() == 1);
    return std::pair(play.started().front(), outcome.out);
  };
  const std::string hosts = "n1 slots=1\nn2 slots=5\nn3 slots=4\n", across = "lie across hosts";
  CHECK(start(hosts, {}).first == ",localhost:1,n1:1,n2:5,n3:4,");
  CHECK(start(hosts, {"--pipeline", "2"}).first == ",localhost:1,n1:1,n2:5,n3:4,");
  const auto [tensor, told_tensor] = start(hosts, {"--tensor", "2"});
  CHECK(tensor == ",localhost:2,n2:4,n3:4,n1:1,");
  CHECK_FALSE(has(told_tensor, across));
  CHECK(start(hosts, {"--tensor", "2", "--pipeline", "2"}).first == tensor);
  CHECK(start(hosts, {"--tensor", "2"}, {}, "dalle").first == tensor);
  CHECK(start(hosts, {"--shard", "parameters", "--shard-ranks", "4"}).first == ",localhost:4,n2:4,n3:4,n1:1,");
  CHECK(start(hosts, {"--exchange", "local", "--ranks-per-worker", "2"}).first == tensor);

  // Whether or not the first host of the file is there.
  CHECK(start("n4 slots=2\nn2 slots=2\n", {"--tensor", "2"}, {"--local", "3"}).first == ",localhost:2,n2:2,");
  CHECK(start("n2 slots=2\nn4 slots=2\n", {"--tensor", "2"}, {"--local", "3"}).first == ",localhost:2,n2:2,");
  const auto [alone, told] = start(hosts, {"--tensor", "2"}, {"--local", "1"});
  CHECK(alone == ",localhost:1,n2:4,n3:4,n1:1,");
  CHECK(
      has(told, "launch: groups of 2 processes that exchange the most lie across hosts; slots= and --local in multiples of 2"));
  CHECK(has(start("n1\nn2\nn3\n", {"--tensor", "2"}).second, across));
}

// They ended the supervisor as a bug in Bitloom would.
TEST_CASE("values of a wrong type in a run's files do not end the supervisor", "[launch]") {
  Play play(R"(
for mark in '{"stage":"x","step":-1,"start":7,"beat":[]}' '[1]' '"x"' '{' \
    "{\"start\":\"$BITLOOM_SUPERVISED\",\"stage\":null,\"step\":1.5}" \
    "{\"start\":\"$BITLOOM_SUPERVISED\",\"stage\":{},\"step\":1e300}"; do
  write "$mark"
  sleep 0.1
done
finish
)");
  const Outcome outcome = play.launch("");
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  CHECK(play.started().size() == 1);

  for (const char* metrics : {"{\"event\":3}\n", "{\"event\":\"result\",\"steps\":\"many\"}\n", "no JSON\n", "[]\n", ""}) {
    INFO(metrics);
    Play gpt("echo '{\"event\":\"result\",\"steps\":12}' > run/metrics.jsonl\n");
    std::filesystem::create_directory(gpt / "run");
    write_file(gpt / "run/metrics.jsonl", metrics);
    const Outcome ended = gpt.launch("", {}, "gpt");
    INFO(ended.out << ended.err);
    CHECK(ended.code == 0);
    CHECK(gpt.started().size() == 1);
  }
}

TEST_CASE("signs of life are what the program writes, too", "[launch]") {
  // Longer than the deadline without a step.
  Play play(R"(
step
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo "images: $i of 12 sent"; sleep 0.5; done
finish
)");
  const Outcome outcome = play.launch("", {"--deadline", "5"});
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
}
