#include "layerwise/train_options.h"

#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

TEST_CASE("thresholds whose bounds and start do not suit one another are refused", "[train_options]") {
  TrainOptions options;
  StageSpec stage;
  stage.name = "s";
  CHECK(for_stage(options, stage).layer.initial_offset == -1);
  const auto message = [&] { return message_of(ErrorKind::usage, [&] { for_stage(options, stage); }); };
  stage.options = {{"largest_offset", -3}};
  CHECK(message() == "stage 's': smallest_offset: -2 is above the largest offset, -3");
  stage.options = {{"largest_offset", -1.5}};
  CHECK(message() == "stage 's': initial_offset: -1 is not between the smallest offset, -2, and the largest, -1.5");
  stage.options.clear();
  options.layer.initial_offset = 1;
  CHECK(message() == "`initial_offset`: 1 is not between the smallest offset, -2, and the largest, 0");
}

TEST_CASE("Muon or second moments of a stage give way to what a run asks for", "[train_options]") {
  struct Momentum {
    double muon, moments;
    bool operator==(const Momentum&) const = default;
  };
  StageSpec stage;
  const auto momentum = [&](auto change) {
    TrainOptions options;
    change(options);
    const TrainOptions own = for_stage(options, stage);
    return Momentum{own.layer.muon_momentum, own.layer.second_moment_decay};
  };
  const auto nothing = [](TrainOptions&) {};
  const auto topk = [](TrainOptions& o) { o.layer.rule.name = "topk"; };
  const auto exact = [](TrainOptions& o) { o.signal = "exact"; };
  const auto frozen = [](TrainOptions& o) { o.layer.learn_weights = false; };
  const auto moments = [](TrainOptions& o) { o.layer.second_moment_decay = 0.98; };
  const auto muon = [](TrainOptions& o) { o.layer.muon_momentum = 0.8; };

  stage.options = {{"muon_momentum", 0.9}};
  CHECK(momentum(nothing) == Momentum{0.9, 0});
  CHECK(momentum(muon) == Momentum{0.9, 0});
  CHECK(momentum(topk) == Momentum{0, 0});
  CHECK(momentum(exact) == Momentum{0, 0});
  CHECK(momentum(frozen) == Momentum{0, 0});
  CHECK(momentum(moments) == Momentum{0, 0.98});

  stage.options = {{"second_moment_decay", 0.9}};
  CHECK(momentum(nothing) == Momentum{0, 0.9});
  CHECK(momentum(muon) == Momentum{0.8, 0});
  CHECK(momentum(topk) == Momentum{0, 0.9});

  // A stage that contradicts itself is refused where it is set up.
  stage.options = {{"muon_momentum", 0.9}, {"second_moment_decay", 0.9}};
  CHECK(momentum(nothing) == Momentum{0.9, 0.9});

  // A run that does so, or asks for Muon under another rule, too.
  using Own = std::map<std::string, double>;
  for (const Own& own : {Own{}, Own{{"muon_momentum", 0.8}}, Own{{"second_moment_decay", 0.98}}}) {
    stage.options = own;
    CHECK(momentum([&](TrainOptions& o) { muon(o), topk(o), moments(o); }) == Momentum{0.8, 0.98});
  }
}

TEST_CASE("whatever the result depends on is in the description of the options", "[train_options]") {
  const TrainOptions plain;
  const auto changed = [&](auto change) {
    TrainOptions options;
    change(options);
    return describe(options) != describe(plain);
  };
  CHECK(describe(plain) == describe(TrainOptions{}));
  CHECK(changed([](TrainOptions& o) { o.batch = 1; }));
  CHECK(changed([](TrainOptions& o) { o.seed = 7; }));
  CHECK(changed([](TrainOptions& o) { o.augment.flip = true; }));
  CHECK_FALSE(changed([](TrainOptions& o) { o.augment_copies = 2; }));  // copies of images that are not augmented
  const auto with_flip = [](std::size_t copies) {
    TrainOptions options;
    options.augment.flip = true;
    options.augment_copies = copies;
    return describe(options);
  };
  CHECK(with_flip(0) != with_flip(1));
  CHECK(with_flip(1) != with_flip(2));
  CHECK(changed([](TrainOptions& o) { o.head_learning_rate = 1; }));
  CHECK(changed([](TrainOptions& o) { o.head_decay = 1; }));
  CHECK(changed([](TrainOptions& o) { o.label_smoothing = 0.3; }));
  CHECK(changed([](TrainOptions& o) { o.final_rate = 0.3; }));
  CHECK(changed([](TrainOptions& o) { o.warmup_steps = 1; }));
  CHECK(changed([](TrainOptions& o) { o.head_warmup_steps = 1; }));
  CHECK(changed([](TrainOptions& o) { o.repeat = 2; }));
  CHECK_FALSE(changed([](TrainOptions& o) { o.counts_limit = 1; }));  // only how it is computed
  CHECK(changed([](TrainOptions& o) { o.layer.threshold_learning_rate = 1; }));
  CHECK(changed([](TrainOptions& o) { o.layer.initial_offset = 1; }));
  CHECK(changed([](TrainOptions& o) { o.layer.active_share = 0.5; }));
  CHECK(changed([](TrainOptions& o) { o.layer.final_active_share = 0.5; }));
  CHECK(changed([](TrainOptions& o) { o.layer.initial_window = 1; }));
  CHECK(changed([](TrainOptions& o) { o.layer.largest_window = 1; }));
  CHECK(changed([](TrainOptions& o) { o.layer.smallest_offset = -9; }));
  CHECK(changed([](TrainOptions& o) { o.layer.largest_offset = 9; }));
  CHECK(changed([](TrainOptions& o) { o.layer.learn_weights = false; }));
  CHECK(changed([](TrainOptions& o) { o.layer.second_moment_decay = 0.9; }));
  CHECK(changed([](TrainOptions& o) { o.layer.muon_momentum = 0.9; }));
  CHECK(changed([](TrainOptions& o) { o.layer.rule.name = "topk"; }));
  CHECK(changed([](TrainOptions& o) { o.layer.rule.learning_rate = 1; }));
  CHECK(changed([](TrainOptions& o) { o.layer.rule.momentum = 0; }));
  CHECK(changed([](TrainOptions& o) { o.layer.rule.flip_share = 1; }));
  CHECK(changed([](TrainOptions& o) { o.layer.rule.flip_rate = 1; }));
  CHECK(changed([](TrainOptions& o) { o.layer.rule.dead_zone = 1; }));
}
