#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "core/utc.h"
#include "core/version.h"
#include "layerwise/run.h"

namespace bitloom::layerwise {
namespace {

std::atomic<std::uint64_t> most_memory = 0;

}  // namespace

using Json = nlohmann::json;

// The heads of `members`, those of the stage under way as they are now.
Classifier Run::classifier(const std::vector<std::string>& members, const Views& views, const Stage* stage) const {
  std::vector<const Head*> heads;
  std::vector<std::size_t> head_layers;
  for (const std::string& name : members) {
    for (std::size_t i = 0; i < result_.model.layers.size(); ++i) {
      if (result_.model.layers[i].spec().name == name) head_layers.push_back(i);
    }
    const Head* head = stage == nullptr ? &result_.model.heads.at(name) : nullptr;
    for (std::size_t h = 0; stage != nullptr && h < stage->heads(); ++h) {
      if (stage->head_layer(h) == name) head = &stage->head(h);
    }
    heads.push_back(head);
  }
  return Classifier(kernels_, result_.model.encoder, result_.model.layers, heads, head_layers, views);
}

void Run::report_epoch(const Stage& stage) {
  const StepResult& epoch = epoch_.sums;
  const std::size_t steps = epoch_.steps;
  const double seconds = epoch_.seconds;
  const std::size_t number = stage.step_number() / stage.steps_per_epoch();
  const double images = std::max(1.0, static_cast<double>(epoch.images));
  Json line = {{"event", "epoch"},
               {"stage", stage.spec().name},
               {"epoch", number},
               {"epochs", stage.spec().epochs},
               {"step", stage.step_number()},
               {"steps", stage.total_steps()},
               {"seconds", open_.elapsed()},
               {"rate", stage.rate()},
               {"images_per_second", images / std::max(seconds, 1e-9)}};
  std::string text = fmt::format("{} epoch {}/{}:", stage.spec().name, number, stage.spec().epochs);
  std::vector<double> validation;
  if (data_.validation.size() != 0) {
    validation = classifier(stage.spec().heads, {false, 0}, &stage).head_accuracies(comm_, data_.validation, watch());
  }
  for (std::size_t h = 0; h < stage.heads(); ++h) {
    const double loss = epoch.loss[h] / images;
    const double accuracy = static_cast<double>(epoch.correct[h]) / images;
    Json head = {{"layer", stage.head_layer(h)}, {"loss", loss}, {"train_accuracy", accuracy}};
    text += fmt::format("{} {} loss {:.3f}, training {:.1f}%", h == 0 ? "" : ";", stage.head_layer(h), loss, 100 * accuracy);
    if (!validation.empty()) {
      head["validation_accuracy"] = validation[h];
      text += fmt::format(", validation {:.1f}%", 100 * validation[h]);
    }
    line["heads"].push_back(head);
  }
  for (std::size_t t = 0; t < stage.trainers().size(); ++t) {
    const LayerTrainer& trainer = *stage.trainers()[t];
    const double flips = static_cast<double>(epoch.flips[t]) / static_cast<double>(steps);
    line["layers"].push_back({{"layer", trainer.layer().spec().name},
                              {"flips_per_step", flips},
                              {"flip_share", flips / static_cast<double>(trainer.layer().weights())},
                              {"active_share", epoch.active_share[t] / static_cast<double>(steps)},
                              {"offset", trainer.mean_offset()},
                              {"window", trainer.mean_window()}});
    if (epoch.lower_share.size() > t) {
      line["layers"].back()["lower_share"] = epoch.lower_share[t] / static_cast<double>(epoch_.exact_steps);
    }
  }
  line["times"] = to_json(epoch.times);
  const ExchangeReport messages(comm_, options_.train, stage, progress_);
  if (epoch.exchange.updates != 0) line["exchange"] = messages.sum_up(epoch, text);
  line["frozen"] = inputs_->report(stage);
  if (comm_.is_root()) open_.metrics().write(line);
  progress_.line(text + fmt::format(", {:.0f} images/s", images / std::max(seconds, 1e-9)));
  // The first of several epochs begins with other updates; one that was continued has only some.
  const bool whole = epoch_.steps_here == stage.steps_per_epoch() && (!options_.train.sparse || line.contains("exchange"));
  const std::size_t begin = stage.step_number() - steps;
  const bool learned = options_.train.sparse ? stage.learns(begin) : stage.learns_weights(begin);
  if (!whole || !learned || (number == 1 && stage.spec().epochs > 1)) return;
  const Json exchange = line.value("exchange", Json::object());
  if (number <= 2) messages.check_budget(exchange);
  const auto planned = options_.planned.find(stage.spec().name);
  if (planned != options_.planned.end()) messages.check_plan(exchange, planned->second, dense_sent_);
}

std::string validation_text(const StageSummary& summary) {
  if (!summary.validation_accuracy) return "";
  const std::string plain = summary.plain_accuracy && *summary.plain_accuracy != *summary.validation_accuracy
                                ? fmt::format(" ({:.2f}% without mirror images)", 100 * *summary.plain_accuracy)
                                : "";
  return fmt::format(", validation {:.2f}%{}", 100 * *summary.validation_accuracy, plain);
}

namespace {

struct TimesRow {
  const char* name;
  double PhaseTimes::*member;
};
constexpr auto times_table = std::to_array<TimesRow>({{"data", &PhaseTimes::data},
                                                      {"encode", &PhaseTimes::encode},
                                                      {"prefix", &PhaseTimes::prefix},
                                                      {"forward", &PhaseTimes::forward},
                                                      {"head", &PhaseTimes::head},
                                                      {"gradient", &PhaseTimes::gradient},
                                                      {"reduce", &PhaseTimes::reduce},
                                                      {"update", &PhaseTimes::update}});

}  // namespace

Json to_json(const PhaseTimes& times) {
  Json json;
  for (const TimesRow& row : times_table) json[row.name] = times.*row.member;
  return json;
}

PhaseTimes times_of(const Json& json) {
  PhaseTimes times;
  for (const TimesRow& row : times_table) times.*row.member = json.value(row.name, 0.0);
  return times;
}

Json to_json(const std::optional<double>& accuracy) { return accuracy ? Json(*accuracy) : Json(); }

// Signs of life while the net is evaluated, after `images_before` images of another set.
EvaluationWatch Run::watch(std::size_t images_before) {
  if (!comm_.is_root()) return {};
  return {[this, images_before](std::size_t images) { open_.mark_evaluated(images_before + images); }, nullptr};
}

// Collective: the accuracy of a stage on the validation images, if there are any: of the vote of those of its heads that the
// net classifies with, or of all where it does so with none. Shifted views are for the end.
void Run::validate(const StageSpec& spec, StageSummary& summary) {
  if (data_.validation.size() == 0) return;
  std::vector<std::string> members;
  std::ranges::copy_if(spec.heads, std::back_inserter(members),
                       [&](const std::string& name) { return contains(options_.net.classifier, name); });
  if (members.empty()) members = spec.heads;
  const Evaluation vote =
      classifier(members, {options_.net.views.mirror, 0}, nullptr).evaluate(comm_, data_.validation, watch());
  summary.validation_accuracy = vote.accuracy();
  summary.plain_accuracy = vote.plain_accuracy();
}

// The process as the report shows it. Every start has a line.
void Run::report_start() {
  on_root([&] {
    open_.metrics().write({{"event", "start"},
                           {"time", utc_now()},
                           {"version", version},
                           {"command", options_.command},
                           {"net", options_.net.name},
                           {"data", options_.data_name},
                           {"ranks", comm_.size()},
                           {"threads", omp_get_max_threads()},
                           {"kernels", kernels_.name},
                           {"train_images", data_.train.size()},
                           {"validation_images", data_.validation.size()},
                           {"test_images", data_.test.size()}});
  });
}

void Run::report_stage(const StageSummary& summary) {
  result_.stages.push_back(summary);
  if (!comm_.is_root()) return;
  Json line = {{"event", "stage"},
               {"stage", summary.name},
               {"time", utc_now()},
               {"seconds", summary.seconds},
               {"images", summary.images},
               {"reused", summary.reused},
               {"validation_accuracy", to_json(summary.validation_accuracy)},
               {"validation_accuracy_plain", to_json(summary.plain_accuracy)}};
  if (!summary.trained_by.run.empty()) line["trained"] = origin_json(summary.trained_by);
  open_.metrics().write(line);
}

// History of finished stage s, at rank 0: the metrics have all of it, also what earlier processes trained, or another run.
std::string Run::history_text(std::size_t s) const {
  double begin = 0;
  for (std::size_t before = 0; before < s; ++before) begin += result_.stages[before].seconds;
  return to_text(history_of(read_metrics(options_.folder / run::metrics_name), options_.net.stages[s].name,
                            std::filesystem::absolute(options_.folder).lexically_normal().string(), begin));
}

// Collective: for other runs, in RunResult.
void Run::keep_trained(std::size_t s) {
  std::string history;
  on_root([&] { history = history_text(s); });
  // A stage that goes on in its middle has changed its layers, too.
  const std::size_t begun = stage_ + (resume_from_.has_value() ? 1 : 0);
  result_.trained[keys_[s].hex()] = trained_.bytes(s, std::max(begun, s + 1), comm_.broadcast_text(history));
}

// Leaves what the stage gave in the cache. Trouble there must not cost the run: the same can be trained again.
void Run::store_stage() {
  if (cache_ == nullptr || !comm_.is_root() || depends_on_time()) return;
  try {
    if (cache_->put(keys_[stage_].hex(), trained_.bytes(stage_, stage_ + 1, history_text(stage_)))) return;
    progress_.line(fmt::format("cache: stage '{}' is not kept: there is no room for it", options_.net.stages[stage_].name));
  } catch (const std::exception& error) {
    progress_.line(fmt::format("cache: stage '{}' is not kept: {}", options_.net.stages[stage_].name, error.what()));
  }
}

void Run::finish_stage(const Stage& stage) {
  const StageSpec& spec = stage.spec();
  trained_.take(comm_, stage, stage_);
  StageSummary summary;
  summary.name = spec.name;
  validate(spec, summary);
  summary.seconds = open_.elapsed();
  summary.images = result_.images;
  for (const StageSummary& earlier : result_.stages) {
    summary.seconds -= earlier.seconds;
    summary.images -= earlier.images;
  }
  comm_.together([&] {
    report_stage(summary);
    store_stage();
  });
  trained_.drop_states(stage_);
  progress_.line(fmt::format("{}: done in {}{}", spec.name, format_duration(summary.seconds), validation_text(summary)));
}

namespace {

Json to_json(const std::vector<Mistake>& mistakes) {
  Json json = Json::array();
  for (const Mistake& each : mistakes) {
    json.push_back({{"image", each.image}, {"label", each.label}, {"probability", each.probability}});
  }
  return json;
}

}  // namespace

// Evaluates the net and writes the model, which replaces the checkpoints. All stages are in the checkpoint by now, so that the
// evaluation alone is done again when it is broken off.
void Run::finish_run() {
  Model& model = result_.model;
  for (const std::string& name : model.net.classifier) model.heads.at(name).round_weights(model.net.head_bits);
  const MapShape input = model.encoder.output();
  const Classifier ensemble = classifier(model.net.classifier, model.net.views, nullptr);
  open_.mark(stage_, 0, true);
  std::size_t evaluated = 0;
  const auto evaluate = [&](const data::Dataset& images) {
    if (images.size() == 0) return Evaluation{};
    EvaluationWatch watching = watch(evaluated);
    watching.stop = options_.stop;
    evaluated += images.size();
    return ensemble.evaluate(comm_, images, watching);
  };
  result_.validation = evaluate(data_.validation);
  result_.test = evaluate(data_.test);
  result_.seconds = open_.elapsed();
  // Nothing of how the run went or where its images lay: a model is a function of data, net and options.
  model.notes = {{"data", fmt::format("{} training images, content {}", data_.train.size(), data_hash_)},
                 {"seed", fmt::format("{}", options_.train.seed)},
                 {"options", describe(options_.train)}};
  const auto accuracy = [](const Evaluation& evaluation, bool plain = false) {
    return evaluation.images == 0 ? std::nullopt
                                  : std::optional<double>(plain ? evaluation.plain_accuracy() : evaluation.accuracy());
  };
  const auto note = [&](const char* name, const Evaluation& evaluation) {
    if (const auto reached = accuracy(evaluation)) model.notes[name] = fmt::format("{:.4f}", *reached);
  };
  note("validation_accuracy", result_.validation);
  note("test_accuracy", result_.test);
  // Auxiliary layers that only their stage used are not part of the result.
  model.net = without_discarded(model.net);
  TensorFile trained;
  for (const BinaryLayer& layer : model.layers) layer.save(trained);
  const auto kept = derive_geometry(model.net, input.height, input.width, input.channels);
  model.layers.clear();
  for (std::size_t i = 0; i < kept.size(); ++i) {
    model.layers.emplace_back(model.net.layers[i], kept[i]);
    model.layers.back().load(trained);
  }
  std::erase_if(model.heads, [&](const auto& head) { return model.net.find(head.first) == nullptr; });
  // Often larger than the layers' weights, and nothing to classify with.
  const std::map<std::string, Head> other_heads = model.take_other_heads();
  on_root([&] {
    open_.checkpoints().finish();
    open_.metrics().sync();
    const auto path = options_.folder / run::model_name;
    const auto next = options_.folder / next_model_name;
    model.save(next);
    if (other_heads.empty()) {
      std::filesystem::remove(options_.folder / heads_name);  // an earlier run's
    } else {
      save_heads(other_heads, options_.folder / heads_name);
    }
    const std::size_t classes = model.class_names.size();
    Json confusion = Json::array();
    for (std::size_t l = 0; l < classes && !result_.test.confusion.empty(); ++l) {
      const auto row = result_.test.confusion.begin() + static_cast<std::ptrdiff_t>(l * classes);
      confusion.push_back(std::vector<std::int64_t>(row, row + static_cast<std::ptrdiff_t>(classes)));
    }
    const Views& views = model.net.views;
    open_.metrics().write({{"event", "result"},
                           {"validation_accuracy", to_json(accuracy(result_.validation))},
                           {"test_accuracy", to_json(accuracy(result_.test))},
                           {"validation_accuracy_plain", to_json(accuracy(result_.validation, true))},
                           {"test_accuracy_plain", to_json(accuracy(result_.test, true))},
                           {"ensemble", model.net.classifier},
                           {"views", {{"mirror", views.mirror}, {"shift", views.shift}, {"sure", views.sure}}},
                           {"images", result_.test.images},
                           {"confusion", confusion},
                           {"classes", model.class_names},
                           {"mistakes", to_json(result_.test.mistakes)},
                           {"test_hash", data_.test.size() == 0 ? "" : data::content_hash(data_.test)},
                           {"seconds", result_.seconds},
                           {"peak_memory_bytes", peak_memory()},
                           {"model_bytes", std::filesystem::file_size(next)},
                           {"weight_bits", model.weight_bits()},
                           {"bit_macs", model.bit_macs()}});
    // With the model in its place the run is finished, and the model says it all.
    std::filesystem::rename(next, path);
    run::remove_checkpoints(options_.folder);
    std::error_code ignored;
    std::filesystem::remove(options_.folder / encoder_name, ignored);
  });
}

void forget_peak_memory() { most_memory = 0; }

std::uint64_t peak_memory() {
  // VmHWM would count file pages that the kernel can drop; RssAnon is what the process really needs.
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("RssAnon:")) most_memory = std::max<std::uint64_t>(most_memory, std::stoull(line.substr(8)) * 1024);
  }
  return most_memory;
}

}  // namespace bitloom::layerwise
