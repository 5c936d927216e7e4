#include "cli/dvae_evaluation.h"

#include <nlohmann/json.hpp>

#include "cli/device.h"

namespace bitloom::cli {

void print_evaluation(Terminal& terminal, const std::string& split, const models::DvaeEvaluation& result) {
  terminal.print("  {:<22}{:.2f} dB, mean squared error {:.5f} ({} images)", split + " PSNR", result.psnr(),
                 result.squared_error, result.images);
  terminal.print("  {:<22}{:.4f} relaxed, {:.4f} hard, nats per number; divergence {:.2f} nats per image", "lower bound",
                 result.relaxed_elb(), result.hard_elb(), result.kl);
  terminal.print("  {:<22}{} of {} in use, perplexity {:.1f}", "codes", result.codes_in_use(), result.counts.size(),
                 result.perplexity());
}

nlohmann::json evaluation_json(const models::DvaeEvaluation& result) {
  return {{"images", result.images},
          {"psnr", result.psnr()},
          {"squared_error", result.squared_error},
          {"relaxed_elb", result.relaxed_elb()},
          {"hard_elb", result.hard_elb()},
          {"kl", result.kl},
          {"codes_in_use", result.codes_in_use()},
          {"codes", result.counts.size()},
          {"perplexity", result.perplexity()}};
}

std::string collapse_note(const models::DvaeEvaluation& result) {
  if (result.images == 0 || !result.has_collapsed()) return "";
  return fmt::format(
      "the codebook has collapsed: of {} codes {} are in use, with a perplexity of {:.1f}. A larger --kl-weight, a slower "
      "--temperature-steps or a smaller --learning-rate may help",
      result.counts.size(), result.codes_in_use(), result.perplexity());
}

OpenDvae::OpenDvae(const std::filesystem::path& file, const std::string& values, const std::string& device,
                   const std::string& backend)
    : engine_(choose_device(device), backend),
      loaded_(models::load_dvae(engine_, file, choose_dtype(engine_, values))),
      coder_(std::make_unique<models::DvaeCoder>(engine_, *loaded_.net, dtype_named(values))) {}

}  // namespace bitloom::cli
