// The passes of a stage's step over the images of a rank: forward, heads, backward. They leave their sums in what learns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "layerwise/count_cache.h"
#include "layerwise/encoder.h"
#include "layerwise/exact_head.h"
#include "layerwise/exact_signal.h"
#include "layerwise/gradient.h"
#include "layerwise/stage_inputs.h"
#include "layerwise/stage_learners.h"
#include "layerwise/stage_setup.h"
#include "layerwise/stage_step.h"
#include "layerwise/workers.h"

namespace bitloom::layerwise {

// A part of a minibatch: places first .. first + count of it.
struct Places {
  std::size_t first = 0, count = 0;
};

class StagePasses {
 public:
  // at_once: largest number of images that are computed together. What is passed by reference outlives this object.
  StagePasses(const StageSetup& setup, const Encoder& encoder, Workers& workers, StageLearners& learners, std::size_t at_once);
  ~StagePasses();

  // Computes the sums over the images in these places. `poll` is called between the passes; its time is that of exchanging.
  void compute(StageStep& step, const Places& places, bool weights, const std::function<void()>& poll);
  // Adds the counts of trained layer t, from which its first thresholds follow, over the images in these places; the layers
  // below have theirs.
  void count_first(std::size_t t, std::size_t step, const Places& places);
  // To be called when a checkpoint was loaded: the inputs of layers are made anew, whatever the step's number.
  void forget_images() { loaded_ = {}; }

  StageInputs& inputs() { return *inputs_; }
  const StageInputs& inputs() const { return *inputs_; }

 private:
  // By trained layer.
  struct LayerMaps {
    bool has_consumers = false;                      // within the stage, gradient passing
    Buffer<std::uint64_t> inputs, outputs, windows;  // per local image
    std::vector<std::uint32_t> patch_offset;         // per output pixel
    std::vector<std::uint32_t> identity;             // per output pixel
    // If all gradient comes from one layer of the stage that reads this one through OR or as it is: the pixel of that layer's
    // input that holds a pixel's cell, per output pixel.
    std::vector<std::uint32_t> cell;
    std::size_t cell_factor = 1;
    std::vector<ImageComponents> components;            // per local image
    std::unique_ptr<BackwardWeights> backward_weights;  // if one of its inputs learns in this stage and gets its gradient
    std::unique_ptr<CountCache> counts;                 // if minibatches are repeated and the inputs frozen
    std::unique_ptr<ExactSignal> exact;                 // options.signal == "exact" only
    std::unique_ptr<ExactHead> exact_head;
  };
  struct HeadMaps {
    std::vector<std::int16_t> counts;   // (local images, F)
    std::vector<float> gradient;        // (local images, F)
    std::vector<std::uint32_t> region;  // per output pixel
  };
  struct Thread;
  // Gradient of a layer's output bits for one image, where the window has a bit.
  struct OutputGradient {
    std::span<const float> gradient;  // (regions, channels)
    const std::uint32_t* region;      // per output pixel: whose gradient holds there
    const std::uint64_t* window;      // per output pixel
  };
  struct Loaded {
    std::size_t minibatch = ~std::size_t{0};  // counted from the start
    std::size_t place = 0;                    // the first of those in it
    bool operator==(const Loaded&) const = default;
  };

  const BinaryLayer& layer_of(std::size_t t) const { return learners_.trainers[t]->layer(); }
  void make_layer_maps(std::size_t t);
  void make_head_maps(const LearningHead& head);
  void connect();
  void make_thread();

  void choose_images(std::size_t step, const Places& places);
  void gather_statistics();
  void forward_layer(std::size_t t, std::size_t local, Thread& thread, bool windowed, bool same);
  void run_forward(StageStep& step, const Places& places);
  void add_times(PhaseTimes& times);
  void run_heads(const StageStep& step, const Places& places);
  void sum_heads(const StepRequest& request, std::size_t images);

  // stage_backward.cpp
  void find_cells(std::size_t t);
  std::vector<float>& pixel_gradient(std::size_t t, Thread& thread) const;
  OutputGradient output_gradient(std::size_t t, std::size_t local, Thread& thread) const;
  void backward_image(std::size_t step, std::size_t place, std::size_t local, Thread& thread);
  void send_down(std::size_t t, const std::uint64_t* window, std::size_t local, Thread& thread);
  void run_backward(std::size_t step, const Places& places, bool weights);
  void run_exact(std::size_t images);

  const StageSetup& setup_;
  Workers& workers_;
  StageLearners& learners_;
  std::size_t at_once_;
  std::unique_ptr<StageInputs> inputs_;
  std::vector<LayerMaps> layer_maps_;
  std::vector<HeadMaps> head_maps_;
  std::vector<std::unique_ptr<Thread>> threads_;
  Loaded loaded_;  // what the inputs of the layers hold
  std::size_t order_epoch_ = ~std::size_t{0};
  std::vector<std::uint32_t> order_;   // order of images in this epoch
  std::vector<std::uint32_t> images_;  // data set indices of the local images
  std::vector<std::uint16_t> labels_;
  std::vector<std::uint8_t> soft_labels_;  // (local images, classes), with a teacher
};

}  // namespace bitloom::layerwise
