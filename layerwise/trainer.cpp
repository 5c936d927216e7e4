#include "layerwise/trainer.h"

#include <algorithm>

#include "core/error.h"
#include "layerwise/run.h"

namespace bitloom::layerwise {

std::unique_ptr<Stage> Run::make_stage(std::size_t s) {
  Earlier earlier;
  for (std::size_t before = 0; before < s; ++before) {
    const auto& names = options_.net.stages[before].train;
    earlier.layers.insert(earlier.layers.end(), names.begin(), names.end());
  }
  earlier.heads = &result_.model.heads;
  // 20 bits of the key separate the random streams of stages; equal stages of two nets draw equal numbers.
  return std::make_unique<Stage>(kernels_, comm_, options_.net.stages[s], result_.model.encoder, result_.model.layers,
                                 data_.train, for_stage(options_.train, options_.net.stages[s]), keys_[s].low & 0xFFFFF,
                                 earlier);
}

void Run::train_stage(std::size_t s) {
  const std::unique_ptr<Stage> stage = make_stage(s);
  std::size_t bits = 0;
  for (const auto& trainer : stage->trainers()) bits = std::max(bits, trainer->state_bits_per_weight());
  if (resume_from_) {
    stage->load(*resume_from_);
    resume_from_.reset();
  }
  progress_.line(fmt::format("{}: {} steps of {} images, {} bits of training state per weight", stage->spec().name,
                             stage->total_steps(), std::min(options_.train.batch, data_.train.size()), bits));
  for (const auto& [name, value] : stage->spec().options) {
    progress_.line(fmt::format("{}: {} is {:g}, as the net says", stage->spec().name, name, value));
  }
  mark_progress(stage->step_number(), true);
  place_inputs(*stage);
  StepResult epoch;
  std::size_t epoch_steps = 0;
  double epoch_seconds = 0;
  Clock::time_point last_checkpoint = Clock::now();
  while (!stage->finished()) {
    const Clock::time_point before = Clock::now();
    const StepRequest request = {
        (options_.stop && options_.stop()) ||
            (options_.stop_after_steps != 0 && result_.steps + 1 >= options_.stop_after_steps),
        comm_.is_root() && seconds_since(last_checkpoint) >= options_.checkpoint_seconds && !is_writing()};
    const StepResult& step = stage->step(request);
    epoch_seconds += seconds_since(before);
    ++epoch_steps;
    ++result_.steps;
    result_.images += step.images;
    const auto add = [](auto& total, const auto& part) {
      total.resize(part.size());
      for (std::size_t i = 0; i < part.size(); ++i) total[i] += part[i];
    };
    epoch.images += step.images;
    epoch.times += step.times;
    epoch.exchange += step.exchange;
    add(epoch.loss, step.loss);
    add(epoch.correct, step.correct);
    add(epoch.flips, step.flips);
    add(epoch.active_share, step.active_share);

    const std::size_t done = stage->step_number();
    mark_progress(done, false);
    const double rate = static_cast<double>(epoch.images) / std::max(epoch_seconds, 1e-9);
    const double left = static_cast<double>((stage->total_steps() - done) * step.images) / rate;
    progress_.update(fmt::format(
        "{} step {}/{}: loss {:.3f}, training {:.1f}%, {:.0f} images/s, stage ends in {}", stage->spec().name, done,
        stage->total_steps(), epoch.loss.back() / static_cast<double>(epoch.images),
        100.0 * static_cast<double>(epoch.correct.back()) / static_cast<double>(epoch.images), rate, format_duration(left)));
    if (done % stage->steps_per_epoch() == 0) {
      peak_memory();
      mark_progress(done, true);
      report_epoch(*stage, epoch, epoch_steps, epoch_seconds);
      epoch = {};
      epoch_steps = 0;
      epoch_seconds = 0;
    }
    if (step.stop && !stage->finished()) {
      write_checkpoint(stage.get(), true);
      fail(ErrorKind::interrupted, "interrupted at step {} of stage '{}'; everything is in {}", done, stage->spec().name,
           options_.folder.string());
    }
    if (step.checkpoint && !stage->finished()) {
      write_checkpoint(stage.get(), false);
      last_checkpoint = Clock::now();
    }
  }
  finish_stage(*stage);
}

// Encoder and layers as they are before training.
void Run::build_layers() {
  Model& model = result_.model;
  // Fitted by rank 0 alone, so that no float of the fit can differ between machines.
  TensorFile encoder;
  on_root([&] { Encoder::fit(options_.net.encoder, data_.train, options_.train.seed).save(encoder); });
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
  // All of them now, and before a folder is made: what is wrong with the last stage would otherwise show after hours.
  for (const StageSpec& stage : options_.net.stages) {
    check_stage(stage, result_.model.layers, data_.train, for_stage(options_.train, stage),
                static_cast<std::size_t>(comm_.size()));
  }
  open_folder();
  if (options_.resume) read_checkpoint();
  while (stage_ < options_.net.stages.size()) {
    if (resume_from_.has_value() || !reuse(stage_)) train_stage(stage_);
    ++stage_;
    if (stage_ < options_.net.stages.size()) write_checkpoint(nullptr, true);
  }
  finish_run();
  return std::move(result_);
}

RunResult train(const simd::Kernels& kernels, mpi::Comm& comm, const RunOptions& options, const data::DataSplits& data,
                ProgressSink& progress) {
  return Run(kernels, comm, options, data, progress).execute();
}

}  // namespace bitloom::layerwise
