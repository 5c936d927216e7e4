// One stage of greedy training: some layers learn, under their auxiliary heads, on the bits that the frozen layers below
// produce. A step is a function of (net, data, options, step number): any number of ranks and threads gives the same bits.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "layerwise/count_cache.h"
#include "layerwise/exact_head.h"
#include "layerwise/exact_signal.h"
#include "layerwise/gradient.h"
#include "layerwise/head.h"
#include "layerwise/layer_trainer.h"
#include "layerwise/phase_times.h"
#include "layerwise/stage_inputs.h"
#include "layerwise/train_options.h"
#include "layerwise/update_layout.h"
#include "layerwise/workers.h"
#include "mpi/comm.h"
#include "mpi/sparse_exchange.h"

namespace bitloom::layerwise {

// A rank's requests for a step. Those that others must know travel with the step's sums, so that no message is spent on them.
struct StepRequest {
  bool stop = false;        // the run is to end after this step
  bool checkpoint = false;  // it is time for one
  // Shortest time that this rank's computing takes, in seconds, as on a slower machine.
  double pace_seconds = 0;
};

// With sparse messages and staleness, of an update some steps ago: of none in a stage's first steps, of several in its last.
struct StepResult {
  std::size_t images = 0;            // number of images in these sums
  std::vector<double> loss;          // per head, summed over images, in nats
  std::vector<std::size_t> correct;  // per head
  std::vector<std::size_t> flips;    // per trained layer
  std::vector<double> active_share;  // per trained layer, when it was last summed
  std::vector<CountMode> modes;      // per trained layer: how it was computed
  PhaseTimes times;                  // of this rank
  mpi::ExchangeCounts exchange;      // counts of this rank, with sparse messages
  // Whether any rank asked for it in its StepRequest.
  bool stop = false, checkpoint = false;

  // Keeps the memory.
  void clear(std::size_t heads, std::size_t layers);
};

// Results of earlier stages for the layers that a stage trains again: they keep their weights, and their heads start
// from those that were there.
struct Earlier {
  std::vector<std::string> layers;
  const std::map<std::string, Head>* heads = nullptr;
};

// Throws the usage errors of a stage of `layers` (those of the whole net) that follow from its description and the options
// alone: so that no run finds them when the stages before have been trained.
void check_stage(const StageSpec& spec, const std::vector<BinaryLayer>& layers, const data::Dataset& train,
                 const TrainOptions& options, std::size_t ranks);

// Bytes that each worker of a stage keeps of what it does not send (SparseExchange::error_feedback_bytes), found without room
// for all workers; `layers` stay as they are. 0 where workers keep nothing.
std::uint64_t bytes_kept_by_worker(const simd::Kernels& kernels, const StageSpec& spec, const Encoder& encoder,
                                   std::vector<BinaryLayer> layers, const data::Dataset& train, TrainOptions options);

// Prefix of its exchange's tensors in checkpoints.
inline constexpr const char* exchange_name = "stage.exchange";

class Stage {
 public:
  // `layers` are the layers of the whole net; those before the stage's are trained already. Everything passed by reference
  // outlives the stage. `id` separates the random streams of stages. Throws what check_stage() does.
  Stage(const simd::Kernels& kernels, mpi::Comm& comm, const StageSpec& spec, const Encoder& encoder,
        std::vector<BinaryLayer>& layers, const data::Dataset& train, const TrainOptions& options, std::uint64_t id,
        const Earlier& earlier = {});
  ~Stage();

  const StageSpec& spec() const { return spec_; }
  std::size_t steps_per_epoch() const { return train_.size() / batch_ * options_.repeat; }
  std::size_t total_steps() const { return steps_per_epoch() * spec_.epochs; }
  std::size_t step_number() const { return step_; }
  bool finished() const { return step_ >= total_steps(); }
  double rate() const { return rate(step_); }  // the schedule's share of the learning rates now

  // Whether everything learns in a step, not heads alone, and whether weights do.
  bool learns(std::size_t step) const;
  bool learns_weights(std::size_t step) const { return learns(step) && options_.layer.learn_weights; }

  // Valid until the next step. Steps after the first few allocate no memory (but for sparse messages).
  const StepResult& step(const StepRequest& request = {});

  // Records of its inputs that this rank may read until the stage ends, ascending.
  std::vector<std::uint64_t> records_to_read() const;

  StageInputs& inputs() { return *inputs_; }
  const StageInputs& inputs() const { return *inputs_; }

  std::size_t heads() const { return heads_.size(); }
  const Head& head(std::size_t h) const { return *heads_[h].head; }
  const std::string& head_layer(std::size_t h) const { return spec_.heads[h]; }
  const std::vector<std::unique_ptr<LayerTrainer>>& trainers() const { return trainers_; }

  // Bytes that a rank puts into the sums of a step in which weights learn.
  std::size_t dense_bytes() const;
  // With sparse messages: whether a step carries statistics.
  bool statistics_due(std::size_t step) const;
  // Number of steps whose statistics these are, this one included, if workers sum them up.
  std::size_t steps_observed(std::size_t step) const;
  // With sparse messages: waits until no other rank needs this one for a step that is done, as it must before anything else is
  // communicated.
  void settle();
  // Collective: with sparse messages, ends the exchange before the stage's last step.
  void leave();
  // Null with dense sums.
  mpi::SparseExchange* exchange() { return exchange_.get(); }
  const mpi::SparseExchange* exchange() const { return exchange_.get(); }
  // With sparse messages: of the bytes that a worker sends in an update, those of weights, thresholds, heads and statistics.
  std::map<std::string, double> bytes_by_part(const mpi::ExchangeCounts& counts) const;

  // Everything that a bit-exact resume needs, the trained layers included. Collective, after settle(): what other ranks hold is
  // in rank 0's.
  void save(TensorFile& file);
  // The same while steps go on, on all ranks after the same step: rank 0's file gets the state of now, that of other ranks in
  // end_save(), once is_saved() says that it is here. cancel_save() is collective.
  void begin_save(TensorFile& file);
  bool is_saved() const { return exchange_ == nullptr || exchange_->is_saved(); }
  void end_save(TensorFile& file);
  void cancel_save();
  void load(const TensorFile& file);

 private:
  struct HeadState {
    std::size_t layer;  // index into trainers_
    std::unique_ptr<Head> head;
    Head::Sums sums;
    std::vector<std::int16_t> counts;   // (local images, F)
    std::vector<float> gradient;        // (local images, F)
    std::vector<std::uint32_t> region;  // per output pixel
  };
  struct LayerState {
    std::size_t index;                               // into the net's layers
    std::vector<std::size_t> heads;                  // heads that sit on it
    bool has_consumers = false;                      // within the stage, gradient passing
    bool feeds_back = false;                         // one of its inputs learns in this stage
    Buffer<std::uint64_t> inputs, outputs, windows;  // per local image
    std::vector<std::uint32_t> patch_offset;         // per output pixel
    std::vector<std::uint32_t> identity;             // per output pixel
    // If all gradient comes from one layer of the stage that reads this one through OR or as it is: the pixel of that layer's
    // input that holds a pixel's cell, per output pixel.
    std::vector<std::uint32_t> cell;
    std::size_t cell_factor = 1;
    std::vector<ImageComponents> components;  // per local image
    LayerSums sums;
    double active_share = 0;             // when it was last summed
    std::unique_ptr<CountCache> counts;  // if minibatches are repeated and the inputs frozen
    std::unique_ptr<ExactSignal> exact;  // options.signal == "exact" only
    std::unique_ptr<ExactHead> exact_head;
  };
  // A part of a minibatch: those of its images that are there at once.
  struct Places {
    std::size_t first = 0, count = 0;
  };
  struct ThreadState;
  // Trained layers as the next server reply will leave them, and what trains them.
  struct Server {
    std::vector<BinaryLayer> layers;
    std::vector<std::unique_ptr<LayerTrainer>> trainers;
  };

  std::size_t position(const std::string& layer) const;
  void forward_layer(std::size_t t, std::size_t local, ThreadState& thread, bool windowed, bool same);
  void initialise();
  void choose_images(const Places& places);
  void gather_statistics();
  void run_forward(std::size_t images);
  void run_heads(const Places& places);
  void run_backward(const Places& places, bool weights);
  void find_cells(std::size_t t);
  std::vector<float>& pixel_gradient(std::size_t t, ThreadState& thread) const;
  void backward_image(std::size_t place, std::size_t local, ThreadState& thread);
  void send_down(std::size_t t, std::size_t local, const std::uint64_t* window, ThreadState& thread);
  void run_exact(std::size_t images);
  void compute(const Places& places, bool weights);
  void keep_pace(Clock::time_point start, double share);
  void step_dense();
  void reduce(bool weights);
  std::size_t images_in_totals() const { return static_cast<std::size_t>(totals_.back()); }
  void report_sums(std::size_t observed);
  double rate(std::size_t step) const;
  double progress(std::size_t step) const;  // 0 at the start of the stage, 1 at its end
  double message_length() const;            // length of this step's sparse messages, in mean lengths
  double head_rate(std::size_t step) const;

  // With sparse messages: stage_exchange.cpp.
  void make_exchange();
  std::size_t steps_unseen(std::size_t step) const;
  std::size_t images_observed(const mpi::Bundle& bundle) const;
  void step_sparse();
  void run_workers();
  void send_worker();
  LayerTrainer& chooser(std::size_t t);
  mpi::Bundle reply_to(mpi::Bundle merged);
  void update_from_reply(std::size_t step);
  void save_server(TensorFile& file) const;
  void load_exchange(const TensorFile& file);

  const simd::Kernels& kernels_;
  mpi::Comm& comm_;
  const StageSpec spec_;
  std::vector<BinaryLayer>& layers_;
  const data::Dataset& train_;
  TrainOptions options_;
  std::uint64_t id_;
  std::size_t batch_ = 0;
  std::size_t step_ = 0;
  bool initialised_ = false;

  std::unique_ptr<StageInputs> inputs_;
  std::vector<std::unique_ptr<LayerTrainer>> trainers_;
  std::vector<LayerState> states_;
  std::vector<HeadState> heads_;
  std::vector<std::unique_ptr<ThreadState>> threads_;
  StepResult result_;  // result of the last step
  StepRequest request_;
  // Per head: loss in millionths of nats, correct images; then requests: stop, checkpoint; then images.
  std::vector<std::int64_t> totals_;

  std::unique_ptr<mpi::SparseExchange> exchange_;  // null: dense sums
  UpdateLayout layout_{0, 0};                      // layout of its messages
  std::vector<unsigned> fraction_bits_;            // per trained layer, of the gradients that are sent
  std::vector<std::int64_t> kept_statistics_;      // scratch
  std::size_t replied_ = 0;                        // steps whose server replies have arrived
  std::size_t resumed_at_ = 0;                     // step of a checkpoint: requests of steps before it are done
  // By step since then: the scales of the heads' features, then the units of the layers' gradients.
  std::deque<std::vector<float>> scales_;
  std::unique_ptr<Server> server_;  // at rank 0, if server replies are late

  std::size_t loaded_ = ~std::size_t{0};  // the minibatch, counted from the start, that the inputs of the layers hold
  Workers workers_;
  std::size_t order_epoch_ = ~std::size_t{0};
  std::vector<std::uint32_t> order_;   // order of images in this epoch
  Places places_;                      // of this rank
  std::size_t most_images_ = 0;        // largest number of images at once
  std::vector<std::uint32_t> images_;  // data set indices of the local images
  std::vector<std::uint16_t> labels_;
};

}  // namespace bitloom::layerwise
