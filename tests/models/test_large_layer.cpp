// A layer of the largest text-to-image transformer of Ramesh et al. 2021, which takes gigabytes and seconds: not run by builds
// that are watched by sanitizers.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/random.h"
#include "models/dalle/dalle.h"
#include "nn/floats.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::models;

TEST_CASE("a layer of the largest size runs forward and backward, and no gradient goes to a later token", "[dalle]") {
  DalleConfig config = config_of(find_dalle("12b"));
  config.layers = 1;
  config.text_vocabulary = config.codes = 16;  // the layer alone is looked at
  config.dropout = 0;
  nn::Engine engine;
  Dalle net(config);
  nn::Layer& block = net.layers()[2];  // behind the embedding and its dropout
  const std::vector<nn::Parameter*> parameters = nn::parameters_of(block);
  nn::initialise(engine, parameters, DType::f32, 3);
  nn::clear_gradients(engine, parameters);
  const std::size_t tokens = config.tokens(), width = config.width;
  std::vector<float> x(tokens * width), dy(tokens * width);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(Random(4, Stream::test, i).uniform() - 0.5);
  // Gradient of one image token, half-way through the image and in the middle of its row.
  const std::size_t asked = config.text + 16 * config.grid + 16;
  for (std::size_t c = 0; c < width; ++c) dy[asked * width + c] = c % 2 == 0 ? 1.0F : -0.5F;
  nn::Stash stash;
  nn::Pass pass{engine};
  pass.stash = &stash;
  const nn::Shape shape = {1, tokens, width};
  const nn::Tensor y = block.forward(pass, nn::from_floats(engine, x, shape, DType::f32, nn::Use::data));
  const std::vector<float> found = nn::to_floats(engine, y);
  CHECK(std::ranges::all_of(found, [](float each) { return std::isfinite(each); }));
  CHECK(found != x);
  const std::vector<float> dx =
      nn::to_floats(engine, block.backward(pass, nn::from_floats(engine, dy, shape, DType::f32, nn::Use::data)));
  CHECK(stash.empty());
  nn::settle_gradients(engine, parameters);
  const nn::AttentionMask mask = attention_mask(config, ImageAttention::convolutional);
  std::size_t seen = 0;
  for (std::size_t t = 0; t < tokens; ++t) {
    INFO("token " << t);
    const auto begin = dx.begin() + static_cast<std::ptrdiff_t>(t * width);
    const bool is_zero = std::all_of(begin, begin + static_cast<std::ptrdiff_t>(width), [](float each) { return each == 0; });
    CHECK(is_zero != mask.sees(asked, t));
    seen += is_zero ? 0 : 1;
  }
  CHECK(seen == config.text + 61);  // a window of 11 x 11 up to its middle
  // Bias of the last sum: the gradient itself. All others got some.
  for (const nn::Parameter* parameter : parameters) {
    INFO(parameter->name);
    const std::vector<float> gradient = nn::to_floats(engine, parameter->gradient);
    CHECK(std::ranges::all_of(gradient, [](float each) { return std::isfinite(each); }));
    CHECK(std::ranges::any_of(gradient, [](float each) { return each != 0; }));
    if (parameter->name != "blocks.0.feed_forward.second.bias") continue;
    CHECK(std::equal(gradient.begin(), gradient.end(), dy.begin() + static_cast<std::ptrdiff_t>(asked * width)));
  }
}
