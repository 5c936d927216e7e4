#include "layerwise/stage.h"

#include <algorithm>
#include <span>

namespace bitloom::layerwise {

std::uint64_t bytes_kept_by_worker(const simd::Kernels& kernels, const StageSpec& spec, const Encoder& encoder,
                                   std::vector<BinaryLayer> layers, const data::Dataset& train, TrainOptions options) {
  if (options.exchange.exact() || options.exchange.error_feedback == mpi::ErrorFeedback::none) return 0;
  options.workers = options.batch = 1;
  mpi::Comm alone;
  const Stage stage(kernels, alone, spec, encoder, layers, train, options, 0, {});
  return stage.exchange()->error_feedback_bytes();
}

Stage::Stage(const simd::Kernels& kernels, mpi::Comm& comm, const StageSpec& spec, const Encoder& encoder,
             std::vector<BinaryLayer>& layers, const data::Dataset& train, const TrainOptions& options, std::uint64_t id,
             const Earlier& earlier)
    : setup_(make_setup(kernels, comm, spec, layers, train, options, id)),
      workers_(options.workers, train.size(), setup_.batch, options.seed),
      share_(stage_exchange(options).share(setup_, workers_)),
      learners_(setup_, earlier),
      passes_(setup_, encoder, workers_, learners_, share_.at_once),
      exchange_(stage_exchange(options).make({setup_, workers_, learners_, passes_})) {}

// Thresholds need statistics before they mean anything: layer by layer, each on the thresholds found for those below.
void Stage::initialise() {
  for (std::size_t t = 0; t < learners_.layers.size(); ++t) {
    LayerSums& sums = learners_.layers[t].sums;
    passes_.count_first(t, step_.number, share_.places);
    setup_.comm.sum(std::span(sums.statistics));
    learners_.trainers[t]->set_statistics(sums, setup_.batch);
    exchange_->take_first_statistics(t);
    sums.clear();
  }
  initialised_ = true;
}

const StepResult& Stage::step(const StepRequest& request) {
  if (!initialised_) initialise();
  step_.request = request;
  step_.result.clear(learners_.heads.size(), learners_.layers.size());
  exchange_->step(step_);
  for (std::size_t t = 0; t < learners_.layers.size(); ++t) {
    step_.result.active_share[t] = learners_.layers[t].active_share;
  }
  ++step_.number;
  return step_.result;
}

std::vector<std::uint64_t> Stage::records_to_read() const {
  const std::size_t begin = step_number() / steps_per_epoch();
  const std::size_t end = std::min(begin + inputs().copies(), spec().epochs);
  std::vector<std::uint64_t> records;
  for (const std::uint32_t image : workers_.images(share_.workers.first, share_.workers.second)) {
    for (std::size_t epoch = begin; epoch < end; ++epoch) records.push_back(inputs().record_of(image, epoch));
  }
  std::sort(records.begin(), records.end());
  return records;
}

void Stage::save(TensorFile& file) {
  cancel_save();
  begin_save(file);
  exchange_->wait_for_save();
  if (setup_.comm.is_root()) end_save(file);
}

void Stage::begin_save(TensorFile& file) {
  learners_.save(file, spec());
  file.put("stage.progress", {2}, std::vector<std::uint64_t>{step_number(), initialised_ ? 1U : 0U});
  exchange_->begin_save(file);
}

void Stage::load(const TensorFile& file) {
  const auto progress = file.get("stage.progress", DType::u64, {2}).as<std::uint64_t>();
  learners_.load(file, spec());
  step_.number = progress[0];
  passes_.forget_images();
  initialised_ = progress[1] != 0;
  exchange_->load(file, step_number());
}

}  // namespace bitloom::layerwise
