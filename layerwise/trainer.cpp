#include "layerwise/trainer.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "data/soft_labels.h"
#include "layerwise/run.h"

namespace bitloom::layerwise {

std::unique_ptr<Stage> Run::make_stage(std::size_t s) {
  TrainOptions training = for_stage(options_.train, options_.net.stages[s]);
  training.error_feedback_place = error_feedback_place_;
  return std::make_unique<Stage>(kernels_, comm_, options_.net.stages[s], result_.model.encoder, result_.model.layers,
                                 data_.train, training, stage_ids(options_.net)[s], trained_.before(s));
}

void EpochSums::add(const StepResult& step, double step_seconds) {
  const auto add_all = [](auto& total, const auto& part) {
    total.resize(part.size());
    for (std::size_t i = 0; i < part.size(); ++i) total[i] += part[i];
  };
  seconds += step_seconds;
  ++steps;
  ++steps_here;
  sums.images += step.images;
  sums.times += step.times;
  sums.exchange += step.exchange;
  add_all(sums.loss, step.loss);
  add_all(sums.correct, step.correct);
  add_all(sums.flips, step.flips);
  add_all(sums.active_share, step.active_share);
  if (!step.lower_share.empty()) {
    ++exact_steps;
    add_all(sums.lower_share, step.lower_share);
  }
}

void Run::show_step(const Stage& stage) {
  const std::size_t done = stage.step_number();
  const double images = std::max(1.0, static_cast<double>(epoch_.sums.images));
  const double left = static_cast<double>(stage.total_steps() - done) * epoch_.seconds / static_cast<double>(epoch_.steps);
  progress_.update(fmt::format(
      "{} step {}/{}: loss {:.3f}, training {:.1f}%, {:.0f} images/s, stage ends in {}", stage.spec().name, done,
      stage.total_steps(), epoch_.sums.loss.back() / images, 100.0 * static_cast<double>(epoch_.sums.correct.back()) / images,
      static_cast<double>(epoch_.sums.images) / std::max(epoch_.seconds, 1e-9), format_duration(left)));
}

void Run::train_stage(std::size_t s) {
  const std::unique_ptr<Stage> stage = make_stage(s);
  trained_.hand_over(s);
  std::size_t bits = 0;
  for (const auto& trainer : stage->trainers()) bits = std::max(bits, trainer->state_bits_per_weight());
  if (resume_from_) {  // with the sums of its epoch
    stage->load(*resume_from_);
    resume_from_.reset();
  } else {
    epoch_ = {};
  }
  const std::string kept = options_.train.sparse ? error_feedback_text(*stage->exchange(), error_feedback_place_,
                                                                       options_.train.workers, comm_.rank())
                                                 : "";
  progress_.line(fmt::format("{}: {} steps of {} images, {} bits of training state per weight{}", stage->spec().name,
                             stage->total_steps(), std::min(options_.train.batch, data_.train.size()), bits,
                             kept.empty() ? "" : ", besides what workers keep"));
  if (!kept.empty()) progress_.line(kept);
  const TrainOptions own = for_stage(options_.train, stage->spec());
  for (const auto& [name, value] : stage->spec().options) {
    const double used = value_of(own, name);
    const std::string said =
        used == value ? ", as the net says" : fmt::format(" because of the run's other options; the net says {:g}", value);
    progress_.line(fmt::format("{}: {} is {:g}{}", stage->spec().name, name, used, said));
  }
  open_.mark(stage_, stage->step_number(), true);
  inputs_->place(*stage, [&] { open_.mark(stage_, stage->step_number(), true); });
  dense_sent_ = 0;
  checkpoints_.start();
  while (!stage->finished()) {
    open_.wait_while_held(stage_, stage->step_number());
    const StepResult& step = take_step(*stage);
    if (step.stop && !stage->finished()) {
      checkpoints_.write(stage.get());
      stage->leave();
      fail(ErrorKind::interrupted, "interrupted at step {} of stage '{}'; everything is in {}", stage->step_number(),
           stage->spec().name, options_.folder.string());
    }
    if (step.checkpoint && !stage->finished()) checkpoints_.begin(*stage);
    checkpoints_.advance(*stage);
  }
  checkpoints_.cancel(*stage);
  finish_stage(*stage);
}

// A step, and at the end of an epoch its figures.
const StepResult& Run::take_step(Stage& stage) {
  const Clock::time_point before = Clock::now();
  const bool is_last = options_.stop_after_steps != 0 && result_.steps + 1 >= options_.stop_after_steps;
  const StepRequest request = {open_.is_stop_asked() || checkpoints_.has_failed() || is_last, checkpoints_.ask_if_due(),
                               options_.pace_seconds};
  const std::uint64_t sent_before = comm_.traffic(mpi::Collective::sum).bytes_sent;
  const StepResult& step = stage.step(request);
  // The first step also looks for thresholds to begin with.
  if (stage.step_number() > 1) {
    dense_sent_ = std::max(dense_sent_, comm_.traffic(mpi::Collective::sum).bytes_sent - sent_before);
  }
  epoch_.add(step, seconds_since(before));
  ++result_.steps;
  result_.images += step.images;

  const std::size_t done = stage.step_number();
  open_.mark(stage_, done, result_.steps == 1);  // the first of this process is what is waited for after a restart
  show_step(stage);
  const bool ends_epoch = done % stage.steps_per_epoch() == 0;
  if (ends_epoch || step.stop) stage.settle();
  if (ends_epoch) {
    peak_memory();
    open_.mark(stage_, done, true);
    report_epoch(stage);
    epoch_ = {};
  }
  return step;
}

// Encoder and layers as they are before training.
void Run::build_layers() {
  Model& model = result_.model;
  data_hash_ = data::content_hash(data_.train);
  soft_labels_hash_ = data::soft_labels_hash(data_.train);
  // Fitted by rank 0 alone, so that no float of the fit can differ between machines.
  TensorFile encoder;
  on_root([&] { encoder = fit_encoder(); });
  encoder_file_ = comm_.is_root() ? encoder.serialize() : std::vector<std::byte>{};
  encoder.metadata.clear();
  const std::vector<std::byte> encoder_bytes =
      comm_.broadcast_bytes(comm_.is_root() ? encoder.serialize() : std::vector<std::byte>{});
  model.encoder = Encoder::load(TensorFile::parse(encoder_bytes, "encoder"));
  identify(hash_bytes(encoder_bytes));
  const MapShape input = model.encoder.output();
  const auto geometry = derive_geometry(options_.net, input.height, input.width, input.channels);
  for (std::size_t i = 0; i < geometry.size(); ++i) model.layers.emplace_back(options_.net.layers[i], geometry[i]);
}

RunResult Run::execute() {
  claim_folder();
  build_layers();
  // All of them now, and before a folder is made: what is wrong with the last stage, or with the evaluation, would otherwise
  // show after hours.
  for (const StageSpec& stage : options_.net.stages) {
    check_stage(stage, result_.model.layers, data_.train, for_stage(options_.train, stage),
                static_cast<std::size_t>(comm_.size()));
  }
  check_views(options_.net.views, result_.model.encoder.image_shape(), "net.shift");
  const auto place = [this] {
    error_feedback_place_ = place_error_feedback(kernels_, comm_, options_, result_.model, data_.train, stage_);
  };
  if (!options_.resume) place();
  open_folder();
  if (options_.resume) {
    read_checkpoint();
    place();  // that of the stages that are left
  }
  const std::size_t all = options_.net.stages.size();
  const std::size_t wanted = options_.stages == 0 ? all : std::min(options_.stages, all);
  report_start();
  for (std::size_t s = 0; s < stage_ && wanted < all; ++s) keep_trained(s);
  while (stage_ < wanted) {
    if (resume_from_.has_value() || !reuse(stage_)) train_stage(stage_);
    // A later stage may train its layers again.
    if (wanted < all) keep_trained(stage_);
    ++stage_;
    checkpoints_.write(nullptr);
  }
  if (wanted == all) finish_run();
  return std::move(result_);
}

RunResult train(const simd::Kernels& kernels, mpi::Comm& comm, const RunOptions& options, const data::DataSplits& data,
                ProgressSink& progress) {
  return Run(kernels, comm, options, data, progress).execute();
}

}  // namespace bitloom::layerwise
