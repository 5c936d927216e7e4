// Text from a GPT, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "models/gpt/forward.h"
#include "models/transformer/draw.h"

namespace bitloom::models {

struct SampleOptions : DrawOptions {
  std::size_t tokens = 256;  // to be drawn, at most
  std::size_t count = 1;     // samples
  std::uint64_t seed = 1;
  std::int32_t end = -1;    // the token that ends a sample
  bool cache = true;        // keep keys and values; without it every token takes a pass over all before it
  std::size_t at_once = 0;  // samples of a process that are drawn together; 0: as many as have caches of 1 GiB
};

// Throws Error(usage) that names the option.
void check(const SampleOptions& options);

// Draws options.count samples behind the prompt. A context that is full, also of a longer prompt, goes on with its second half
// alone. Sample s draws token n with the same random number whatever the other samples do. on_token(sample, token) sees every
// token as it is drawn, options.end too; it may stop all by returning false. Gives the tokens behind the prompt, without
// options.end. Throws Error(usage) for a prompt that is empty or has tokens that are not there.
//
// Collective: the data ranks of a grid divide the samples, whose tokens all processes give out and of which on_token sees its
// own. A tensor group sums in another order, so that a draw may fall on a neighbouring token where it is as close as rounding.
std::vector<std::vector<std::int32_t>> sample(GptForward net, std::span<const std::int32_t> prompt,
                                              const SampleOptions& options,
                                              const std::function<bool(std::size_t, std::int32_t)>& on_token = {});

}  // namespace bitloom::models
