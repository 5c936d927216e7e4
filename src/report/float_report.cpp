// The page of a float model's run: what src/train/run.h records. Loss, learning rate, gradient norm, speed and memory over the
// tokens or images that were trained on; of nets that classify images also accuracy, layers, filters, confusion and mistakes.
// Models of images and captions have cards and curves of their own: pairs_report.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "report/float_lines.h"
#include "report/markup.h"
#include "report/run_log.h"
#include "report/sections.h"

namespace bitloom::report {
namespace {

using nlohmann::json;

std::string gpt_cards(const ReportInput& /*input*/, const FloatLines& lines) {
  Cards cards;
  const json& best = lines.best_evaluation();
  const double loss = number(best, "loss");
  cards.add("Validation loss", nats(loss),
            fmt::format("nats, best, after step {}; perplexity {:.2f}", whole_text(number(best, "step")), std::exp(loss)),
            true);
  cards.add("Training loss", nats(number(lines.last_step(), "loss")), "nats, last recorded", true);
  add_costs(cards, lines, {"Tokens", "tokens", "operations_per_token", false, true, "tokenizer included"});
  return cards.html();
}

void add_test(Cards& cards, double accuracy, double images, double views, const std::string& model) {
  cards.add("Test accuracy", percent(accuracy),
            fmt::format("{} images, {} view{} of each{}", whole_text(images), views, views == 1 ? "" : "s",
                        model.empty() ? "" : "; " + model),
            true);
}

std::string cnn_cards(const ReportInput& input, const FloatLines& lines) {
  Cards cards;
  if (input.test && input.test->images > 0) {
    const Classification& test = *input.test;
    const auto images = static_cast<double>(test.images);
    add_test(cards, static_cast<double>(test.correct) / images, images, static_cast<double>(test.views), test.model);
  } else if (const double accuracy = number(lines.test, "accuracy"); std::isfinite(accuracy)) {
    add_test(cards, accuracy, number(lines.test, "images"), number(lines.test, "views"), "");
  }
  if (!lines.evaluations.empty()) {
    const json& chosen = lines.evaluation_of_model();
    const double images = number(lines.last_start(), "validation_images");
    cards.add("Validation accuracy", percent(number(chosen, "accuracy")),
              fmt::format("{} images as they are, after {}", whole_text(images), lines.time_of(number(chosen, "step"))), true);
    cards.add("Validation loss", nats(number(chosen, "loss")), "nats");
    cards.add("Training loss", nats(number(lines.last_step(), "loss")), "nats, last recorded");
  }
  add_costs(cards, lines, {"Images", "images", "operations_per_image", true, false, "parameters and moving averages"});
  return cards.html();
}

std::string gpt_curves(const FloatLines& lines) {
  return section("curves", "Training", "",
                 loss_chart(lines, true) + pair(engine_curves(lines, "thousand tokens/s", 1e-3, true)) +
                     pair(exchange_charts(lines)) + gradient_scale_chart(lines));
}

std::string cnn_curves(const FloatLines& lines) {
  const Series accuracy = curve(lines.evaluations, "accuracy", "", 1, 100);
  const bool has_accuracy = has_value(accuracy);
  const std::string loss = loss_chart(lines, !has_accuracy);
  // A convolutional net's layers share tensors of the stash, which counts each of them twice: it is not shown.
  const std::string rest =
      chart(lines, "Validation accuracy", {"%", false, true}, {accuracy}, false) + engine_curves(lines, "images/s", 1, false);
  return section(
      "curves", "Training",
      "The training loss is that of augmented images, under label smoothing if there is any; the validation loss and "
      "accuracy are those of images as they are.",
      has_accuracy ? pair(loss + rest) : loss + pair(rest));
}

// Properties that pages of the kinds do not have in common.
struct ReportKind {
  const char* kind;
  const char* title;
  const char* examples_key;  // of the start line: what there is to train on
  const char* examples;
  std::string (*cards)(const ReportInput&, const FloatLines&);
  std::string (*curves)(const FloatLines&);
};
constexpr auto report_kinds = std::to_array<ReportKind>({
    {"gpt", "gpt", "train_images", "training images", &gpt_cards, &gpt_curves},
    {"cnn", "convolutional net", "train_images", "training images", &cnn_cards, &cnn_curves},
    {"dvae", "discrete VAE", "train_images", "training images", &dvae_cards, &dvae_curves},
    {"dalle", "text-to-image transformer", "train_pairs", "training pairs", &dalle_cards, &dalle_curves},
    {"clip", "contrastive model", "train_pairs", "training pairs", &clip_cards, &clip_curves},
});

const ReportKind& kind_of(const FloatLines& lines) {
  const auto found = std::ranges::find_if(report_kinds, [&](const ReportKind& kind) { return lines.kind == kind.kind; });
  return found == report_kinds.end() ? report_kinds.front() : *found;  // of a later version
}

// By its description or, where it stands for itself, by the option that chose it; "" for a file.
std::string name_of_net(const ReportInput& input, const json& start) {
  if (const auto net = start.find("net"); net != start.end() && net->is_object()) {
    if (const std::string name = text(*net, "name"); !name.empty()) return name;
  }
  const std::string name = input.config.is_object() ? text(input.config, "net") : "";
  return name.find('/') == std::string::npos ? name : "";
}

std::string heading(const ReportInput& input, const FloatLines& lines) {
  const json& start = lines.first_start();
  const ReportKind& kind = kind_of(lines);
  std::string line = lines.kind == kind.kind ? kind.title : lines.kind;
  if (const std::string name = name_of_net(input, start); !name.empty()) line += " " + name;
  const double parameters = number(start, "parameters");
  if (std::isfinite(parameters)) line += " · " + count_text(parameters) + " parameters";
  if (!text(start, "dtype").empty()) line += " · " + text(start, "dtype");
  if (const double examples = number(start, kind.examples_key); std::isfinite(examples)) {
    line += " · " + whole_text(examples) + " " + kind.examples;
  }
  if (!text(start, "time").empty()) line += " · started " + text(start, "time");
  if (lines.starts.size() > 1) line += fmt::format(" · resumed, {} starts", lines.starts.size());
  std::string html = fmt::format("<header><h1>{}</h1><p>{}</p></header>\n",
                                 escape(input.title.empty() ? "training run" : input.title), escape(line));
  const double step = number(lines.last_step(), "step");
  if (lines.starts.empty() && !std::isfinite(step)) {
    html += "<p class=\"banner\"><b>Nothing has been recorded.</b> The run has no metrics.</p>\n";
  } else if (!lines.finished()) {
    html += fmt::format(R"(<p class="banner"><b>This run is unfinished:</b> {}.</p>)",
                        std::isfinite(step) ? fmt::format("{} of {} steps are recorded", whole_text(step),
                                                          whole_text(number(lines.last_start(), "steps")))
                                            : "no step has been recorded yet") +
            "\n";
  }
  for (const std::string& sentence : input.missing) {
    html += fmt::format("<p class=\"banner\"><b>Not shown:</b> {}</p>\n", escape(sentence));
  }
  return html;
}

std::string filters_of(const ReportInput& input) {
  const bool is_whitening = !input.float_layers.empty() && input.float_layers.front().kind == "whitening";
  return filters(input.filters, is_whitening
                                    ? "The kernels of the first convolution: principal components of patches of the training "
                                      "images, scaled to equal variance, and their negatives. They are not trained."
                                    : "The kernels of the first convolution.");
}

// Results of a net that classifies images on the test images.
std::string classification(const ReportInput& input) {
  if (!input.test) {
    if (input.test_missing.empty()) return "";
    return section("confusion", "Which classes are told apart", "",
                   fmt::format("<p class=\"note\">There is no confusion matrix here, and there are no images: {}</p>\n",
                               escape(input.test_missing)));
  }
  const Classification& test = *input.test;
  ResultEvent result;
  result.classes = test.classes;
  result.confusion = test.confusion;
  const std::string by = test.model.empty() ? "" : fmt::format(" They were classified by {}.", escape(test.model));
  return confusion(result, "Images of the test set." + by) + wrong_images(test);
}

}  // namespace

std::string float_report(const ReportInput& input) {
  const FloatLines lines(input);
  const json& start = lines.first_start();
  const ReportKind& kind = kind_of(lines);
  std::string body = heading(input, lines) + kind.cards(input, lines) + kind.curves(lines);
  body += text_samples(lines) + samples(input, lines) + reconstructions(input) + code_use(input) + similarities(input);
  body += timeline(input.events);
  body += classification(input) + filters_of(input) + float_layer_table(input.float_layers);
  ReportInput options;
  options.config = input.config;
  // A 0 or -1 that was given may stand for what the run found by itself.
  const json& latest = lines.last_start();
  if (const auto found = latest.find("options"); found != latest.end() && found->is_object() && options.config.is_object()) {
    for (const auto& [key, value] : found->items()) {
      if (options.config.contains(key)) options.config[key] = value;
    }
  }
  body += configuration(options);
  RunLog log;
  log.start.command = text(start, "command");
  log.start.version = text(start, "version");
  body += repeat_command(log, "");
  return page(input.title, text(start, "version"), body);
}

}  // namespace bitloom::report
