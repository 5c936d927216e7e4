#include <algorithm>
#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>

#include "layerwise/run.h"

namespace bitloom::layerwise {

using Json = nlohmann::json;

// The heads of `voters`, those of the stage under way as they are now.
Classifier Run::classifier(const std::vector<std::string>& voters, const Views& views, const Stage* stage) const {
  std::vector<const Head*> heads;
  std::vector<std::size_t> head_layers;
  for (const std::string& name : voters) {
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

void Run::report_epoch(const Stage& stage, const StepResult& epoch, std::size_t steps, double seconds) {
  const std::size_t number = stage.step_number() / stage.steps_per_epoch();
  const auto images = static_cast<double>(epoch.images);
  Json line = {{"event", "epoch"},
               {"stage", stage.spec().name},
               {"epoch", number},
               {"epochs", stage.spec().epochs},
               {"step", stage.step_number()},
               {"steps", stage.total_steps()},
               {"seconds", elapsed()},
               {"rate", stage.rate()},
               {"images_per_second", images / std::max(seconds, 1e-9)}};
  std::string text = fmt::format("{} epoch {}/{}:", stage.spec().name, number, stage.spec().epochs);
  std::vector<double> validation;
  if (data_.validation.size() != 0) {
    validation = classifier(stage.spec().heads, {false, 0}, &stage).head_accuracies(comm_, data_.validation);
  }
  for (std::size_t h = 0; h < stage.heads(); ++h) {
    const double loss = epoch.loss[h] / images;
    const double accuracy = static_cast<double>(epoch.correct[h]) / images;
    Json head = {{"layer", stage.head_layer(h)}, {"loss", loss}, {"train_accuracy", accuracy}};
    text += fmt::format(" {} loss {:.3f}, training {:.1f}%", stage.head_layer(h), loss, 100 * accuracy);
    if (!validation.empty()) {
      head["validation_accuracy"] = validation[h];
      text += fmt::format(", validation {:.1f}%", 100 * validation[h]);
    }
    line["heads"].push_back(head);
  }
  for (std::size_t t = 0; t < stage.trainers().size(); ++t) {
    const LayerTrainer& trainer = *stage.trainers()[t];
    const double flips = static_cast<double>(epoch.flips[t]) / static_cast<double>(steps);
    line["layers"].push_back(
        {{"layer", trainer.layer().spec().name},
         {"flips_per_step", flips},
         {"flip_share", flips / static_cast<double>(trainer.layer().channels() * trainer.layer().geometry().valid_bits)},
         {"active_share", epoch.active_share[t] / static_cast<double>(steps)},
         {"offset", trainer.mean_offset()},
         {"window", trainer.mean_window()}});
  }
  const PhaseTimes& times = epoch.times;
  line["times"] = {{"data", times.data}, {"encode", times.encode},     {"prefix", times.prefix}, {"forward", times.forward},
                   {"head", times.head}, {"gradient", times.gradient}, {"reduce", times.reduce}, {"update", times.update}};
  if (const mpi::ExchangeCounts& counts = epoch.exchange; counts.updates != 0 && comm_.is_root()) {
    const auto updates = static_cast<double>(counts.updates);
    const double up = static_cast<double>(counts.worker_bytes) / updates / static_cast<double>(options_.train.workers);
    const double down = static_cast<double>(counts.answer_bytes) / updates;
    const auto elements = static_cast<double>(counts.elements);
    line["exchange"] = {{"workers", options_.train.workers},
                        {"bytes_per_worker_update", up},
                        {"bytes_per_answer", down},
                        {"dense_f32_bytes", 4 * elements / static_cast<double>(counts.worker_updates)},
                        {"sent_share", static_cast<double>(counts.entries) / std::max(elements, 1.0)},
                        {"root_sent_down", counts.sent_down},
                        {"encode_seconds", counts.encode},
                        {"wait_seconds", counts.wait}};
    text += fmt::format(", {:.0f} bytes up and {:.0f} down per worker and update", up, down);
  }
  line["frozen"] = report_inputs(stage);
  if (comm_.is_root()) metrics_->write(line);
  progress_.line(text + fmt::format(", {:.0f} images/s", images / std::max(seconds, 1e-9)));
}

std::string validation_text(const std::optional<double>& accuracy) {
  return accuracy ? fmt::format(", validation {:.2f}%", 100 * *accuracy) : "";
}

Json to_json(const std::optional<double>& accuracy) { return accuracy ? Json(*accuracy) : Json(); }

// Collective: the accuracy of the vote on the validation images, if there are any. Shifted views are for the end.
std::optional<double> Run::validate(const std::vector<std::string>& voters) {
  if (data_.validation.size() == 0) return std::nullopt;
  return classifier(voters, {options_.net.views.mirror, 0}, nullptr).evaluate(comm_, data_.validation).accuracy();
}

void Run::report_stage(const StageSummary& summary) {
  result_.stages.push_back(summary);
  if (!comm_.is_root()) return;
  metrics_->write({{"event", "stage"},
                   {"stage", summary.name},
                   {"seconds", summary.seconds},
                   {"reused", summary.reused},
                   {"validation_accuracy", to_json(summary.validation_accuracy)}});
}

// Leaves what a stage gave in the cache. Trouble there must not cost the run: the same can be trained again.
void Run::store_stage(const Stage& stage) {
  if (cache_ == nullptr || !comm_.is_root()) return;
  TensorFile file;
  for (const auto& trainer : stage.trainers()) trainer->layer().save(file);
  for (std::size_t h = 0; h < stage.heads(); ++h) stage.head(h).save(file, stage.head_layer(h) + ".head", false);
  try {
    cache_->put(keys_[stage_].hex(), file.serialize());
  } catch (const std::exception& error) {
    progress_.line(fmt::format("cache: stage '{}' is not kept: {}", stage.spec().name, error.what()));
  }
}

void Run::finish_stage(const Stage& stage) {
  const StageSpec& spec = stage.spec();
  drop_outdated_heads(stage_);
  for (std::size_t h = 0; h < stage.heads(); ++h) result_.model.heads.insert_or_assign(stage.head_layer(h), stage.head(h));
  StageSummary summary{spec.name, 0, false, validate(spec.heads)};
  summary.seconds = elapsed();
  for (const StageSummary& earlier : result_.stages) summary.seconds -= earlier.seconds;
  comm_.together([&] {
    report_stage(summary);
    store_stage(stage);
  });
  progress_.line(fmt::format("{}: done in {}{}", spec.name, format_duration(summary.seconds),
                             validation_text(summary.validation_accuracy)));
}

// Evaluates the net and writes the model, which replaces the checkpoints.
void Run::finish_run() {
  Model& model = result_.model;
  const MapShape input = model.encoder.output();
  const Classifier voters = classifier(model.net.classifier, model.net.views, nullptr);
  if (data_.validation.size() != 0) result_.validation = voters.evaluate(comm_, data_.validation);
  if (data_.test.size() != 0) result_.test = voters.evaluate(comm_, data_.test);
  result_.seconds = elapsed();
  model.notes = {{"data", options_.data_name},
                 {"seed", fmt::format("{}", options_.train.seed)},
                 {"options", describe(options_.train)},
                 {"training_seconds", fmt::format("{:.1f}", result_.seconds)}};
  const auto accuracy = [](const Evaluation& evaluation) {
    return evaluation.images == 0 ? std::nullopt : std::optional<double>(evaluation.accuracy());
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
  mark_progress(0, true);
  on_root([&] {
    finish_writing();
    const auto path = options_.folder / model_name;
    const auto next = options_.folder / "model.next.safetensors";
    model.save(next);
    const std::size_t classes = model.class_names.size();
    Json confusion = Json::array();
    for (std::size_t l = 0; l < classes && !result_.test.confusion.empty(); ++l) {
      const auto row = result_.test.confusion.begin() + static_cast<std::ptrdiff_t>(l * classes);
      confusion.push_back(std::vector<std::int64_t>(row, row + static_cast<std::ptrdiff_t>(classes)));
    }
    metrics_->write({{"event", "result"},
                     {"validation_accuracy", to_json(accuracy(result_.validation))},
                     {"test_accuracy", to_json(accuracy(result_.test))},
                     {"images", result_.test.images},
                     {"confusion", confusion},
                     {"classes", model.class_names},
                     {"seconds", result_.seconds},
                     {"peak_memory_bytes", peak_memory()},
                     {"model_bytes", std::filesystem::file_size(next)},
                     {"weight_bits", model.weight_bits()},
                     {"bit_macs", model.bit_macs()}});
    // With the model in its place the run is finished, and the model says it all.
    std::filesystem::rename(next, path);
    std::error_code ignored;
    std::filesystem::remove(options_.folder / checkpoint_name, ignored);
    std::filesystem::remove(options_.folder / previous_name, ignored);
  });
}

std::uint64_t peak_memory() {
  // VmHWM would count file pages that the kernel can drop; RssAnon is what the process really needs.
  static std::atomic<std::uint64_t> peak = 0;
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("RssAnon:")) peak = std::max<std::uint64_t>(peak, std::stoull(line.substr(8)) * 1024);
  }
  return peak;
}

}  // namespace bitloom::layerwise
