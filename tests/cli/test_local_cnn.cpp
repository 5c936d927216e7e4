// bitloom train cnn --exchange local: nets with batch norm, whose moving statistics each worker has for itself.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/metrics.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/events.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

Args local_cnn(const std::string& out, const Args& more = {}) {
  const Args common = {"train",
                       "cnn",
                       "--data",
                       "synth",
                       "--net",
                       "tiny",
                       "--max-train",
                       "2400",
                       "--max-test",
                       "200",
                       "--validation",
                       "100",
                       "--batch",
                       "40",
                       "--steps",
                       "120",
                       "--evaluate-every",
                       "20",
                       "--exchange",
                       "local",
                       "--inner-steps",
                       "20",
                       "--sent-share",
                       "0.5",
                       "--value-bits",
                       "8",
                       "--out"};
  return with(with(common, {out}), more);
}

// Compares parameters alone, not moving statistics.
bool same_parameters(const std::filesystem::path& a, const std::filesystem::path& b) { return same_tensors(a, b, ".moving_"); }

}  // namespace

TEST_CASE("workers train one convolutional net through a folder", "[cnn][local]") {
  const TempDir folder;
  const auto worker = [](const std::string& name) {
    return local_cnn(name, {"--through", "shared", "--worker", name, "--workers", "2", "--deadline", "300"});
  };
  Background a(folder.path(), worker("a"));
  Background b(folder.path(), worker("b"));
  for (Background* each : {&a, &b}) {
    const Outcome outcome = each->wait();
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(has(outcome.out, "local steps: worker "));
    CHECK(has(read_file(folder / (each == &a ? "a" : "b") / "options.ini"), "\nkept-share = 1\n"));  // nothing fades
    CHECK(has(outcome.out, "1.41 times that of one process with such batches, for 2 workers"));
    CHECK(has(outcome.out, "test accuracy"));
  }
  CHECK(same_parameters(folder / "a/model.safetensors", folder / "b/model.safetensors"));
  CHECK_FALSE(same_tensors(folder / "a/model.safetensors", folder / "b/model.safetensors"));
  const std::vector<nlohmann::json> exchanges = lines_of(folder / "a", "exchange");
  REQUIRE(exchanges.size() == 6);
  for (const nlohmann::json& line : exchanges) CHECK(line["workers"] == 2);
  // Each saw images of its own.
  CHECK(lines_of(folder / "a", "result").at(0)["training_loss"] != lines_of(folder / "b", "result").at(0)["training_loss"]);
  const double accuracy = lines_of(folder / "a", "test").at(0)["accuracy"];
  CHECK(accuracy > 0.3);
  CHECK(has(run_program(folder.path(), {"train", "cnn", "--resume", "--out", "a"}).out, "more of them need a larger --steps"));
  // One that comes when all is done has the same parameters, and takes its statistics from images alone.
  const Outcome late =
      run_program(folder.path(), local_cnn("late", {"--through", "shared", "--validation", "0", "--evaluate-every", "0"}));
  CHECK(late.code == 2);
  CHECK(has(late.err, "the training images' content"));
  const Outcome last = run_program(folder.path(), with(worker("last"), {"--evaluate-every", "1000"}));
  REQUIRE(last.code == 0);
  CHECK(same_parameters(folder / "a/model.safetensors", folder / "last/model.safetensors"));
  CHECK(std::abs(lines_of(folder / "last", "test").at(0)["accuracy"].get<double>() - accuracy) < 0.1);
  const Outcome other = run_program(folder.path(), local_cnn("c", {"--through", "shared", "--split-seed", "2"}));
  CHECK(other.code == 2);
  CHECK(has(other.err, "workers there train otherwise"));
  CHECK(has(other.err, "the training images' content"));
}

TEST_CASE("moving statistics are of the shared parameters, without validation images, too", "[cnn][local]") {
  const TempDir folder;
  // Next to nothing of what the worker learned arrives in the shared parameters: they stay what they were, whose loss is that
  // of chance; under statistics of the worker's own it would be far above.
  const auto train = [&](const std::string& name) {
    return run_program(folder.path(), local_cnn(name, {"--through", "shared", "--inner-steps", "120", "--sent-share", "0.001",
                                                       "--validation", "0", "--evaluate-every", "0"}));
  };
  const Outcome outcome = train("a");
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.code == 0);
  const double loss = lines_of(folder / "a", "test").at(0)["loss"];
  CHECK(loss < 2.5);
  const Outcome last = train("b");
  REQUIRE(last.code == 0);
  CHECK(same_parameters(folder / "a/model.safetensors", folder / "b/model.safetensors"));
  CHECK(std::abs(lines_of(folder / "b", "test").at(0)["loss"].get<double>() - loss) < 0.1);
}

TEST_CASE("workers have the frozen filters of the first one", "[cnn][local]") {
  const TempDir folder;
  write_file(folder / "net.json", R"({"name": "own", "layers": [{"kind": "whitening", "kernel": 2}, {"kind": "activation"},
    {"kind": "max_pool"}, {"kind": "max_pool"}, {"kind": "linear"}], "training": {"learning_rate": 0.1}})");
  const Args common = {"--net", "net.json", "--through", "shared", "--workers", "1"};
  // A model with other filters than those that follow from the images.
  REQUIRE(run_program(folder.path(), {"train", "cnn", "--data", "synth:7", "--max-train", "400", "--max-test", "20", "--net",
                                      "net.json", "--batch", "40", "--steps", "4", "--out", "before"})
              .code == 0);
  const Outcome first = run_program(folder.path(), local_cnn("a", with(common, {"--init", "before"})));
  INFO(first.out << first.err);
  REQUIRE(first.code == 0);
  const Outcome second = run_program(folder.path(), local_cnn("b", common));
  REQUIRE(second.code == 0);
  CHECK(same_parameters(folder / "a/model.safetensors", folder / "b/model.safetensors"));
}

TEST_CASE("a job trains a convolutional net in local steps, stops, and goes on with fewer", "[cnn][local][mpi]") {
  const TempDir folder;
  const Args job = local_cnn("run", {"--quorum", "1", "--deadline", "300"});
  {
    const Hold hold(folder.path(), 33);
    Background stopped(folder.path(), with(job, Hold::option()), 3);
    REQUIRE(stopped.wait_for("step 20/120"));
    kill(stopped.rank(1), SIGTERM);  // the others hear of it
    const Outcome outcome = stopped.wait();
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 4);
    CHECK(has(outcome.err, "bitloom train cnn --resume --out run"));
    hold.release();
  }
  const Args resume = {"train", "cnn", "--resume", "--out", "run"};
  const Outcome again = run_ranks(folder.path(), 2, resume);
  INFO(again.out << again.err);
  REQUIRE(again.code == 0);
  CHECK(has(again.out, "joins the 2 workers of this job after round 1"));
  CHECK(has(again.out, "test accuracy"));
  const std::vector<nlohmann::json> exchanges = lines_of(folder / "run", "exchange");
  REQUIRE(exchanges.size() == 6);
  for (std::size_t i = 0; i < exchanges.size(); ++i) CHECK(exchanges[i]["workers"] == (i < 1 ? 3 : 2));
  const std::string tested = lines_of(folder / "run", "test").at(0).at("accuracy").dump();
  const Outcome done = run_ranks(folder.path(), 2, resume);
  CHECK(done.code == 0);
  CHECK(has(done.out, "is finished"));
  // As it is after a kill in the last test.
  std::string left;
  for (const nlohmann::json& line : read_metrics(folder / "run/metrics.jsonl")) {
    if (line["event"] != "test") left += line.dump() + "\n";
  }
  write_file(folder / "run/metrics.jsonl", left);
  const Outcome untested = run_ranks(folder.path(), 2, resume);
  INFO(untested.out << untested.err);
  CHECK(untested.code == 0);
  CHECK(lines_of(folder / "run", "test").at(0).at("accuracy").dump() == tested);
}

TEST_CASE("a job whose workers have a teacher goes on with more", "[cnn][local][mpi]") {
  const TempDir folder;
  const Args teacher = {"train",        "cnn", "--data",  "synth", "--net",   "tiny", "--max-train", "2400",
                        "--validation", "100", "--batch", "40",    "--steps", "30",   "--out",       "teacher"};
  REQUIRE(run_program(folder.path(), teacher).code == 0);
  {
    const Hold hold(folder.path(), 33);
    Background stopped(folder.path(), with(local_cnn("run", {"--teacher", "teacher"}), Hold::option()), 2);
    REQUIRE(stopped.wait_for("step 20/120"));
    kill(stopped.rank(1), SIGTERM);
    CHECK(stopped.wait().code == 4);
    hold.release();
  }
  std::filesystem::rename(folder / "teacher", folder / "gone");
  // The third has no run of its own yet, and the first one's labels.
  const Outcome more = run_ranks(folder.path(), 3, {"train", "cnn", "--resume", "--out", "run"});
  INFO(more.out << more.err);
  REQUIRE(more.code == 0);
  CHECK(has(more.out, "joins the 3 workers of this job"));
}

TEST_CASE("launch makes every process a worker of a convolutional net's local steps", "[cnn][local][launch][mpi]") {
  const TempDir folder;
  // Three do not divide the batch, which is each worker's own.
  const Outcome launched = run_program(folder.path(), with({"launch", "--local", "3", "--"}, local_cnn("run")));
  INFO(launched.out << launched.err);
  REQUIRE(launched.code == 0);
  CHECK(has(launched.out, "joins the 3 workers of this job"));
}

TEST_CASE("processes of one worker share the statistics of a convolutional net", "[cnn][local][mpi]") {
  const TempDir folder;
  const Outcome pairs = run_ranks(folder.path(), 4, local_cnn("run", {"--ranks-per-worker", "2"}));
  INFO(pairs.out << pairs.err);
  REQUIRE(pairs.code == 0);
  CHECK(has(pairs.out, "joins the 2 workers of this job"));
  CHECK(lines_of(folder / "run", "test").at(0)["accuracy"].get<double>() > 0.3);
}

TEST_CASE("local steps of a convolutional net refuse what does not go with them", "[cnn][local]") {
  const TempDir folder;
  const auto error = [&](const Args& more) {
    const Outcome outcome = run_program(folder.path(), local_cnn("run", more));
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 2);
    CHECK_FALSE(std::filesystem::exists(folder / "run/metrics.jsonl"));
    return outcome.err;
  };
  CHECK(has(error({}), "--through: missing; expected the folder that workers share"));
  const Args through = {"--through", "shared"};
  CHECK(has(error(with(through, {"--lookahead", "5"})), "--lookahead: 5 with --exchange local"));
  CHECK(has(error(with(through, {"--average", "0.9"})), "--average: 0.9 with --exchange local"));
  CHECK(has(error(with(through, {"--pipeline", "2"})), "--pipeline: 2 with --exchange local"));
  CHECK(has(error(with(through, {"--shard", "optimizer"})), "--shard: optimizer with --exchange local"));
  CHECK(has(error(with(through, {"--fragments", "3"})), "--fragments: 3; expected a divisor of --inner-steps, 20"));
}
