// The page of a float model's run: what src/train/run.h records. Loss, learning rate, gradient norm, speed and memory over the
// tokens or images that were trained on; of nets that classify images also accuracy, layers, filters, confusion and mistakes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "report/markup.h"
#include "report/plot.h"
#include "report/run_log.h"
#include "report/sections.h"

namespace bitloom::report {
namespace {

using nlohmann::json;

// The lines by event.
struct Lines {
  std::vector<json> starts, steps, evaluations;
  json result;

  explicit Lines(const std::vector<json>& metrics) {
    for (const json& line : metrics) {
      if (!line.is_object()) continue;
      const std::string event = text(line, "event");
      if (event == "start") starts.push_back(line);
      if (event == "step") steps.push_back(line);
      if (event == "evaluation") evaluations.push_back(line);
      if (event == "result") result = line;
    }
  }
  bool finished() const { return result.is_object(); }
  bool has_images() const { return text(starts.front(), "kind") == "cnn"; }
  // By which steps become the chart's x: epochs of images, or steps.
  double steps_per_epoch() const { return has_images() ? number(starts.back(), "steps_per_epoch") : missing; }
  std::string time_of(double step) const {
    const double epochs = step / steps_per_epoch();
    return std::isfinite(epochs) ? fmt::format("epoch {:.3g}", epochs) : "step " + whole_text(step);
  }
  json last_step() const { return steps.empty() ? json::object() : steps.back(); }
};

Series curve(const std::vector<json>& lines, const char* key, const char* name, int colour, double scale = 1) {
  Series series;
  series.name = name;
  series.colour = colour;
  for (const json& line : lines) {
    series.x.push_back(number(line, "step"));
    series.y.push_back(number(line, key) * scale);
  }
  return series;
}

bool has_value(const Series& series) {
  return std::any_of(series.y.begin(), series.y.end(), [](double y) { return std::isfinite(y); });
}

// x of the series: steps.
std::string chart(const Lines& lines, const char* title, const Axis& y, std::vector<Series> series, bool wide) {
  std::erase_if(series, [](const Series& each) { return !has_value(each); });
  if (series.empty()) return "";
  const double steps_per_epoch = lines.steps_per_epoch();
  const bool has_epochs = steps_per_epoch > 0;
  for (Series& each : series) {
    for (double& x : each.x) x = has_epochs ? x / steps_per_epoch : x;
  }
  LineChart line;
  line.title = title;
  line.x.title = has_epochs ? "epoch" : "step";
  line.y = y;
  if (!wide) line.width = half_width;
  line.series = std::move(series);
  return framed(line);
}

std::string heading(const ReportInput& input, const Lines& lines) {
  const json& start = lines.starts.front();
  std::string line = text(start, "kind");
  if (lines.has_images()) {
    line = "convolutional net";
    if (const auto net = start.find("net"); net != start.end() && net->is_object()) line += " " + text(*net, "name");
  }
  const double parameters = number(start, "parameters");
  if (std::isfinite(parameters)) line += " · " + count_text(parameters) + " parameters";
  if (!text(start, "dtype").empty()) line += " · " + text(start, "dtype");
  if (const double images = number(start, "train_images"); std::isfinite(images)) {
    line += " · " + whole_text(images) + " training images";
  }
  if (!text(start, "time").empty()) line += " · started " + text(start, "time");
  if (lines.starts.size() > 1) line += fmt::format(" · resumed, {} starts", lines.starts.size());
  std::string html = fmt::format("<header><h1>{}</h1><p>{}</p></header>\n",
                                 escape(input.title.empty() ? "training run" : input.title), escape(line));
  if (!lines.finished()) {
    const double step = number(lines.last_step(), "step");
    html += fmt::format(R"(<p class="banner"><b>This run is unfinished:</b> {}.</p>)",
                        std::isfinite(step) ? fmt::format("{} of {} steps are recorded", whole_text(step),
                                                          whole_text(number(lines.starts.back(), "steps")))
                                            : "no step has been recorded yet") +
            "\n";
  }
  return html;
}

// The evaluation with the least loss; an empty object without any.
json best_evaluation(const Lines& lines) {
  json best = json::object();
  for (const json& line : lines.evaluations) {
    const double loss = number(line, "loss");
    if (std::isfinite(loss) && !(loss >= number(best, "loss"))) best = line;
  }
  return best;
}

double median_rate(const Lines& lines) {
  std::vector<double> rates;
  for (const json& line : lines.steps) {
    if (const double rate = number(line, "targets_per_second"); std::isfinite(rate)) rates.push_back(rate);
  }
  if (rates.empty()) return missing;
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

std::string nats(double loss) { return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : std::string(nothing); }

// Cards of figures that are there.
class Cards {
 public:
  void add(std::string_view label, const std::string& value, const std::string& note, bool lead = false) {
    if (value != nothing) html_ += card(label, value, note, lead);
  }
  std::string html() const { return html_.empty() ? "" : "<div class=\"cards\" id=\"headline\">" + html_ + "</div>\n"; }

 private:
  std::string html_;
};

void add_losses(Cards& cards, const Lines& lines) {
  const json best = best_evaluation(lines);
  const double loss = number(best, "loss");
  cards.add("Validation loss", nats(loss),
            fmt::format("nats, best, after step {}; perplexity {:.2f}", whole_text(number(best, "step")), std::exp(loss)),
            true);
  cards.add("Training loss", nats(number(lines.last_step(), "loss")), "nats, last recorded", true);
}

// `keeps_best`: the model is that of the best evaluation, not of the last.
void add_accuracies(Cards& cards, const ReportInput& input, const Lines& lines, bool keeps_best) {
  if (input.test && input.test->images > 0) {
    const Classification& test = *input.test;
    cards.add("Test accuracy", percent(static_cast<double>(test.correct) / static_cast<double>(test.images)),
              fmt::format("{} images, {} view{} of each{}", whole_text(static_cast<double>(test.images)), test.views,
                          test.views == 1 ? "" : "s", test.model.empty() ? "" : "; " + test.model),
              true);
  }
  if (lines.evaluations.empty()) return;
  const json chosen = keeps_best ? best_evaluation(lines) : lines.evaluations.back();
  const double images = number(lines.starts.back(), "validation_images");
  cards.add("Validation accuracy", percent(number(chosen, "accuracy")),
            fmt::format("{} images as they are, after {}", whole_text(images), lines.time_of(number(chosen, "step"))), true);
  cards.add("Validation loss", nats(number(chosen, "loss")), "nats");
  cards.add("Training loss", nats(number(lines.last_step(), "loss")), "nats, last recorded");
}

std::string headline_of(const ReportInput& input, const Lines& lines) {
  const json last = lines.last_step();
  const json& start = lines.starts.back();
  const bool has_images = lines.has_images();
  const char* const unit = has_images ? "images" : "tokens";
  Cards cards;
  if (has_images) {
    add_accuracies(cards, input, lines, input.config.is_object() && text(input.config, "keep") == "best");
  } else {
    add_losses(cards, lines);
  }
  const double seconds = number(lines.finished() ? lines.result : last, "seconds");
  const double targets = number(last, "targets");
  cards.add("Time", duration_text(seconds), lines.finished() ? "everything included" : "so far");
  cards.add(has_images ? "Images" : "Tokens", count_text(targets), "trained on");
  const double rate = median_rate(lines);
  const double operations = number(start, has_images ? "operations_per_image" : "operations_per_token");
  const double share = rate * operations / number(start, "peak_operations");
  cards.add("Speed", std::isfinite(rate) ? count_text(rate) + "/s" : nothing,
            std::isfinite(share) ? fmt::format("{}, median; {:.0f}% of the matmul peak", unit, 100 * share)
                                 : fmt::format("{}, median", unit));
  // A forward pass, a third of a training step, whose multiplications and additions come in pairs.
  if (has_images) cards.add("Work per image", count_text(operations / 6), "multiply-adds to classify it");
  cards.add("Peak memory", bytes_text(number(last, "memory_bytes")), "of tensors");
  if (!has_images) cards.add("Kept for backward", bytes_text(number(last, "stash_bytes")), "of a micro-batch");
  cards.add("Model file", bytes_text(number(lines.result, "model_bytes")),
            has_images ? "parameters and moving averages" : "tokenizer included");
  return cards.html();
}

std::string curves(const Lines& lines) {
  const bool has_images = lines.has_images();
  const Series accuracy = curve(lines.evaluations, "accuracy", "", 1, 100);
  const bool has_accuracy = has_value(accuracy);
  const std::string loss =
      chart(lines, "Loss", {"nats"},
            {curve(lines.steps, "loss", "training", 0), curve(lines.evaluations, "loss", "validation", 1)}, !has_accuracy);
  std::vector<Series> memory{curve(lines.steps, "memory_bytes", has_images ? "" : "all", 5, 0x1p-20)};
  // A convolutional net's layers share tensors of the stash, which counts each of them twice.
  if (!has_images) memory.push_back(curve(lines.steps, "stash_bytes", "kept for backward", 6, 0x1p-20));
  const std::string rest =
      chart(lines, "Validation accuracy", {"%"}, {accuracy}, false) +
      chart(lines, "Learning rate", {"per step"}, {curve(lines.steps, "rate", "", 2)}, false) +
      chart(lines, "Gradient norm", {"before clipping, largest", true}, {curve(lines.steps, "gradient_norm", "", 3)}, false) +
      chart(lines, "Speed", {has_images ? "images/s" : "thousand tokens/s"},
            {curve(lines.steps, "targets_per_second", "", 4, has_images ? 1 : 1e-3)}, false) +
      chart(lines, "Memory of tensors", {"MiB, peak"}, memory, false);
  return section("curves", "Training",
                 has_images ? "The training loss is that of augmented images, under label smoothing if there is any; the "
                              "validation loss and accuracy are those of images as they are."
                            : "",
                 has_accuracy ? pair(loss + rest) : loss + pair(rest));
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
  const Lines lines(input.metrics);
  const json& start = lines.starts.front();
  std::string body = heading(input, lines) + headline_of(input, lines) + curves(lines) + timeline(input.events);
  body += classification(input) + filters_of(input) + float_layer_table(input.float_layers);
  ReportInput options;
  options.config = input.config;
  // A 0 or -1 that was given may stand for what the run found by itself.
  const json& latest = lines.starts.back();
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
