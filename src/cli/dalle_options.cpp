#include "cli/dalle_options.h"

#include <fmt/ranges.h>

#include <vector>

#include "cli/device.h"
#include "core/error.h"
#include "data/pairs/square_crop.h"

namespace bitloom::cli {
namespace {

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const models::NamedDalle& named : models::named_dalles()) names.emplace_back(named.name);
  return names;
}

// runs: not for a plan, on which dropout has no effect.
void declare_net(Options& options, DalleSettings& settings, bool runs) {
  options.group("Net");
  options.text("net", settings.net, "NAME", fmt::format("Net with its sizes: {}", fmt::join(names(), ", ")));
  options.count("layers", settings.layers, 0, 100000, "Number of blocks; 0: as the net has them");
  options.count("heads", settings.heads, 0, 100000, "Attention heads of a block; 0: as the net has them");
  options.count("width", settings.width, 0, 1000000, "Width of the residual stream; 0: as the net has it");
  options.count("text-positions", settings.text, 0, 100000,
                "Number of tokens of a caption, after which it is cut; 0: as the net has them");
  if (runs) options.number("dropout", settings.dropout, 0, 1, "Dropout rate; 0 disables dropout");
  declare_activation_bits(options, settings.activation_bits, settings.activation_quantiser);
}

}  // namespace

void DalleSettings::declare(Options& options) {
  options.everyday(
      {"net",    "layers",    "heads",         "width",          "dropout",       "init",          "data",
       "dvae",   "tokenizer", "vocabulary",    "validation",     "steps",         "batch",         "micro-batch",
       "out",    "resume",    "learning-rate", "dtype",          "seed",          "config",        "device",
       "tensor", "pipeline",  "shard",         "evaluate-every", "sample-prompt", "compress-rank", "checkpoint-seconds"});
  options.former(former_layout_options);
  declare_net(options, *this, true);
  declare_recompute(options, recompute);
  deep.declare(options);
  options.group("Pairs");
  data.declare(options);
  options.text("dvae", dvae, "RUN|MODEL", "Discrete VAE of `bitloom train dvae`, whose codes images become");
  options.choice("crop", crop, data::crop_names(),
                 "Part of an image that is seen: its centre, or one that is drawn anew in every epoch and mostly central "
                 "(transformer) or anywhere and mirrored (dvae)");
  captions.declare(options);
  options.number(
      "merge-dropout", merge_dropout, 0, 1,
      "Probability with which each merge of byte pairs in a caption is left out, others in every epoch; 0 disables it");
  static const std::vector<Options::Need> needs{{"merge-dropout", "tokenizer", {"!bytes"}, "0"}};
  options.needs(needs);
  declare_training(options, "Pairs");
  declare_loss_scale(options);
  options.transient(true);
  layout.declare(options);
  options.transient(false);
  layout.declare_compression(options);
  options.group("Run");
  declare_folder(options);
  declare_engine(options);
  options.count("evaluate-every", evaluate_every, 0, any_count,
                "Steps between evaluations on the validation pairs; 0: a twentieth of all");
  samples.declare(options);
  samples.declare_prompts(options);
  declare_run_rest(options);
}

void DalleSettings::declare_plan(Options& options) {
  declare_net(options, *this, false);
  declare_recompute(options, recompute);
  declare_plan_training(options, "Pairs");
  declare_loss_scale(options);
}

models::DalleConfig DalleSettings::make_config(std::size_t vocabulary, std::size_t grid, std::size_t codes) const {
  models::DalleConfig config = models::config_of(models::find_dalle(net));
  if (layers != 0) config.layers = layers;
  if (heads != 0) config.heads = heads;
  if (width != 0) config.width = width;
  if (text != 0) config.text = text;
  config.text_vocabulary = vocabulary;
  config.grid = grid;
  config.codes = codes;
  config.dropout = dropout;
  config.activation_bits = static_cast<unsigned>(activation_bits);
  config.activation_quantiser = nn::find_quantiser(activation_quantiser);
  config.recompute = recompute == "block";
  if (loss_scale == "blocks") config.branch_values = dtype();
  config.small_feed_forward = deep.small_feed_forward();
  config.logit_clip = deep.logit_clip;
  check(config);
  return config;
}

}  // namespace bitloom::cli
