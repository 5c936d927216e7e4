// Cards and curves of models of images and captions: discrete VAEs, transformers over texts and images, contrastive models.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "report/float_lines.h"
#include "report/run_log.h"
#include "report/sections.h"

namespace bitloom::report {
namespace {

using nlohmann::json;

// y by lines of evaluations.
template <typename F>
Series computed(const FloatLines& lines, const char* name, int colour, F&& y) {
  Series series;
  series.name = name;
  series.colour = colour;
  for (const json& line : lines.evaluations) {
    series.x.push_back(number(line, "step"));
    series.y.push_back(y(line));
  }
  return series;
}

std::string after_step(const json& evaluation) { return "after step " + whole_text(number(evaluation, "step")); }

std::string rounded(double value, const char* unit = "") {
  return std::isfinite(value) ? fmt::format("{:.2f}{}", value, unit) : std::string(nothing);
}

}  // namespace

std::string dvae_cards(const ReportInput& /*input*/, const FloatLines& lines) {
  const json& chosen = lines.evaluation_of_model();
  const double images = number(lines.last_start(), "validation_images");
  Cards cards;
  cards.add("Validation PSNR", rounded(number(chosen, "psnr"), " dB"),
            fmt::format("{} images without noise, {}", whole_text(images), after_step(chosen)), true);
  const double in_use = number(chosen, "codes_in_use"), codes = number(chosen, "codes");
  cards.add("Codes in use", std::isfinite(in_use) ? whole_text(in_use) + " of " + whole_text(codes) : nothing,
            fmt::format("perplexity {}: as uncertain as that number of codes that are equally frequent",
                        rounded(number(chosen, "perplexity"))),
            true);
  cards.add("Lower bound", nats(number(chosen, "hard_elb")),
            fmt::format("nats per number, one code per token; relaxed {}", nats(number(chosen, "relaxed_elb"))));
  cards.add("Training loss", nats(number(lines.last_step(), "loss")), "nats per number, last recorded");
  add_costs(cards, lines, {"Images", "images", "operations_per_image", false, false, "encoder and decoder"});
  return cards.html();
}

std::string dvae_curves(const FloatLines& lines) {
  const double side = lines.of_net("side");
  const double values = 3 * side * side;
  const auto divergence = [&](const json& line) { return number(line, "kl") / values; };
  const std::string loss =
      chart(lines, "Loss", {"nats per number"},
            {curve(lines.steps, "loss", "training", 0), computed(lines, "validation", 1,
                                                                 [&](const json& line) {
                                                                   return -number(line, "relaxed_elb") +
                                                                          (number(line, "kl_weight") - 1) * divergence(line);
                                                                 })},
            true);
  const std::string rest =
      chart(lines, "Validation PSNR", {"dB"}, {curve(lines.evaluations, "psnr", "", 0)}, false) +
      chart(lines, "Codes in use", {"codes"},
            {curve(lines.evaluations, "codes_in_use", "in use", 1), curve(lines.evaluations, "perplexity", "perplexity", 4)},
            false) +
      chart(lines, "Lower bound", {"nats per number"},
            {curve(lines.evaluations, "relaxed_elb", "relaxed", 2), curve(lines.evaluations, "hard_elb", "hard", 3)}, false) +
      chart(lines, "Likelihood", {"minus its log, nats per number"},
            {computed(lines, "relaxed", 2, [&](const json& line) { return -number(line, "relaxed_elb") - divergence(line); }),
             computed(lines, "hard", 3, [&](const json& line) { return -number(line, "hard_elb") - divergence(line); })},
            false) +
      chart(lines, "Divergence from the uniform prior", {"nats per image"}, {curve(lines.evaluations, "kl", "", 5)}, false) +
      chart(lines, "Weight of the divergence", {"beta"}, {curve(lines.evaluations, "kl_weight", "", 6)}, false) +
      chart(lines, "Temperature of the relaxation", {"", true}, {curve(lines.evaluations, "temperature", "", 7)}, false) +
      engine_curves(lines, "images/s", 1, false);
  return section("curves", "Training",
                 "The loss is minus the log likelihood of an image plus the weighted divergence of its tokens, under the "
                 "temperature of the time, divided by the image's numbers. Both lower bounds have the divergence with weight "
                 "1: the relaxed one mixes codes as training does, the hard one has one code per token.",
                 loss + pair(rest));
}

std::string dalle_cards(const ReportInput& /*input*/, const FloatLines& lines) {
  const json& chosen = lines.evaluation_of_model();
  const double codes = lines.of_net("codes");
  const double pairs = number(lines.last_start(), "validation_pairs");
  Cards cards;
  cards.add("Image loss", nats(number(chosen, "image_loss")),
            fmt::format("nats per code of {} validation pairs, {}; {} if all {} codes were as likely", whole_text(pairs),
                        after_step(chosen), rounded(std::log(codes)), whole_text(codes)),
            true);
  cards.add("Text loss", nats(number(chosen, "text_loss")), "nats per token of the captions", true);
  cards.add("Validation loss", nats(number(chosen, "loss")), "nats, an eighth the text's");
  cards.add("Training loss", nats(number(lines.last_step(), "loss")), "nats, last recorded");
  add_costs(cards, lines, {"Image tokens", "image tokens", "operations_per_token", false, true, "tokenizer included"});
  return cards.html();
}

std::string dalle_curves(const FloatLines& lines) {
  const auto part = [&](const char* title, const char* unit, const char* training, const char* validation) {
    return chart(
        lines, title, {unit},
        {curve(lines.evaluations, training, "training pairs", 0), curve(lines.evaluations, validation, "validation pairs", 1)},
        false);
  };
  const std::string rest = part("Image loss", "nats per code", "training_image_loss", "image_loss") +
                           part("Text loss", "nats per token", "training_text_loss", "text_loss") +
                           engine_curves(lines, "thousand image tokens/s", 1e-3, true);
  return section(
      "curves", "Training",
      "The loss is an eighth the text's and seven eighths the image's. The training loss of the first chart is that of each "
      "step, under dropout; the losses of text and image in the next two are those of some training pairs and of the "
      "validation "
      "pairs, all without it.",
      loss_chart(lines, true) + pair(rest) + gradient_scale_chart(lines));
}

// Share of pairs whose own caption (or image: "images_by_chance") is the nearest by chance: equal ones count once. Runs of
// before did not say it.
double chance_of(const json& evaluation, const char* key, double pairs) {
  const double chance = number(evaluation, key);
  return std::isfinite(chance) ? chance : 1 / pairs;
}

std::string clip_cards(const ReportInput& /*input*/, const FloatLines& lines) {
  const json& chosen = lines.evaluation_of_model();
  const double pairs = number(lines.last_start(), "validation_pairs");
  const double texts = chance_of(chosen, "texts_by_chance", pairs), images = chance_of(chosen, "images_by_chance", pairs);
  Cards cards;
  cards.add("Captions found", percent(number(chosen, "texts_at_1")),
            fmt::format("of {} images, the own caption nearest; chance {}", whole_text(pairs), percent(texts)), true);
  cards.add("Images found", percent(number(chosen, "images_at_1")),
            fmt::format("of {} captions, the own image nearest; chance {}", whole_text(pairs), percent(images)), true);
  cards.add("Among the 5 nearest", percent(number(chosen, "texts_at_5")),
            fmt::format("captions, chance {}; images {}, chance {}", percent(std::min(1.0, 5 * texts)),
                        percent(number(chosen, "images_at_5")), percent(std::min(1.0, 5 * images))));
  cards.add("Validation loss", nats(number(chosen, "loss")), "nats, " + after_step(chosen));
  cards.add("Training loss", nats(number(lines.last_step(), "loss")), "nats, last recorded");
  const double temperature = number(chosen, "temperature");
  cards.add("Temperature", std::isfinite(temperature) ? fmt::format("{:.4f}", temperature) : nothing,
            "by which cosines are divided");
  add_costs(cards, lines, {"Pairs", "pairs", "operations_per_pair", false, false, "tokenizer included"});
  return cards.html();
}

std::string clip_curves(const FloatLines& lines) {
  const double pairs = number(lines.last_start(), "validation_pairs");
  const double at_once = number(lines.last_start(), "micro_batch");
  const auto retrieval = [&](const char* title, const char* texts, const char* images, double nearest) {
    const auto by_chance = [&](const char* name, const char* key) {
      Series chance = computed(lines, name, 9,
                               [&](const json& line) { return 100 * std::min(1.0, nearest * chance_of(line, key, pairs)); });
      chance.faint = true;
      return chance;
    };
    std::vector<Series> series = {curve(lines.evaluations, texts, "captions of images", 1, 100),
                                  curve(lines.evaluations, images, "images of captions", 2, 100),
                                  by_chance("chance", "texts_by_chance")};
    const json& chosen = lines.evaluation_of_model();
    if (number(chosen, "texts_by_chance") != number(chosen, "images_by_chance") &&
        std::isfinite(number(chosen, "images_by_chance"))) {
      series.push_back(by_chance("chance of images", "images_by_chance"));
    }
    return chart(lines, title, {"% of pairs"}, std::move(series), false, "chance");
  };
  const std::string loss = chart(lines, "Training loss", {"nats"}, {curve(lines.steps, "loss", "", 0)}, true);
  const std::string rest =
      retrieval("The own one is the nearest", "texts_at_1", "images_at_1", 1) +
      retrieval("The own one is among the 5 nearest", "texts_at_5", "images_at_5", 5) +
      chart(lines, "Validation loss", {"nats"}, {curve(lines.evaluations, "loss", "", 1)}, false) +
      chart(lines, "Temperature", {"divisor of cosines"}, {curve(lines.evaluations, "temperature", "", 7)}, false) +
      engine_curves(lines, "pairs/s", 1, false);
  return section("curves", "Training",
                 fmt::format("The training loss is that of telling {} pairs apart, by the temperature that is learned: {} "
                             "without any knowledge. The validation loss is that of all {} validation pairs, by a temperature "
                             "of 0.07: {} without any.",
                             whole_text(at_once), rounded(std::log(at_once)), whole_text(pairs), rounded(std::log(pairs))),
                 loss + pair(rest));
}

}  // namespace bitloom::report
