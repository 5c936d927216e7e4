// bitloom sample: text from a trained GPT, images from a text-to-image transformer.
#include <algorithm>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/image_sampling.h"
#include "cli/model_source.h"
#include "cli/options.h"
#include "cli/placed_gpt.h"
#include "cli/signals.h"
#include "cli/system.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "models/gpt/sampler.h"

namespace bitloom::cli {
namespace {

struct SampleSettings {
  std::vector<std::string> model;
  std::string prompt;
  std::string prompt_file;
  models::SampleOptions sampling;
  bool no_cache = false;
  GptUse use;
  ImageSampling images;

  void declare(Options& options) {
    static const std::vector<Options::Need> needs{
        {"top-k", "temperature", {"!0"}}, {"top-p", "temperature", {"!0"}}, {"seed", "temperature", {"!0"}}};
    options.arguments(model, "MODEL|RUN", 1, 1);
    options.needs(needs);
    options.group("Sampling");
    options.text("prompt", prompt, "TEXT", "Text that the samples go on from; \"\": the end of a document");
    options.text("prompt-file", prompt_file, "FILE", "File with the prompt, instead of --prompt");
    options.count("tokens", sampling.tokens, 1, any_count, "Largest number of tokens of a sample");
    options.count("count", sampling.count, 1, 100000, "Number of samples");
    options.number("temperature", sampling.temperature, 0, 1e6,
                   "Divisor of the logits: less is likelier; 0: always the likeliest token");
    options.count("top-k", sampling.top_k, 0, any_count, "Number of likeliest tokens to draw from; 0: all");
    options.number("top-p", sampling.top_p, 0, 1, "Probability of the likeliest tokens to draw from; 1: all", true);
    options.count("seed", sampling.seed, 0, any_count, "Seed of the draws");
    options.flag("no-cache", no_cache, "Computation of all tokens anew for every token: slow, and the same text");
    use.declare_engine(options);
    use.layout.declare_grid(options);
    options.group("Images");
    images.declare(options);
  }
};

// Options of the other kind of models would have no effect.
void check_sample_options(const Options& options, const std::string& kind) {
  const std::vector<std::string> of_text{"tokens", "tensor", "pipeline"};
  for (const std::string& name : kind == models::dalle_kind ? of_text : ImageSampling::names()) {
    if (options.source(name) == Options::Source::none) continue;
    fail(ErrorKind::usage, "--{}: not for a model of kind {}", name, kind);
  }
}

// Writes text as it comes, as far as it is whole characters: a token may hold a part of one.
class Stream {
 public:
  Stream(Terminal& terminal, const data::Tokenizer& tokenizer, std::span<const std::int32_t> prompt)
      : terminal_(terminal),
        tokenizer_(tokenizer),
        tokens_(prompt.begin(), prompt.end()),
        written_(tokenizer.decode(prompt).size()) {}
  void put(std::int32_t token) {
    tokens_.push_back(token);
    flush(false);
  }
  void finish() { flush(true); }

 private:
  void flush(bool all) {
    const std::string text = tokenizer_.decode(tokens_);
    const std::size_t end = all ? text.size() : whole_characters(text);
    if (end <= written_) return;
    terminal_.write(std::string_view(text).substr(written_, end - written_));
    written_ = end;
  }

  Terminal& terminal_;
  const data::Tokenizer& tokenizer_;
  std::vector<std::int32_t> tokens_;
  std::size_t written_ = 0;
};

int run_samples(Session& session, const Options& options, SampleSettings& settings) {
  std::string file;
  bool is_of_images = false;
  session.on_root([&] {
    file = find_model(settings.model.front()).string();
    const std::string kind = kind_of_model(file);
    require_kind(file, {models::gpt_kind, models::dalle_kind});
    check_sample_options(options, kind);
    is_of_images = kind == models::dalle_kind;
    session.terminal.note(checkpoint_note(file));
    if (!settings.prompt_file.empty()) settings.prompt = read_text(settings.prompt_file);
    if (is_of_images && !is_utf8(settings.prompt)) {
      if (!settings.prompt_file.empty()) fail(ErrorKind::data, "--prompt-file: {} is not UTF-8", settings.prompt_file);
      fail(ErrorKind::usage, "--prompt: '{}' is not UTF-8; expected a caption in UTF-8", printable(settings.prompt));
    }
  });
  settings.prompt = session.comm.broadcast_text(settings.prompt);
  if (session.comm.flag_any(is_of_images)) {
    models::ImageOptions draw{settings.sampling};
    draw.count = settings.sampling.count;
    draw.seed = settings.sampling.seed;
    draw.cache = !settings.no_cache;
    return sample_images(session, settings.model.front(), settings.prompt, draw, settings.images, settings.use.values,
                         settings.use.device, settings.use.backend);
  }
  models::SampleOptions& sampling = settings.sampling;
  PlacedGpt placed(session, settings.use, session.comm.broadcast_text(file), sampling.count);
  const data::Tokenizer& tokenizer = placed.tokenizer();
  std::vector<std::int32_t> prompt = data::encode(tokenizer, settings.prompt);
  if (prompt.empty()) prompt.push_back(tokenizer.end_of_text());
  const std::size_t context = placed.forward().net().tokens();
  if (prompt.size() > context) {
    session.terminal.error(fmt::format("the prompt has {} tokens, the context {}: the net sees the last {}", prompt.size(),
                                       context, (context + 1) / 2));
  }
  sampling.end = tokenizer.end_of_text();
  sampling.cache = !settings.no_cache;
  const bool streams = sampling.count == 1;
  if (streams) session.terminal.write(settings.prompt);
  Stream stream(session.terminal, tokenizer, prompt);
  std::int64_t drawn = 0;
  const Clock::time_point start = Clock::now();
  const auto samples = models::sample(placed.forward(), prompt, sampling, [&](std::size_t, std::int32_t token) {
    ++drawn;
    if (streams && token != sampling.end) stream.put(token);
    return !stop_requested();
  });
  const double seconds = seconds_since(start);
  placed.forward().grid().data().sum(std::span(&drawn, 1));
  const bool stopped = session.comm.flag_any(stop_requested());
  if (streams) {
    stream.finish();
    session.terminal.write("\n");
  } else {
    for (std::size_t s = 0; s < samples.size(); ++s) {
      std::vector<std::int32_t> whole = prompt;
      whole.insert(whole.end(), samples[s].begin(), samples[s].end());
      session.terminal.write(fmt::format("--- {} of {}\n{}\n", s + 1, sampling.count, tokenizer.decode(whole)));
    }
  }
  session.terminal.error(fmt::format("{} tokens, {:.0f} tokens/s{}", drawn,
                                     static_cast<double>(drawn) / std::max(seconds, 1e-9), stopped ? "; interrupted" : ""));
  return stopped ? exit_interrupted : exit_done;
}

}  // namespace

int sample(Session& session, std::span<const std::string> args) {
  SampleSettings settings;
  Options options(
      "bitloom sample MODEL|RUN [--prompt TEXT] [options]",
      "Writes text that a GPT draws token by token after a prompt, to the standard output; the speed goes to the\n"
      "standard error. Under mpirun the processes divide the net (--tensor, --pipeline) and the samples (--count).\n"
      "Of a text-to-image transformer: a picture (--out) or a folder (--folder) of --count images that it draws for the\n"
      "prompt, or for each of --prompts.");
  settings.declare(options);
  if (!parse_or_show_help(session, args, options)) return exit_done;
  if (!settings.prompt.empty() && !settings.prompt_file.empty()) {
    fail(ErrorKind::usage, "--prompt-file: '{}', but there is --prompt too; expected one of them", settings.prompt_file);
  }
  choose_threads(session.comm);
  catch_stop_signals();
  return run_samples(session, options, settings);
}

}  // namespace bitloom::cli
