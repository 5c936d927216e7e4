#include "cli/gpt_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "cli/device.h"
#include "core/error.h"
#include "nn/activation.h"
#include "nn/engine.h"

namespace bitloom::cli {
namespace {

std::vector<std::string> gpt_names() {
  std::vector<std::string> names;
  for (const models::NamedGpt& named : models::named_gpts()) names.emplace_back(named.name);
  return names;
}

// runs: not for a plan, on which dropout and the function have no effect.
void declare_net(Options& options, GptSettings& settings, bool runs) {
  options.group("Net");
  options.text("net", settings.net, "NAME", fmt::format("Net with its sizes: {}", fmt::join(gpt_names(), ", ")));
  options.count("layers", settings.layers, 0, 100000, "Number of blocks; 0: as the net has them");
  options.count("heads", settings.heads, 0, 100000, "Attention heads of a block; 0: as the net has them");
  options.count("width", settings.width, 0, 1000000, "Width of the residual stream; 0: as the net has it");
  options.count("context", settings.context, 0, 1000000, "Number of tokens that the net sees at once; 0: as the net has it");
  options.count("vocabulary-multiple", settings.vocabulary_multiple, 0, 1000000,
                "Number of which the rows of token tables are padded to a multiple; 0: as the net has it");
  if (runs) {
    options.number("dropout", settings.dropout, -1, 1, "Dropout rate; 0 disables dropout; less than 0: 0.1");
    options.text("activation", settings.activation, "NAME",
                 fmt::format("Activation of the feed-forward parts: {}", fmt::join(nn::activation_names(), ", ")));
  }
  declare_activation_bits(options, settings.activation_bits, settings.activation_quantiser);
  declare_recompute(options, settings.recompute);
}

void declare_text(Options& options, GptSettings& settings) {
  options.group("Text");
  options.text("data", settings.data, "PATH", "File of text or JSONL, or a folder that `bitloom data text` made");
  options.text("tokenizer", settings.tokenizer, "SPEC", fmt::format("Tokenizer of text files: {}", tokenizer_spec_help));
  options.text("validation", settings.validation, "SHARE", validation_help);
  options.count("split-seed", settings.split_seed, 0, any_count, "Seed of the choice of documents that are held back");
  options.text("documents", settings.documents, "HOW",
               "Separator of documents in a text file: file (none), blank-lines, or the line that stands between them");
  options.text("field", settings.field, "NAME", "Field of a JSON object that holds the document");
  options.number(
      "merge-dropout", settings.merge_dropout, 0, 1,
      "Probability with which each merge of byte pairs in the training text is left out, others in every epoch; 0 disables it");
}

void declare_run(Options& options, GptSettings& settings) {
  options.group("Run");
  settings.declare_folder(options);
  settings.declare_engine(options);
  options.count("evaluate-every", settings.evaluate_every, 0, any_count,
                "Steps between evaluations on the validation text; 0: a twentieth of all");
  options.count("evaluate-sequences", settings.evaluate_sequences, 0, any_count,
                "Number of sequences of the validation text in an evaluation; 0: all");
  settings.declare_run_rest(options);
}

}  // namespace

void GptSettings::declare(Options& options, bool runs) {
  if (runs) {
    options.everyday({"net",           "layers",         "heads",     "width",      "context",  "dropout",  "activation-bits",
                      "init",          "data",           "tokenizer", "validation", "steps",    "batch",    "micro-batch",
                      "learning-rate", "warmup",         "dtype",     "seed",       "out",      "resume",   "config",
                      "device",        "evaluate-every", "optimizer", "tensor",     "pipeline", "exchange", "through"});
  }
  declare_net(options, *this, runs);
  if (!runs) {
    declare_plan_training(options, "Sequences");
    declare_loss_scale(options);
    return;
  }
  deep.declare(options);
  declare_text(options, *this);
  declare_training(options, "Sequences");
  declare_loss_scale(options);
  options.former(former_layout_options);
  options.transient(true);
  layout.declare(options);
  options.transient(false);
  layout.declare_compression(options);
  local.declare(options);
  options.group("Texts");
  samples.declare(options);
  declare_run(options, *this);
}

models::GptConfig GptSettings::make_config(std::size_t vocabulary) const {
  models::GptConfig config = models::config_of(models::find_gpt(net));
  if (layers != 0) config.layers = layers;
  if (heads != 0) config.heads = heads;
  if (width != 0) config.width = width;
  if (context != 0) config.context = context;
  if (vocabulary_multiple != 0) config.vocabulary_multiple = vocabulary_multiple;
  if (dropout >= 0) config.dropout = dropout;
  config.vocabulary = vocabulary;
  config.activation = nn::find_activation(activation, "--activation").name;
  config.activation_bits = static_cast<unsigned>(activation_bits);
  config.activation_quantiser = nn::find_quantiser(activation_quantiser);
  config.recompute = recompute == "block";
  if (loss_scale == "blocks") config.branch_values = dtype();
  config.small_feed_forward = deep.small_feed_forward();
  config.logit_clip = deep.logit_clip;
  check(config);
  return config;
}

train::TrainOptions GptSettings::make_options() const {
  train::TrainOptions options = AdamSettings::make_options(models::find_gpt(net).rate);
  options.draw_seed = local.stream_seed(seed);
  return options;
}

}  // namespace bitloom::cli
