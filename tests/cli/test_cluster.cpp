// The examples of scripts/cluster: the shell of a Slurm task (tests/hosts/test_slurm.py has it under Slurm itself), and the
// commands of Kubernetes jobs, run as their pods would.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>

#include "core/file.h"
#include "tests/cli/gpt_run.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

std::filesystem::path example(const std::string& name) { return source_folder() / "scripts/cluster" / name; }

// `text` with `to` wherever it has `from`, which it has.
std::string with_other(std::string text, const std::string& from, const std::string& to) {
  std::size_t at = text.find(from);
  INFO(from << " in " << text);
  REQUIRE(at != std::string::npos);
  for (; at != std::string::npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
  return text;
}

// The lines of bash that a container of that name is given: the block scalar under its `args`.
std::string command_of(const std::string& file, const std::string& container) {
  const std::string text = read_text(example(file));
  const std::size_t begin = text.find("- name: " + container + "\n");
  REQUIRE(begin != std::string::npos);
  const std::size_t bash = text.find("command: [bash, -c]\n", begin);
  const std::string mark = "- |\n";
  const std::size_t at = text.find(mark, bash);
  REQUIRE(at != std::string::npos);
  const std::size_t column = at - (text.rfind('\n', at) + 1);
  std::string command;
  std::size_t line = at + mark.size();
  while (line < text.size()) {
    const std::size_t end = text.find('\n', line);
    const std::size_t indent = text.find_first_not_of(' ', line) - line;
    if (indent <= column) break;
    command += text.substr(line + column + 2, end + 1 - line - column - 2);
    line = end + 1;
  }
  REQUIRE(!command.empty());
  return command;
}

// That command for a net that is trained within seconds, in `folder` in place of the volume, held before step 38.
void write_command(const std::filesystem::path& folder, const std::string& file, const std::string& container) {
  const Args quick = quick_gpt("run", 90);
  std::string options = "--keep last --hold " + (folder / "hold").string();
  for (auto option = std::find(quick.begin(), quick.end(), "--net"); option + 2 != quick.end(); ++option)
    options += " " + *option;
  std::string command = with_other(command_of(file, container), "/runs", folder.string());
  command = with_other(command, "--net small --batch 16 --steps 20000", options);
  write_file(folder / "command", command);
  write_file(folder / "hold", "38");
  write_text(folder / "text.txt");
  std::filesystem::create_directories(folder / "bin");
  std::filesystem::create_symlink(BITLOOM_PROGRAM, folder / "bin/bitloom");
}

// Shell: `seen TEXT FILE...` waits until each of these files has the text.
constexpr const char* seen = R"(
export PATH="$PWD/bin:$PATH"
seen() {
  local text=$1 file
  shift
  for file in "$@"; do
    for ((i = 0; i < 3000; ++i)); do
      if grep -qs -- "$text" "$file"; then continue 2; fi
      sleep 0.1
    done
    echo "$file lacks '$text':" && cat "$file"
    exit 1
  done
}
)";

// Task 2 of array 17, which is signalled when its trainer, this script, has printed "begun"; held: before its shell has taken
// the trainer's number. Its output has what it asked of scontrol.
Outcome signalled_task(const std::string& trainer, const std::string& signal, bool held = false) {
  const TempDir folder;
  write_program(folder / "bitloom", trainer);
  write_program(folder / "scontrol", "#!/bin/sh\necho scontrol \"$@\"\n");
  const std::string hold =
      R"(trap '[[ $BASH_COMMAND != "trainer=\$!" ]] || until [[ -e signalled ]]; do sleep 0.02; done' DEBUG)";
  write_file(folder / "begin", held ? hold : "");
  return run_shell(folder.path(), seen + fmt::format(R"(
export PATH="$PWD:$PATH" BITLOOM=./bitloom SLURM_ARRAY_TASK_ID=2 SLURM_ARRAY_JOB_ID=17 SLURM_JOB_ID=17
BASH_ENV=begin '{}' runs >out &
seen begun out
kill -{} $!
touch signalled
code=0
wait $! || code=$?
cat out
exit $code
)",
                                                     example("local-workers.sbatch").string(), signal));
}

}  // namespace

// A run does not remember all options: a task that was taken away once went on without --watchdog-seconds.
TEST_CASE("a task of a Slurm array goes on with all its options", "[gpt][local]") {
  const TempDir folder;
  write_program(folder / "bitloom", "#!/bin/sh\necho \"$@\"\n");
  const std::string script = example("local-workers.sbatch").string();
  const auto started = [&] {
    const Outcome outcome =
        run_shell(folder.path(), "export BITLOOM=./bitloom SLURM_ARRAY_TASK_ID=2 SLURM_ARRAY_JOB_ID=1\n'" + script +
                                     "' runs cnn --net tiny --watchdog-seconds 60 --notice-command 'no notice'");
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 0);
    return outcome.out;
  };
  const std::string options =
      "train cnn --net tiny --watchdog-seconds 60 --notice-command no notice --exchange local --through runs/shared --worker "
      "worker-2";
  CHECK(started() == options + " --out runs/worker-2\n");
  std::filesystem::create_directories(folder / "runs/worker-2");
  write_file(folder / "runs/worker-2/options.ini", "");
  CHECK(started() == options + " --resume --out runs/worker-2\n");
}

// One whose job had the array's number put all others back with it, and what was cancelled came back. A signal that came before
// the task knew its trainer's number was lost.
TEST_CASE("a task of a Slurm array puts itself back alone, and not when it was cancelled", "[gpt][local]") {
  const std::string trainer = "#!/bin/sh\ntrap 'exit 4' TERM\necho begun\nfor i in $(seq 1200); do sleep 0.05; done\n";
  for (const bool held : {false, true}) {
    const Outcome out_of_time = signalled_task(trainer, "USR1", held);
    INFO(out_of_time.err);
    CHECK(out_of_time.code == 4);
    CHECK(out_of_time.out == "begun\nscontrol requeue 17_2\n");
    const Outcome cancelled = signalled_task(trainer, "TERM", held);
    INFO(cancelled.err);
    CHECK(cancelled.code == 4);
    CHECK(cancelled.out == "begun\n");
  }
}

TEST_CASE("a task of a Slurm array whose trainer did not know signals yet is put back, too", "[gpt][local]") {
  const Outcome outcome = signalled_task("#!/bin/sh\necho begun\nexec sleep 60\n", "USR1");
  INFO(outcome.err);
  CHECK(outcome.code == 143);
  CHECK(outcome.out == "begun\nscontrol requeue 17_2\n");
}

TEST_CASE("pods of an indexed job learn together, and one that was taken away goes on", "[gpt][local]") {
  const TempDir folder;
  write_command(folder.path(), "local-workers.yaml", "worker");
  const std::string job = read_text(example("local-workers.yaml"));
  REQUIRE(has(job, "completions: 4\n"));
  REQUIRE(has(job, "parallelism: 4\n"));
  // The program gets the signal of its pod itself. On a busy machine a deadline that follows from the time of a round is soon
  // over.
  const std::string script = R"sh(
sed -i 's/--exchange local/& --deadline 300/' command
pod() { JOB_COMPLETION_INDEX=$1 OMP_NUM_THREADS=1 exec bash -c "$(cat command)" >>log-$1 2>&1; }
for index in 0 1 2 3; do
  pod $index &
  pods[index]=$!
done
seen 'step 36/90: ' log-{0,1,2,3}
kill -TERM ${pods[1]}
code=0
wait ${pods[1]} || code=$?
echo "stopped: $code"
pod 1 &
pods[1]=$!
seen 'going on from step 39' log-1
rm hold
for index in 0 1 2 3; do wait ${pods[index]} || { echo "$index failed" && cat log-$index; }; done
)sh";
  const Outcome outcome = run_shell(folder.path(), seen + script);
  INFO(outcome.err);
  CHECK(outcome.out == "stopped: 4\n");
  CHECK(outcome.code == 0);
  CHECK(has(read_text(folder / "log-0"), "2 times that of one process with such batches, for 4 workers"));
  for (int index = 1; index < 4; ++index) {
    const std::string model = fmt::format("gpt/worker-{}/model.safetensors", index);
    CHECK(same_tensors(folder / "gpt/worker-0/model.safetensors", folder / model));
  }
}

TEST_CASE("processes that the MPI operator starts go on where they were killed", "[gpt][local]") {
  const TempDir folder;
  write_command(folder.path(), "mpijob.yaml", "launcher");
  write_file(folder / "hostfile", "localhost slots=2\n");
  // Variables of the operator (v2beta1, Open MPI), and of the file itself.
  const std::string script = R"sh(
export OMPI_MCA_orte_keep_fqdn_hostnames=true OMPI_MCA_orte_default_hostfile="$PWD/hostfile" OMPI_MCA_orte_set_default_slots=1
export OMPI_MCA_plm_rsh_args='-o ConnectionAttempts=10' OMP_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
sed -i 's/--exchange local/& --quorum 1/' command
launcher() { exec bash -c "$(cat command)" >>log 2>&1; }
launcher &
seen 'step 36/90: ' log
until [[ -n $(ls gpt/exchange/replies) ]]; do sleep 0.1; done
ranks=($(pgrep -P $!))
kill -KILL ${ranks[1]}
code=0
wait $! || code=$?
echo "killed: ${#ranks[@]} ranks, $((code > 0))"
rm hold
launcher &
wait $! || { echo failed && cat log; }
)sh";
  const Outcome outcome = run_shell(folder.path(), seen + script);
  INFO(outcome.err);
  CHECK(outcome.out == "killed: 2 ranks, 1\n");
  CHECK(outcome.code == 0);
  CHECK(has(read_text(folder / "log"), "joins the 2 workers of this job after round 1"));
  const auto other = std::filesystem::directory_iterator(folder / "gpt/workers")->path();
  CHECK(same_tensors(folder / "gpt/model.safetensors", other / "model.safetensors"));
}
