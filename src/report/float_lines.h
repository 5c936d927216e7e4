// The metrics of a float model's run, and the cards and charts that pages of several kinds have; private to this folder.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "report/plot.h"
#include "report/report.h"

namespace bitloom::report {

// The lines by event. What is missing is an empty object.
struct FloatLines {
  std::vector<nlohmann::json> starts, steps, evaluations;
  std::vector<nlohmann::json> exchanges;  // rounds of local steps
  std::vector<nlohmann::json> samples;
  nlohmann::json result = nlohmann::json::object();
  nlohmann::json test = nlohmann::json::object();  // of the model, at the end of the run
  std::string kind;                                // of the model
  bool keeps_best = false;                         // the model is that of the best evaluation, not of the last

  explicit FloatLines(const ReportInput& input);
  bool finished() const { return !result.empty(); }
  const nlohmann::json& first_start() const { return starts.empty() ? none_ : starts.front(); }
  const nlohmann::json& last_start() const { return starts.empty() ? none_ : starts.back(); }
  const nlohmann::json& last_step() const { return steps.empty() ? none_ : steps.back(); }
  const nlohmann::json& best_evaluation() const;  // with the least loss
  const nlohmann::json& last_evaluation() const { return evaluations.empty() ? none_ : evaluations.back(); }
  const nlohmann::json& evaluation_of_model() const { return keeps_best ? best_evaluation() : last_evaluation(); }

  // A number of the start line's description of the net.
  double of_net(const char* key) const;
  // By which steps become the chart's x, epochs, where pages have those; NaN elsewhere.
  double steps_per_epoch() const;
  // "epoch 3", "step 1,200"
  std::string time_of(double step) const;

 private:
  nlohmann::json none_ = nlohmann::json::object();
};

// A key of lines over their steps.
Series curve(const std::vector<nlohmann::json>& lines, const char* key, const char* name, int colour, double scale = 1);
bool has_value(const Series& series);
// Chart of curves that have values; "" if only faint ones do. wide: over the whole page. faint_note: what faint ones are.
std::string chart(const FloatLines& lines, const char* title, const Axis& y, std::vector<Series> series, bool wide,
                  const char* faint_note = "");

// Losses of training and validation, in nats.
std::string loss_chart(const FloatLines& lines, bool wide);
// Learning rate, gradient norm, speed and memory. unit: of the rate times `scale`, "images/s". stash: with the memory that is
// kept for backward passes.
std::string engine_curves(const FloatLines& lines, const char* unit, double scale, bool stash);
// Gradient scales of all residual blocks; "" where these have none of their own.
std::string gradient_scale_chart(const FloatLines& lines);

// Charts of local steps: workers and waiting by round; "" for other runs.
std::string exchange_charts(const FloatLines& lines);

// "0.1234", or a dash.
std::string nats(double loss);

// Cards of figures that are there.
class Cards {
 public:
  void add(std::string_view label, const std::string& value, const std::string& note, bool lead = false);
  std::string html() const { return html_.empty() ? "" : "<div class=\"cards\" id=\"headline\">" + html_ + "</div>\n"; }

 private:
  std::string html_;
};

// Cards on time, speed, memory and the model file. Nouns of what a step counts: "Images", "images". operations: key of the
// start line. stash: with the memory that is kept for backward passes. model_note: what the file has.
struct CostCards {
  const char* heading;
  const char* unit;
  const char* operations = "operations_per_token";
  bool per_image = false;  // with the work for one image
  bool stash = false;
  const char* model_note = "";
};
void add_costs(Cards& cards, const FloatLines& lines, const CostCards& what);

// pairs_report.cpp: of models of images and captions.
std::string dvae_cards(const ReportInput& input, const FloatLines& lines);
std::string dvae_curves(const FloatLines& lines);
std::string dalle_cards(const ReportInput& input, const FloatLines& lines);
std::string dalle_curves(const FloatLines& lines);
std::string clip_cards(const ReportInput& input, const FloatLines& lines);
std::string clip_curves(const FloatLines& lines);
// section_pairs.cpp
std::string samples(const ReportInput& input, const FloatLines& lines);
std::string reconstructions(const ReportInput& input);
std::string code_use(const ReportInput& input);
std::string similarities(const ReportInput& input);
// Text that a GPT drew as it was trained.
std::string text_samples(const FloatLines& lines);

}  // namespace bitloom::report
