#include "cli/text_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/signals.h"
#include "cli/step_samples.h"
#include "core/error.h"
#include "core/text.h"
#include "models/gpt/sampler.h"
#include "run/folder.h"

namespace bitloom::cli {

void TextSampleOptions::declare(Options& options) {
  static const std::vector<Options::Need> needs{{"sample-prompt", "sample-every", {"!0"}},
                                                {"sample-tokens", "sample-every", {"!0"}}};
  options.needs(needs);
  options.text(
      "sample-every", every, "N",
      "Steps between texts that the net draws to show what it has learned; 0: none; auto: an eighth of the run, or more "
      "where they would take more than 3% of it");
  options.text("sample-prompt", prompt, "TEXT", "Text that they go on from; \"\": the end of a document");
  options.count("sample-tokens", tokens, 1, any_count, "Largest number of tokens of each");
}

TextSamples::TextSamples(const TextSampleOptions& options, const data::Tokenizer& tokenizer, nn::Engine& engine,
                         models::Gpt& net)
    : options_(options), tokenizer_(tokenizer), engine_(engine), net_(net), prompt_(data::encode(tokenizer, options.prompt)) {
  if (prompt_.empty()) prompt_.push_back(tokenizer.end_of_text());
}

std::uint64_t TextSamples::steps_between(std::uint64_t steps, std::size_t step_tokens) const {
  // A pass over one token takes as long as one over dozens: the weights have to be read.
  constexpr double least_rows = 32;
  SampleOptions common;
  common.every = options_.every;
  return common.steps_between(steps,
                              least_rows * static_cast<double>(options_.tokens) / (3 * static_cast<double>(step_tokens)));
}

nlohmann::json TextSamples::draw(train::Session& training, const std::function<void()>& alive) const {
  nlohmann::json line;
  const auto draw_text = [&](const std::function<void()>& sign) {
    models::SampleOptions options;
    options.tokens = options_.tokens;
    options.temperature = 0.8;
    options.end = tokenizer_.end_of_text();
    const auto drawn = models::sample(models::GptForward(engine_, net_), prompt_, options, [&](std::size_t, std::int32_t) {
      sign();
      return !stop_requested();  // with a shorter text: the run has other things to do
    });
    // Together: some tokenizers drop a space at the beginning.
    std::vector<std::int32_t> all = prompt_;
    all.insert(all.end(), drawn.front().begin(), drawn.front().end());
    const std::string text = tokenizer_.decode(all);
    const std::size_t before = tokenizer_.decode(prompt_).size();
    line["text"] = printable(options_.prompt + text.substr(std::min(before, text.size())));
  };
  // The others wait for the end, however long many tokens of a large net take.
  training.trainer().averaged([&] { run::on_root_for_long(training.trainer().comm(), draw_text, alive); });
  return line;
}

std::string in_one_line(const std::string& text, std::size_t columns) {
  std::string line;
  std::size_t width = 0;
  for (const char c : text) {
    const bool begins = (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;  // a character, of which the next bytes are the rest
    if (begins && ++width > columns) return line + "...";
    line += c == '\n' || c == '\t' ? ' ' : c;
  }
  return line;
}

}  // namespace bitloom::cli
