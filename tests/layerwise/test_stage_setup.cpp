// Stages that cannot work are refused before anything is trained.
#include "layerwise/stage_setup.h"

#include <string>
#include <vector>

#include "tests/layerwise/cases.h"
#include "tests/layerwise/small_stage.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

// The complaint about a stage, "no error" without one.
std::string stage_complaint(const StageCase& c) {
  const NetSpec net = parse_net(c.net, "net.json");
  const std::vector<LayerGeometry> geometries = derive_geometry(net, 12, 12, 64);
  std::vector<BinaryLayer> layers;
  for (std::size_t i = 0; i < geometries.size(); ++i) layers.emplace_back(net.layers[i], geometries[i]);
  return message_of(ErrorKind::usage, [&] { check_stage(c.stage, layers, stage_images(), c.options, 1); });
}

std::string no_gradient_for(const std::string& layer) { return "stage 's': no gradient comes to layer '" + layer + "'"; }

}  // namespace

// Such a layer stayed as it was drawn, and nobody was told.
TEST_CASE("a layer that no head's gradient reaches is refused", "[stage]") {
  StageCase joint = stage_cases()[2];  // b reads a, and has the head
  CHECK(stage_complaint(joint) == "no error");
  joint.stage.passes_gradient = false;
  CHECK(stage_complaint(joint) == no_gradient_for("a") +
                                      "; expected a head of its own, or a layer of the stage that reads it and passes its "
                                      "gradient");
  joint.stage.heads = {"a", "b"};
  CHECK(stage_complaint(joint) == "no error");
  joint.stage.passes_gradient = true;
  joint.stage.heads = {"a"};
  CHECK(has(stage_complaint(joint), no_gradient_for("b")));
}

TEST_CASE("a layer is refused when no reader of it in the stage leads to a head", "[stage]") {
  const auto net_with = [](const char* inputs_of_b) {
    return std::string("{") + thermometer +
           R"(, "layers": [{"name": "a", "width": 40}, {"name": "x", "inputs": ["a"], "width": 16},
        {"name": "b", "inputs": [")" +
           inputs_of_b + R"("], "width": 24}]})";
  };
  StageCase c = stage_cases()[2];
  c.stage.train = {"a", "x", "b"};
  c.net = net_with("x");
  CHECK(stage_complaint(c) == "no error");
  c.net = net_with("a");
  CHECK(has(stage_complaint(c), no_gradient_for("x")));
  c.net = net_with("input");
  CHECK(has(stage_complaint(c), no_gradient_for("x")));
  c.stage.train = {"a", "b"};
  CHECK(has(stage_complaint(c), no_gradient_for("a")));
  c.stage.train = {"b"};
  CHECK(stage_complaint(c) == "no error");
}

TEST_CASE("a block below a layer that passes no gradient needs a head of its own", "[stage]") {
  StageCase c = stage_cases()[2];
  c.net = std::string("{") + thermometer + R"(, "layers": [{"name": "a", "width": 40}, {"name": "x", "width": 16},
      {"name": "b", "inputs": ["x", "a"], "width": 24, "passes_gradient": false}],
      "stages": [{"train": ["a", "x", "b"]}]})";
  c.stage.train = {"a", "x", "b"};
  CHECK(has(stage_complaint(c), no_gradient_for("x")));
  c.stage.heads = {"a", "b"};
  CHECK(has(stage_complaint(c), no_gradient_for("x")));
  c.stage.heads = {"x", "b"};
  CHECK(stage_complaint(c) == "no error");
}

TEST_CASE("exact loss changes that may come late and count all the same are refused", "[stage]") {
  StageCase exact = stage_cases()[4];
  StageCase window = stage_cases()[0];
  for (StageCase* c : {&exact, &window}) {
    c->options.workers = 6;
    c->options.sparse = true;
    CHECK(stage_complaint(*c) == "no error");
    c->options.exchange.tree.quorum = 0.5;
  }
  CHECK(has(stage_complaint(exact), "`threshold`: 0 with `signal` exact and a `quorum` of 0.5"));
  CHECK(stage_complaint(window) == "no error");
  StageCase dropping = exact;
  dropping.options.exchange.tree.late = mpi::Late::drop;
  CHECK(stage_complaint(dropping) == "no error");
  exact.options.exchange.threshold = 1.5;
  CHECK(stage_complaint(exact) == "no error");
}
