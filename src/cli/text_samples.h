// Text that a GPT's training draws now and then, to show what the net does by then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/options.h"
#include "data/text/tokenizer.h"
#include "models/gpt/gpt.h"
#include "train/session.h"

namespace bitloom::cli {

struct TextSampleOptions {
  std::string every = "auto";
  std::string prompt;
  std::size_t tokens = 128;

  void declare(Options& options);
};

class TextSamples {
 public:
  // All outlive this. Throws Error(usage) for a prompt that leaves no room in the net's context.
  TextSamples(const TextSampleOptions& options, const data::Tokenizer& tokenizer, nn::Engine& engine, models::Gpt& net);

  // Steps between samples; 0: none. step_tokens: that a step trains on. Throws Error(usage).
  std::uint64_t steps_between(std::uint64_t steps, std::size_t step_tokens) const;
  // Collective among the ranks of a training, each of which has the whole net; rank 0 draws, with the same random numbers every
  // time, and gives what the line of metrics has: the text, prompt included.
  nlohmann::json draw(train::Session& training, const std::function<void()>& alive) const;

 private:
  TextSampleOptions options_;
  const data::Tokenizer& tokenizer_;
  nn::Engine& engine_;
  models::Gpt& net_;
  std::vector<std::int32_t> prompt_;
};

// The beginning of a text in one line, at most `columns` characters wide.
std::string in_one_line(const std::string& text, std::size_t columns);

}  // namespace bitloom::cli
