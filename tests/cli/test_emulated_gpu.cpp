// The program with a GPU, which the CPU emulates: what --device does, and that a GPT trains there as on the CPU.
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/metrics.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

Args two_steps(const std::string& device, const std::string& out) {
  return {"train",   "gpt", "--data",  "text.txt", "--net", "tiny", "--layers",    "1", "--width",  "16",   "--heads",   "2",
          "--batch", "2",   "--steps", "2",        "--out", out,    "--log-every", "1", "--device", device, "--context", "8"};
}

void write_numbers(const TempDir& folder) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += fmt::format("{} and {}\n", i % 10, i % 7);
  write_file(folder / "text.txt", text);
}

std::vector<double> losses_of(const std::filesystem::path& run) {
  std::vector<double> losses;
  for (const nlohmann::json& line : read_metrics(run / "metrics.jsonl")) {
    if (line.contains("loss")) losses.push_back(line["loss"]);
  }
  return losses;
}

}  // namespace

TEST_CASE("the program shows an emulated GPU and takes no other", "[gpu]") {
  const TempDir folder;
  const Outcome info = run_on_emulated_gpu(folder.path(), {"info"});
  REQUIRE(info.code == 0);
  CHECK(has(info.out, "cuda:0: emulated, 1.0 GiB of 1.0 GiB free, compute capability 8.0"));
  CHECK(has(info.out, "float backends   cpu, ref, cuda\n  kernels        "));
  write_file(folder / "text.txt", std::string(4000, 'a'));
  const Outcome other = run_on_emulated_gpu(folder.path(), two_steps("cuda:1", "run"));
  CHECK(other.code == 2);
  CHECK(has(other.err, "--device: cuda:1: there is one emulated GPU"));
}

TEST_CASE("the program says so where it has no code for a GPU", "[gpu]") {
  const TempDir folder;
  const std::string other = "BITLOOM_EMULATED_ARCHITECTURES=90a-real";
  const std::string problem =
      "it has compute capability 8.0, and this program was compiled for 9.0a: configure it with -DCMAKE_CUDA_ARCHITECTURES=80";
  const Outcome info = run_on_emulated_gpu(folder.path(), {"info"}, {other});
  CHECK(has(info.out, "1 multiprocessors; cannot be used: " + problem));
  write_file(folder / "text.txt", std::string(4000, 'a'));
  const Outcome train = run_on_emulated_gpu(folder.path(), two_steps("cuda:0", "run"), {other});
  CHECK(train.code == 2);
  CHECK(has(train.err, "--device: cuda:0: " + problem));
}

TEST_CASE("a process that sees one GPU takes that, whatever its number on the host", "[gpu]") {
  const TempDir folder;
  write_file(folder / "text.txt", std::string(4000, 'a'));
  const std::string second = "OMPI_COMM_WORLD_LOCAL_RANK=1";
  const Outcome own = run_on_emulated_gpu(folder.path(), two_steps("cuda", "own"), {second, "CUDA_VISIBLE_DEVICES=5"});
  INFO(own.err);
  CHECK(own.code == 0);
  // Two processes on a host with one GPU: it is not shared without being asked.
  const Outcome shared = run_on_emulated_gpu(folder.path(), two_steps("cuda", "shared"), {second});
  CHECK(shared.code == 2);
  CHECK(has(shared.err, "--device: cuda:1: there is one emulated GPU"));
}

TEST_CASE("a GPT trains on an emulated GPU as on the CPU, and goes on", "[gpu]") {
  const TempDir folder;
  write_numbers(folder);
  const Outcome cpu = run_program(folder.path(), two_steps("cpu", "cpu"));
  REQUIRE(cpu.code == 0);
  const Outcome gpu = run_on_emulated_gpu(folder.path(), two_steps("cuda:0", "gpu"));
  INFO(gpu.err);
  REQUIRE(gpu.code == 0);
  CHECK(has(gpu.out, "backend cuda"));
  for (const char* device : {"cpu", "gpu"}) {
    const Args resume = {"train", "gpt", "--resume", "--out", device, "--steps", "3"};
    const Outcome more =
        device == std::string("cpu") ? run_program(folder.path(), resume) : run_on_emulated_gpu(folder.path(), resume);
    INFO(more.err);
    REQUIRE(more.code == 0);
  }
  const std::vector<double> expected = losses_of(folder / "cpu");
  const std::vector<double> losses = losses_of(folder / "gpu");
  REQUIRE(losses.size() == expected.size());
  REQUIRE(losses.size() >= 4);
  for (std::size_t i = 0; i < losses.size(); ++i) CHECK(std::abs(losses[i] - expected[i]) < 1e-3);
}

TEST_CASE("a GPT in f16 with scales of blocks trains on an emulated GPU as on the CPU", "[gpu]") {
  const TempDir folder;
  write_numbers(folder);
  const Args scaled = {"--dtype", "f16", "--loss-scale", "blocks"};
  const Outcome cpu = run_program(folder.path(), with(two_steps("cpu", "cpu"), with(scaled, {"--backend", "ref"})));
  INFO(cpu.err);
  REQUIRE(cpu.code == 0);
  const Outcome gpu = run_on_emulated_gpu(folder.path(), with(two_steps("cuda:0", "gpu"), scaled));
  INFO(gpu.err);
  REQUIRE(gpu.code == 0);
  const std::vector<double> expected = losses_of(folder / "cpu");
  const std::vector<double> losses = losses_of(folder / "gpu");
  REQUIRE(losses.size() == expected.size());
  REQUIRE(losses.size() >= 2);
  for (std::size_t i = 0; i < losses.size(); ++i) CHECK(losses[i] == Approx(expected[i]).epsilon(2e-3));
}
