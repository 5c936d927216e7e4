#include "cli/clip_options.h"

#include <fmt/ranges.h>

#include "cli/device.h"
#include "core/error.h"

namespace bitloom::cli {

void ClipSettings::declare(Options& options) {
  options.everyday({"net",           "side",         "dropout",    "init",           "data",
                    "tokenizer",     "vocabulary",   "validation", "steps",          "batch",
                    "learning-rate", "weight-decay", "dtype",      "seed",           "out",
                    "resume",        "config",       "device",     "evaluate-every", "checkpoint-seconds"});
  options.group("Net");
  options.text("net", net, "NAME", fmt::format("Net with its sizes: {}", fmt::join(models::clip_names(), ", ")));
  options.count("side", side, 8, 1024, "Height and width that images are cut and resized to, pixels");
  options.number("dropout", dropout, 0, 1, "Dropout rate of the texts' transformer; 0 disables dropout");
  declare_activation_bits(options, activation_bits, activation_quantiser);
  options.group("Pairs");
  data.declare(options);
  captions.declare(options);
  declare_training(options, "Pairs",
                   "among these each image's own caption is to be told; auto: a process's share of the batch");
  options.group("Run");
  declare_folder(options);
  declare_engine(options);
  options.count("evaluate-every", evaluate_every, 0, any_count,
                "Steps between evaluations on the validation pairs; 0: a twentieth of all");
  declare_run_rest(options);
}

models::ClipConfig ClipSettings::make_config(std::size_t vocabulary) const {
  models::ClipConfig config = models::find_clip(net, side);
  config.text_vocabulary = vocabulary;
  config.dropout = dropout;
  config.activation_bits = config.image.activation_bits = static_cast<unsigned>(activation_bits);
  config.activation_quantiser = config.image.activation_quantiser = nn::find_quantiser(activation_quantiser);
  check(config);
  return config;
}

}  // namespace bitloom::cli
