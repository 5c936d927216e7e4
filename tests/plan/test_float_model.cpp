// Float models as plans see them, against printed sizes and the layers of a GPT.
#include "plan/float_model.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "models/dalle/dalle.h"
#include "models/gpt/language_task.h"
#include "plan/float_names.h"
#include "tests/plan/float_plans.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "train/parallel/layer_costs.h"
#include "train/parallel/tensor.h"

using namespace bitloom;
using namespace bitloom::plan;
using bitloom::test::small_config;
using bitloom::test::small_planned_dalle;

TEST_CASE("models of the papers' tables have the parameters that are printed there", "[float_plan]") {
  for (const PaperModel& paper : paper_models()) {
    const auto parameters = static_cast<double>(paper.describe().parameters());
    INFO(paper.name << ": " << parameters);
    const std::string name = paper.name;
    // GPTs and Transformer-L to the last digit that is printed; cells and translation models as their derivation comes out.
    const double tolerance = name.starts_with("GPT")           ? 0.0005e9 / paper.parameters
                             : name.starts_with("Transformer") ? 0.01
                             : name.starts_with("Amoeba")      ? 0.026
                                                               : 0.06;
    CHECK(std::abs(parameters / paper.parameters - 1) < tolerance);
  }
  // Layers of Transformer-L: 12 matrices of the width's square and vectors; two tables and the biases of logits besides.
  CHECK(describe_transformer(13).parameters() ==
        13 * (12ULL * 2048 * 2048 + 13 * 2048) + 2ULL * 32000 * 2048 + 32000 + 2 * 2048);
  // Shoeybi et al. 2019, section 5.1: 50,257 tokens padded to 51,200.
  CHECK(describe_gpt(models::config_of(models::find_gpt("8.3b"))).vocabulary_heads.front().vocabulary == 51200);
}

TEST_CASE("models are found by the names that papers give them", "[float_plan]") {
  for (const PaperModel& paper : paper_models()) {
    INFO(paper.name);
    CHECK(find_model(paper.name).parameters() == paper.describe().parameters());
  }
  CHECK(find_model("amoebanet-d(18,256)").name == "AmoebaNet-D (18,256)");
  CHECK(find_model("transformer-48").parameters() == describe_transformer(48).parameters());
  CHECK(find_model(" t( 6, 8192,16) ").layers.size() == 14);
  CHECK(find_model("8.3b").parameters() == find_model("GPT 8.3B").parameters());
  CHECK(find_model("gpt2-124m").parameters() > 124'000'000);
  for (const auto& [name, message] : std::vector<std::pair<std::string, std::string>>{
           {"resnet-50", "unknown model 'resnet-50'; there are amoebanet-d(L,F), transformer-L, t(L,H,A), tiny, "},
           {"resnet-50", "AmoebaNet-D (36,544)"},
           {"transformer_13", "unknown model 'transformer_13'; did you mean 'transformer-L'?"},
           {"t(6,8192,16", "unknown model 't(6,8192,16'"},
           {"gpt2-125m", "did you mean 'gpt2-124m'?"},
           {"amoebanet-d(18)", "expected amoebanet-d(L,F) with L (normal cells) 3 to 3000 in steps of 3, F (filters) 8 to"},
           {"amoebanet-d(17,208)", "expected amoebanet-d(L,F)"},
           {"amoebanet-d(18,208,1)", "expected amoebanet-d(L,F)"},
           {"amoebanet-d(18,204)", "expected amoebanet-d(L,F)"},
           {"transformer-0", "model 'transformer-0'; expected transformer-L with L (layers) 1 to 10000"},
           {"transformer-10001", "expected transformer-L"},
           {"transformer-", "expected transformer-L"},
           {"t(6,8192,-16)", "A (heads) 1 to 1024"}}) {
    INFO(name);
    const std::string error = test::message_of(ErrorKind::usage, [&] { find_model(name); });
    INFO(error);
    CHECK(test::has(error, message));
  }
}

namespace {

// Each layer of a net beside its description, for an example of this shape. path: numbers of bf16 that one of the identity path
// takes.
void check_layers(const FloatModel& model, nn::Sequence& net, nn::Shape shape, bool recompute, std::uint64_t path = 1) {
  REQUIRE(net.size() == model.layers.size());
  const auto of_one = [](const Elements& elements) { return elements.of(1); };
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const FloatLayer& layer = model.layers[i];
    INFO(layer.name);
    nn::Layer& real = net[i];
    std::vector<nn::Parameter*> parameters = nn::parameters_of(real);
    // Tables that only the loss reads are the description's head.
    std::erase_if(parameters, [](const nn::Parameter* each) { return each->name.starts_with("head."); });
    REQUIRE(layer.parameters.size() == parameters.size());
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      INFO(parameters[p]->name);
      CHECK(layer.parameters[p].elements.of(1) == parameters[p]->shape.size());
      CHECK(layer.parameters[p].is_matrix == parameters[p]->reads_values);
    }
    CHECK(layer.whole_operations + layer.split_operations == Approx(real.cost(shape)).epsilon(1e-12));
    CHECK(layer.output == (i + 1 < model.layers.size() ? path : 1) * real.output(shape).size());
    CHECK(layer.keeps_input == real.keeps_input());
    const auto kept = [&](std::uint64_t value_bytes) {
      return (of_one(layer.values) + of_one(layer.activations)) * value_bytes + of_one(layer.statistics) * 4 +
             layer.integers * 4;
    };
    if (recompute && layer.is_block) {
      CHECK(real.peak_stash_bytes(shape, DType::bf16) == kept(2));
    } else {
      if (path == 1) CHECK(real.stash_bytes(shape, DType::f32) == kept(4));
      CHECK(real.stash_bytes(shape, DType::bf16) == kept(2));
    }
    shape = real.output(shape);
  }
}

}  // namespace

TEST_CASE("a GPT is described as its layers count themselves", "[float_plan]") {
  for (const bool recompute : {false, true}) {
    models::GptConfig config = small_config();
    config.recompute = recompute;
    models::Gpt net(config);
    const FloatModel model = describe_gpt(config);
    CHECK(model.parameters() == config.parameters());
    CHECK(model.operations() == Approx(net.cost({1, config.context})).epsilon(1e-12));
    check_layers(model, net.layers(), {1, config.context}, recompute);
    config.branch_values = DType::bf16;
    models::Gpt wide(config);
    check_layers(describe_gpt(config), wide.layers(), {1, config.context}, recompute, 2);
  }
}

TEST_CASE("a text-to-image transformer is described as its layers count themselves", "[float_plan][dalle]") {
  for (const bool recompute : {false, true}) {
    models::DalleConfig config = small_planned_dalle();
    config.recompute = recompute;
    models::Dalle net(config);
    const FloatModel model = describe_dalle(config);
    CHECK(model.parameters() == config.parameters());
    CHECK(model.operations() == Approx(net.cost(1)).epsilon(1e-12));
    check_layers(model, net.layers(), {1, config.tokens()}, recompute);
    config.branch_values = DType::bf16;
    models::Dalle wide(config);
    check_layers(describe_dalle(config), wide.layers(), {1, config.tokens()}, recompute, 2);
  }
  // In the paper's shapes columns are computed in an order of their own.
  models::DalleConfig full = models::config_of(models::find_dalle("2.8b"));
  full.layers = 3;
  full.text_vocabulary = 100;
  models::Dalle net(full);
  check_layers(describe_dalle(full), net.layers(), {1, full.tokens()}, false);
  // 12 d^2 numbers of the matrices of each of 64 layers, printed as 12 billion parameters (Ramesh et al. 2021, section 2.2).
  models::DalleConfig large = models::config_of(models::find_dalle("12b"));
  large.text_vocabulary = 16384;
  constexpr std::uint64_t d = 3968;
  constexpr std::uint64_t vectors = 13;  // biases of 3 + 1 + 4 + 1 widths, and two norms
  constexpr std::uint64_t tables = (16384 + 256 + 8192) + 256 + 2 * 32 + (16384 + 8192);
  CHECK(describe_dalle(large).parameters() == 64 * (12 * d * d + vectors * d) + tables * d + 2 * d);
  CHECK(64 * 12 * d * d == 12'092'178'432ULL);
}

TEST_CASE("layers that a tensor group divides are planned with the costs by which nets are cut", "[float_plan]") {
  models::GptConfig config = small_config();
  config.vocabulary_multiple = 1;  // 19 rows
  const FloatModel model = describe_gpt(config);
  for (const std::size_t ranks : {1U, 2U, 4U}) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      INFO("rank " << rank << " of " << ranks);
      train::TensorGroup group(rank, ranks);
      models::Gpt net(config, 0, &group);
      models::LanguageTask task(net, 2, {});
      const std::vector<double> costs = train::estimated_costs(net.layers(), task.input_shape(), task.loss_cost());
      REQUIRE(costs.size() == model.layers.size());
      for (std::size_t i = 0; i < costs.size(); ++i) {
        INFO(model.layers[i].name);
        const double head = i + 1 == costs.size() ? model.head_operations_of(ranks) : 0;
        CHECK(costs[i] == Approx(2 * (model.layers[i].operations_of(ranks) + head)).epsilon(1e-12));
      }
    }
  }
}
