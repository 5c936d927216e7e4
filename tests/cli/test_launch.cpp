// bitloom launch: runs that lose processes, are stopped, or cannot be started at all.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

// Training by sparse messages, with a checkpoint several times a second; a `Hold` decides when it comes to a step.
Args long_training(const std::string& out, const std::string& epochs = "40") {
  Args args = quick_training(out);
  *(std::find(args.begin(), args.end(), "--epochs") + 1) = epochs;
  return with(with(args, {"--exchange", "sparse", "--workers", "6", "--checkpoint-seconds", "0.2"}), Hold::option());
}

Args launched(const Args& options, const Args& program) { return with(with(with({"launch"}, options), {"--"}), program); }

std::vector<nlohmann::json> events(const std::filesystem::path& run, const std::string& name) {
  std::vector<nlohmann::json> found;
  std::ifstream file(run.string() + ".launch.jsonl");
  for (std::string line; std::getline(file, line);) {
    found.push_back(nlohmann::json::parse(line));
    if (found.back()["event"] != name) found.pop_back();
  }
  return found;
}

}  // namespace

TEST_CASE("a launched run that loses its processes again and again ends with the undisturbed model", "[launch][mpi]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), long_training("calm", "28")).code == 0);
  const Hold hold(folder.path(), 2 * epoch_steps + 1);
  Background launch(folder.path(), launched({"--local", "3"}, long_training("run", "28")), 0, mpi_settings());
  for (std::size_t kills = 0; kills < 3; ++kills) {
    // It is alive then, and has made steps since the last kill.
    REQUIRE(launch.wait_for(fmt::format("epoch {}/28", 2 + 8 * kills)));
    if (kills == 1) {
      kill(launch.launcher(), SIGKILL);
    } else {
      kill(launch.rank(kills == 0 ? 2 : 0), SIGKILL);
    }
    hold.until((2 + 8 * (kills + 1)) * epoch_steps + 1);
  }
  hold.release();
  const Outcome outcome = launch.wait();
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(same_tensors(folder / "run/model.safetensors", folder / "calm/model.safetensors"));
  CHECK(events(folder / "run", "failure").size() == 3);
  CHECK(events(folder / "run", "start").size() == 4);
  CHECK(has(outcome.out, "rank 2 on "));
  CHECK(has(outcome.out, "signal 9"));
  CHECK(events(folder / "run", "recovered").size() == 3);
  CHECK(has(outcome.out, "launch: done after 4 starts"));
  // Once more: there is nothing left to do.
  CHECK(has(run_program(folder.path(), launched({}, long_training("run", "28")), mpi_settings()).out, "is done already"));
}

TEST_CASE("a launched run whose process is suspended is started again", "[launch][mpi]") {
  const TempDir folder;
  const Hold hold(folder.path(), 2 * epoch_steps + 1);
  Background launch(folder.path(), launched({"--local", "2", "--deadline", "10"}, long_training("run", "6")), 0,
                    mpi_settings());
  REQUIRE(launch.wait_for("epoch 2/6"));
  kill(launch.rank(1), SIGSTOP);
  hold.release();
  const Outcome outcome = launch.wait();
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(has(outcome.out, "no sign of life for 10 s"));
  CHECK(events(folder / "run", "recovered").size() >= 1);
}

// It was killed, evaluated anew and killed again, and given up. How long the evaluation takes is a matter of the machine; on a
// slow one it is many times the deadline.
TEST_CASE("a launched run whose evaluation at the end outlasts the deadline is not taken for hanging", "[launch][mpi]") {
  const TempDir folder;
  Args args = quick_training("run");
  *(std::find(args.begin(), args.end(), "--max-train") + 1) = "104";
  *(std::find(args.begin(), args.end(), "--max-test") + 1) = "500";
  for (const char* option : {"layer1.width=256", "layer2.width=256", "net.shift=2", "net.mirror=true"}) {
    args = with(args, {"--set", option});
  }
  const Outcome outcome = run_program(folder.path(), launched({"--local", "1", "--deadline", "3"}, args), mpi_settings());
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  CHECK(std::filesystem::exists(folder / "run/model.safetensors"));
}

TEST_CASE("a launched run that is asked to end can be continued", "[launch][mpi]") {
  const TempDir folder;
  const Hold hold(folder.path(), 2 * epoch_steps + 1);
  {
    Background launch(folder.path(), launched({"--local", "2"}, long_training("run", "6")), 0, mpi_settings());
    REQUIRE(launch.wait_for("epoch 2/6"));
    launch.signal(SIGTERM);
    const Outcome outcome = launch.wait();
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 4);
    CHECK(has(outcome.err, "can be continued"));
    // mpirun's words on processes that end with another code than 0, though they were asked to.
    CHECK_FALSE(has(outcome.out, "-----"));
    CHECK_FALSE(has(outcome.out, "mpirun"));
  }
  hold.release();
  const Outcome again = run_program(folder.path(), launched({"--local", "1"}, long_training("run", "6")), mpi_settings());
  INFO(again.out << again.err);
  CHECK(again.code == 0);
  CHECK(std::filesystem::exists(folder / "run/model.safetensors"));
}

TEST_CASE("a notice that a machine goes leaves a checkpoint, and the run goes on without it", "[launch][mpi]") {
  const TempDir folder;
  // The second process asks for the file once it is there, and finds it once.
  const std::string notice = "test \"$OMPI_COMM_WORLD_RANK\" = 1 && rm goes";
  const Hold hold(folder.path(), 2 * epoch_steps + 1);
  Background launch(folder.path(), launched({"--local", "2", "--notice-command", notice}, long_training("run")), 0,
                    mpi_settings());
  REQUIRE(launch.wait_for("epoch 2/40"));
  write_file(folder / "goes", "");
  REQUIRE(wait_until([&] { return !std::filesystem::exists(folder / "goes"); }));
  hold.release();
  const Outcome outcome = launch.wait();
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  CHECK(has(outcome.out, "a process was told to end; all left a checkpoint"));
  for (const nlohmann::json& event : events(folder / "run", "recompute")) CHECK(event["steps"] == 0);
}

TEST_CASE("a launched run waits while its machine is about to be taken away", "[launch][mpi]") {
  const TempDir folder;
  const Hold hold(folder.path(), 2 * epoch_steps + 1);
  Background launch(folder.path(), launched({"--local", "2", "--notice-command", "test -e goes"}, long_training("run", "6")), 0,
                    mpi_settings());
  REQUIRE(launch.wait_for("epoch 2/6"));
  write_file(folder / "goes", "");
  REQUIRE(launch.wait_for("localhost is about to be taken away: it is left out until that is over"));
  REQUIRE(launch.wait_for("launch: 0 processes have a host, 1 are needed; waiting"));
  hold.release();
  std::filesystem::remove(folder / "goes");
  const Outcome outcome = launch.wait();
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  // More of them if the command once did not answer in time.
  CHECK(events(folder / "run", "start").size() >= 2);
  CHECK(events(folder / "run", "leaving").size() >= 1);
}

TEST_CASE("a launch leaves out hosts that say that they are taken away", "[launch]") {
  const TempDir folder;
  write_file(folder / "hosts", "n[1-4]\n");
  // Runs what it is given in a shell, as ssh does; n4 is not there.
  write_program(folder / "agent", "#!/bin/sh\nexport HOST=$1\nshift\ntest $HOST != n4 || exit 255\nexec sh -c \"$*\"\n");
  const auto asked = [&](const std::string& notice) {
    const Args options = {"--hostfile",       "hosts", "--agent",    "./agent", "--min-workers", "9",
                          "--notice-command", notice,  "--patience", "0"};
    const Outcome outcome = run_program(folder.path(), launched(options, quick_training("run")));
    CHECK(outcome.code == 8);
    return outcome.out + outcome.err;
  };
  // Quotes of all kinds arrive as they are.
  const std::string one = asked("case \"$HOST\" in 'n2') true;; *) false;; esac");
  INFO(one);
  CHECK(has(one, "launch: n2 is about to be taken away"));
  CHECK(!has(one, "n1 is about"));
  CHECK(has(one, "3 processes have a host, 9 are needed after 0 s"));
  CHECK(has(one, "launch: cannot be reached: n4 (ended with 255)"));
  // A command that does not answer says nothing of the host.
  CHECK(has(asked("test \"$HOST\" = n3 && sleep 60; false"), "4 processes have a host, 9 are needed"));
  REQUIRE(events(folder / "run", "leaving").size() == 1);
  CHECK(events(folder / "run", "leaving")[0]["host"] == "n2");
}

TEST_CASE("a launched run that cannot work is not started again and again", "[launch][mpi]") {
  const TempDir folder;
  Args wrong = long_training("run");
  *(std::find(wrong.begin(), wrong.end(), "--net") + 1) = "tinny";
  const Outcome usage = run_program(folder.path(), launched({}, wrong), mpi_settings());
  CHECK(usage.code == 2);
  CHECK(has(usage.err, "gave up after 1 starts"));
  CHECK(has(usage.err, "tinny"));
  const Outcome few = run_program(folder.path(), launched({"--local", "2"}, {"train", "gpt", "--data", "x.txt", "--net", "tiny",
                                                                             "--tensor", "3", "--out", "few"}));
  CHECK(few.code == 2);
  CHECK(has(few.err, "--local: 2 processes; expected at least 3, which one copy of the net takes"));
  const Outcome missing = run_program(folder.path(), launched({"--mpirun", "./no-such-mpirun"}, long_training("run")));
  CHECK(missing.code == 5);
  CHECK(has(missing.err, "./no-such-mpirun: cannot be started: No such file or directory"));
  // A launcher that fails for a reason of its own.
  write_program(folder / "broken", "#!/bin/sh\necho no network today\nexit 9\n");
  const Outcome broken =
      run_program(folder.path(), launched({"--mpirun", "./broken", "--attempts", "2"}, long_training("run")));
  CHECK(broken.code == 8);
  CHECK(has(broken.err, "gave up after 2 starts; the first failure was: mpirun ended with 9"));
  CHECK(has(broken.err, "no network today"));
}

TEST_CASE("a launch reads host files and lists, asks every host, and waits for enough", "[launch]") {
  const TempDir folder;
  write_file(folder / "hosts", "# two racks\nn[08-10] slots=2\n\nlogin,a[1,3]-b slots=1 max_slots=4\n");
  // Notes whom it was asked about; nobody answers but n09.
  write_program(folder / "agent", "#!/bin/sh\necho \"$@\" >> asked\ntest \"$1\" = n09\n");
  const Args options = {"--hostfile", "hosts", "--agent", "./agent", "--min-workers", "4", "--patience", "0"};
  const Outcome outcome = run_program(folder.path(), launched(options, quick_training("run")));
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 8);
  CHECK(has(outcome.err, "3 processes have a host, 4 are needed"));
  const std::string asked = read_file(folder / "asked");
  for (const char* host : {"n08 true\n", "n09 true\n", "n10 true\n", "login true\n", "a1-b true\n", "a3-b true\n"}) {
    INFO(host);
    CHECK(has(asked, host));
  }
  const auto error_of = [&](const std::string& hosts) {
    write_file(folder / "hosts", hosts);
    const Outcome wrong = run_program(folder.path(), launched({"--hostfile", "hosts"}, quick_training("run")));
    CHECK(wrong.code == 2);
    return wrong.err;
  };
  // It waited ten minutes for hosts that nothing could name.
  const Outcome few =
      run_program(folder.path(), launched({"--local", "2", "--min-workers", "5"}, quick_training("few")), mpi_settings());
  CHECK(few.code == 2);
  CHECK(has(few.err, "--min-workers: 5; expected at most the 2 processes of this machine"));
  CHECK(has(error_of("# none\n"), "hosts: no hosts; expected a host per line"));
  CHECK(has(error_of("a slots=x\n"), "hosts:1: 'x' is not a number"));
  CHECK(has(error_of("a\nb slots=0\n"), "hosts:2: slots=0; expected at least 1"));
  CHECK(has(error_of("a cores=2\n"), "hosts:1: 'cores=2' is not known; expected slots=N"));
  CHECK(has(error_of("n[1-3\n"), "hosts:1: the brackets of 'n[1-3' do not match"));
  CHECK(has(error_of("n[1,]\n"), "hosts:1: '' is not a number"));
  CHECK(has(error_of("n[0-999999999]\n"), "hosts:1: more than 100000 hosts"));
  CHECK(has(error_of("n[5-3]\n"), "hosts:1: the range 5-3 ends before it begins"));
  CHECK(has(error_of("n[[1]]\n"), "hosts:1: the brackets of 'n[[1]]' do not match"));
  CHECK(has(error_of("n" + std::string(40000, '[') + "\n"), "do not match"));
  // Once per pair of brackets it went one call deeper, until there was no stack.
  std::string brackets = "n";
  for (int i = 0; i < 40000; ++i) brackets += "[1]";
  CHECK(has(error_of(brackets + "\n"), "hosts:1: 'n[1][1]"));
  CHECK(has(error_of("n[0-999][0-999]\n"), "hosts:1: more than 100000 hosts"));
  CHECK(has(error_of("n[0-99999]\nm\n"), "hosts:2: more than 100000 hosts"));
  // The sum was 0 then.
  CHECK(has(error_of("a\na slots=18446744073709551615\n"), "hosts:2: host a has more than 100000 slots"));
  CHECK(has(error_of("a slots=18446744073709551616\n"), "hosts:1: '18446744073709551616' is not a number"));
  // Each host was looked for among all before it.
  CHECK(has(error_of("n[0-99999]\nn[0-99999]\na slots=0\n"), "hosts:3: slots=0"));
  CHECK(has(error_of("-oProxyCommand=x\n"), "hosts:1: '-oProxyCommand=x' is not the name of a host"));
  CHECK(run_program(folder.path(), launched({"--hostfile", "nowhere"}, quick_training("run"))).code == 3);

  CHECK(has(run_program(folder.path(), launched({}, with(quick_training("run"), {"--search", "layer1.width=64,128"}))).err,
            "--search trains several nets"));
  CHECK(has(run_program(folder.path(), {"launch", "--local", "2"}).err,
            "expected `-- train binary|clip|cnn|dalle|dvae|gpt ...`"));
  CHECK(has(run_program(folder.path(), {"launch", "--", "eval", "x"}).err,
            "expected `-- train binary|clip|cnn|dalle|dvae|gpt ...`"));
  CHECK(has(run_program(folder.path(), {"launch", "--", "train", "binary", "--data", "synth"}).err, "needs --out FOLDER"));
}

TEST_CASE("the log of a launched run does not follow symbolic links, and the run goes on without it", "[launch][mpi]") {
  const TempDir folder;
  write_file(folder / "precious", "all of it\n");
  std::filesystem::create_symlink("precious", folder / "run.launch.jsonl");
  const Outcome outcome = run_program(folder.path(), launched({"--local", "1"}, quick_training("run")), mpi_settings());
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  CHECK(read_file(folder / "precious") == "all of it\n");
  CHECK(has(outcome.err, "run.launch.jsonl': it is a symbolic link"));
}
