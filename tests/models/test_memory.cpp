// Memory that a GPT takes, told before and counted.
#include "models/gpt/memory.h"

#include <cmath>
#include <vector>

#include "tests/models/gpt_nets.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/trainer_state.h"
#include "train/trainer.h"

using namespace bitloom;
using namespace bitloom::models;
using bitloom::test::chains;
using bitloom::test::has;
using bitloom::test::message_of;
using bitloom::test::small_gpt;

TEST_CASE("memory is predicted within 2%, with everything kept, few bits and blocks computed again", "[gpt]") {
  constexpr auto f32 = nn::MasterWeights::f32;
  constexpr auto none = nn::MasterWeights::none;
  for (const auto& [values, masters] :
       {std::pair(DType::f32, f32), std::pair(DType::bf16, f32), std::pair(DType::bf16, none)}) {
    for (const unsigned bits : {0U, 3U}) {
      for (const bool recompute : {false, true}) {
        INFO(dtype_name(values) << ", masters " << (masters == f32) << ", bits " << bits << ", recompute " << recompute);
        GptConfig config = small_gpt();
        config.dropout = 0.1;
        config.activation_bits = bits;
        config.recompute = recompute;
        config.logit_clip = recompute ? 5 : 0;
        nn::Engine engine;
        Gpt net(config);
        LanguageTask task(net, 4, chains(config, 2));
        train::TrainOptions options;
        options.values = values;
        options.micro_batches = 2;
        options.master_weights = masters;
        options.optimizer.average = masters == f32 ? 0.9 : 0;
        options.optimizer.narrow_moments = bits != 0;
        train::Trainer trainer(engine, task, options);
        trainer.step();
        const GptMemory needs = predict_memory(config, 4, options);
        const auto near = [&](nn::Use use, std::uint64_t predicted) {
          INFO(nn::name_of(use));
          CHECK(static_cast<double>(engine.pool().count(use).peak) == Approx(static_cast<double>(predicted)).epsilon(0.02));
        };
        near(nn::Use::parameters, needs.parameters);
        near(nn::Use::gradients, needs.gradients);
        near(nn::Use::optimizer, needs.optimizer);
        near(nn::Use::stash, needs.stash);
        std::uint64_t saved = 0;
        for (const auto& [name, tensor] : test::saved(trainer).tensors) saved += tensor.bytes.size();
        CHECK(static_cast<double>(saved) == Approx(static_cast<double>(needs.checkpoint)).epsilon(0.02));
        CHECK(engine.pool().total().peak < 1.1 * static_cast<double>(needs.total()));
        CHECK(engine.pool().total().peak > 0.6 * static_cast<double>(needs.total()));
      }
    }
  }
}

TEST_CASE("savings are counted as the paper counts them", "[gpt]") {
  GptConfig config = config_of(find_gpt("gpt2-124m"));
  config.context = 256;
  const auto check_printed = [&](const std::vector<double>& per_cent) {
    for (unsigned bits = 1; bits <= 4; ++bits) {
      // As printed, in whole per cent.
      CHECK(std::abs(100 * paper_saving(config, bits) - per_cent[bits - 1]) < 0.51);
    }
  };
  check_printed({42, 41, 39, 38});
  config.activation = "gelu";  // RoBERTa-base has the same sizes
  check_printed({16, 15, 15, 14});
}
