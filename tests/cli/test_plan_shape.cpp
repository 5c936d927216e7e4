// `plan shape`, as a user asks it.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom::test;

TEST_CASE("plan shape shows the grids of a model of the papers, in its own examples", "[float_plan]") {
  const TempDir folder;
  const std::string common = " --ranks 4 --batch 32 --memory 16GiB --gflops 5000 --json plan.json";
  Args args = with({"plan", "shape", "AmoebaNet-D (18,208)"}, words_of(common));
  const Outcome cells = run_program(folder.path(), args);
  INFO(cells.out << cells.err);
  REQUIRE(cells.code == 0);
  for (const char* text : {"model 'AmoebaNet-D (18,208)': ", "24 layers, stem .. classify", "every image takes ",
                           "4 ranks with 16.0 GiB and 5e+03 GFLOP/s each", "best first: images at once", "images/s",
                           "micro-batches x images", "normal.", "bubble"}) {
    INFO(text);
    CHECK(has(cells.out, text));
  }
  CHECK_FALSE(has(cells.out, "token"));
  const auto json = nlohmann::json::parse(read_file(folder / "plan.json"));
  CHECK(json["model"] == "AmoebaNet-D (18,208)");
  CHECK(json["parameters"].get<double>() > 80e6);
  REQUIRE(json["grids"].size() == 3);  // cells have no heads that tensor ranks could divide
  for (const auto& grid : json["grids"]) {
    CHECK(grid["tensor"] == 1);
    CHECK(grid["images_per_second"].get<double>() * grid["step_seconds"].get<double>() == Approx(32));
    CHECK(grid["fits"] == true);
  }
  // A name without spaces and in lower case is the same model.
  args[2] = "amoebanet-d(18,208)";
  CHECK(run_program(folder.path(), args).out == cells.out);
}

TEST_CASE("plan shape plans a pipeline of Transformer-L as Huang et al. trained it", "[float_plan]") {
  const TempDir folder;
  const Outcome outcome = run_program(
      folder.path(),
      words_of("plan shape transformer-103 --ranks 8 --pipeline 8 --tensor 1 --batch 32 --micro-batch 1 --pipeline-schedule "
               "gpipe --optimizer rmsprop --recompute stage --memory 16GiB --gflops 10000 --json plan.json"));
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(has(outcome.out, "1 x 8 x 1 (data x pipeline x tensor), micro-batches x sequences: 32 x 1"));
  const auto grid = nlohmann::json::parse(read_file(folder / "plan.json"))["grids"][0];
  CHECK(grid["fits"] == true);  // table 1: 103 layers on 8 devices of 16 GiB
  double state = 0;
  for (const auto& stage : grid["stages"]) {
    for (const char* kind : {"parameters", "gradients", "optimizer"}) state += stage["memory"][kind].get<double>();
  }
  CHECK(state / (1024.0 * 1024 * 1024) == Approx(59.5).epsilon(0.01));  // GiB of parameters there
}

TEST_CASE("plan shape refuses models and options that there are not", "[float_plan]") {
  const TempDir folder;
  for (const auto& [options, message] : std::vector<std::pair<std::string, std::string>>{
           {"amoebanet-d(18) --ranks 4", "model 'amoebanet-d(18)'; expected amoebanet-d(L,F) with L (normal cells) 3 to 3000"},
           {"resnet-50 --ranks 4", "unknown model 'resnet-50'; there are amoebanet-d(L,F), transformer-L, t(L,H,A)"},
           {"transformer_3 --ranks 4", "did you mean 'transformer-L'?"},
           {"amoebanet-d(18,208) --ranks 4 --tensor 2",
            "--tensor: 2; expected 1: AmoebaNet-D (18,208) has no attention; possible near by"},
           {"transformer-3 --tensor 2", "--tensor: 2 has no effect; it needs --ranks"},
           {"transformer-3 --ranks 0", "--ranks: '0' is out of range"},
           {"--ranks 4", "MODEL"}}) {
    INFO(options);
    const Outcome outcome = run_program(folder.path(), words_of("plan shape " + options + " --gflops 100 --memory 16GiB"));
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 2);
    CHECK(has(outcome.err, message));
  }
}
