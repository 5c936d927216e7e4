// Convolutional nets as plans see them, against the trainer's own predictions.
#include "plan/cnn_model.h"

#include "plan/float_plan.h"
#include "tests/models/cnn_nets.h"
#include "tests/plan/float_plans.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "train/memory.h"

using namespace bitloom;
using namespace bitloom::plan;
using bitloom::test::has;
using bitloom::test::message_of;

TEST_CASE("a convolutional net's plan on one rank is the trainer's prediction", "[float_plan]") {
  for (std::size_t which = 0; which < test::cnn_descriptions().size(); ++which) {
    for (const DType values : {DType::f32, DType::bf16}) {
      for (const unsigned bits : {0U, 3U}) {
        models::CnnConfig config = test::small_cnn(which);
        config.activation_bits = bits;
        INFO(config.name << " " << dtype_name(values) << " " << bits);
        models::Cnn net(config);
        const FloatModel model = describe_cnn(config, values);
        CHECK(model.parameters() == net.parameters());
        CHECK(model.operations() == Approx(net.cost()));
        FloatOptions options = test::options_of(8, 8);
        options.train.values = values;
        options.train.optimizer.rule = "sgd";
        const FloatMemory planned = plan_grid(model, {}, options, FloatCluster()).memory();
        const train::MemoryNeeds needs = train::predict_memory(*net.layers, net.input(8), options.train);
        CHECK(planned.parameters == needs.parameters);
        CHECK(planned.gradients == needs.gradients);
        CHECK(planned.optimizer == needs.optimizer);
        CHECK(planned.checkpoint == needs.checkpoint);
        // Statistics of a micro-batch count for each of its images, and so does what few bits leave of a byte.
        CHECK(planned.stash >= needs.stash);
        CHECK(static_cast<double>(planned.stash) < 1.05 * static_cast<double>(needs.stash));
      }
    }
  }
}

TEST_CASE("a convolutional net has no tensor group", "[float_plan]") {
  const FloatModel model = describe_cnn(test::small_cnn(1), DType::f32);
  CHECK(has(message_of(ErrorKind::usage,
                       [&] {
                         require_grid(model, {1, 1, 2}, test::options_of(8, 1));
                       }),
            "`tensor`: 2; expected 1: blocks has no attention"));
}
