// PowerSGD: data-parallel processes exchange low-rank factors of their gradients instead of the gradients, and keep what the
// factors lack in error buffers, for the next steps (Vogels, Karimireddy and Jaggi 2019; Ramesh et al. 2021, appendix E.2,
// whose steps are named below).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/narrow.h"
#include "mpi/comm.h"
#include "mpi/pending.h"
#include "nn/engine.h"
#include "nn/tensor.h"
#include "train/parallel/compression_times.h"

namespace bitloom::train {

// A parameter's gradient: a matrix (rows, columns) that is sent by factors of a rank, or as it is where the rank is 0.
struct PowerSgdShape {
  std::string name;  // of the parameter, for files and messages
  std::size_t rows = 0, columns = 0;
  std::size_t rank = 0;  // at most the lesser of rows and columns
  std::size_t part = 0;  // shapes of a part are sent together, those of part 0 first
};

// Numbers in messages or memory. 1-6-9 ends at 15.98, so what is sent or kept in it has to be scaled (PowerSgdOptions).
enum class FloatFormat : std::uint8_t { f32, f1_6_9 };
std::vector<std::string> float_format_names();
// Throws Error(usage) that names the field `compress_format`.
FloatFormat float_format_named(std::string_view name);

// The shape with this rank, or less where the matrix has no more, or 0 where factors would have no fewer numbers than the
// matrix. Rows and columns of anything but a matrix are 1 and its size.
PowerSgdShape power_sgd_shape(std::string name, std::size_t rows, std::size_t columns, std::size_t rank);
// That of own elements of a matrix which this number of shards cut across its longer side (divide_matrix()): with a part of the
// rank, a multiple of the shards, if the whole matrix would go by factors, so that a run has the same error buffers however it
// is divided. Of n x m, n >= m, all shards together have rank (n / shards + m) numbers in factors.
PowerSgdShape power_sgd_shape_of_shard(std::string name, std::size_t rows, std::size_t columns, std::size_t rank,
                                       std::size_t shards, std::size_t own);
// Name of the error buffer of a parameter in checkpoints.
std::string power_sgd_error_name(const std::string& parameter);

// Bytes that each of several processes hands to the sums of a step. A matrix (n,m) of rank r has r (n + m) numbers in p and q.
struct PowerSgdBytes {
  std::uint64_t p = 0, q = 0;
  std::uint64_t exact = 0;  // of gradients that are sent as they are, in f32
  std::uint64_t flags = 0;  // which matrices were not finite
  std::uint64_t sum() const { return p + q + exact + flags; }
};
PowerSgdBytes power_sgd_bytes(std::span<const PowerSgdShape> shapes, FloatFormat messages);

struct PowerSgdOptions {
  // false: as Ramesh et al. have it, with a fixed Gaussian Q for each matrix, and of two orientations that with the shorter P.
  // true: as Vogels et al. have it, algorithm 1, where each step begins with the last one's Q.
  bool warm_start = false;
  FloatFormat messages = FloatFormat::f32;
  // In memory, where what 1-6-9 does not hold becomes its largest number; checkpoints have sums of f32.
  FloatFormat error_buffers = FloatFormat::f32;
  // Factors on the means over processes that messages hold ("predetermined constants", appendix D): they should bring P and Q
  // to the upper end of 1-6-9. Results are divided by them.
  double p_scale = 1, q_scale = 1;
  std::uint64_t seed = 1;  // of the first Q, or the only one
};

// Change of an error buffer at the end of a step (step 12), by whether what the factors carried is taken: both are finite, and
// the update is not skipped for another gradient's sake, on all processes; and whether the buffer with this step's gradient is
// finite, on this one.
enum class ErrorUpdate : std::uint8_t { subtract, keep, clear };
ErrorUpdate error_update(bool factors_are_taken, bool buffer_is_finite);

struct PowerSgdReport {
  // Square of the norm of all gradients after the exchange, without their scales, of factors by ||Q|| (step 9); infinity if any
  // is not finite, upon which the caller skips the update of all of them (step 10). The same bits on all processes.
  double squares = 0;
  std::size_t not_finite = 0;  // gradients
  std::size_t narrowed = 0;    // terms of this process and sums in messages of 1-6-9
  std::size_t clamped = 0;     // those of them that it did not hold: if there are many, scales are too large
};

// Names and tensors of f32.
using PowerSgdState = std::vector<std::pair<std::string, nn::Tensor>>;

class PowerSgd {
 public:
  // group: processes that each have the gradients of all shapes, on CPUs. Engine and group outlive this. Error buffers are 0.
  // Throws Error(internal) for a rank that a matrix cannot have, and for scales that are not positive.
  PowerSgd(nn::Engine& engine, mpi::Comm& group, std::vector<PowerSgdShape> shapes, const PowerSgdOptions& options);

  // The same with sums that begin while other gradients are still formed: a part's P is sent as soon as gradients of all its
  // shapes and of the parts before are announced, which may be all, in any order, or none. scales: what the gradient of each
  // shape is multiplied by in this step, before and after the exchange; without them 1. Error buffers and factors are without
  // scales (step 2), which may be others in the next step.
  void begin_step(std::vector<double> scales = {});
  void announce(std::size_t shape, const nn::Tensor& gradient);
  PowerSgdReport finish(std::span<nn::Tensor> gradients);
  // Ends the step, once it is known on all processes alike of which shapes the update is skipped: what their factors carried
  // stays in the error buffers. gradients: as finish() made them.
  void settle(std::span<const nn::Tensor> gradients, const std::function<bool(std::size_t shape)>& is_skipped);
  // Those of the step that was begun last, as far as it is.
  const CompressionTimes& times() const { return times_; }

  // All of it, skipping all shapes where a gradient is not finite.
  //
  // Collective: gradients[i], of f32 and as many elements as shapes[i], become the sums over processes, which those by factors
  // are nearly; the same bits on all. Those by factors that were not finite anywhere become NaN.
  //
  // P and Q are means over processes: each divides its own before they are rounded and added, in the order of ranks and in
  // double precision, and the sum is rounded once, so that in 1-6-9, too, sums do not overflow where the terms do not. What is
  // too large for 1-6-9, a term or a sum, becomes 15.98 with its sign (steps 4 and 7, which know that of sums). All P of a part
  // make one sum, all Q another; gradients that are sent as they are go with P where that is in f32, too, and in a sum of their
  // own beside it otherwise (step 8).
  //
  // Throws Error(internal) for gradients of another type or size, PeerLost.
  PowerSgdReport exchange(std::span<nn::Tensor> gradients);

  // Collective: what a checkpoint has, in new tensors that are the same on all ranks: the sums of the error buffers over
  // processes, "power_sgd.error.NAME" (rows, columns), and of a warm start the last Q, "power_sgd.query.NAME" (columns, rank).
  PowerSgdState state();
  // Tensors of the same names and shapes, not initialised: to be filled from a file.
  PowerSgdState empty_state();
  // Not collective; all ranks have the same. Error buffers become equal parts of the sums, in any number of processes, since
  // what comes next depends on the sums alone (appendix E.2, optimization 4).
  void set_state(const PowerSgdState& state);

 private:
  // A gradient that is sent by factors. Of its matrix (rows, columns), or of the transposed one: P (p_rows, rank), Q
  // (q_rows, rank).
  struct Matrix {
    std::size_t shape = 0;  // its number
    std::size_t rows = 0, columns = 0, rank = 0;
    bool is_transposed = false;
    std::size_t p_rows = 0, q_rows = 0;
    std::size_t p_begin = 0, q_begin = 0;  // in the messages of its part
    nn::Tensor error;                      // the error buffer (rows, columns), f32 or 1-6-9
    nn::Tensor query;                      // Q (q_rows, rank) by which the next P is formed
    bool buffer_is_finite = true;          // in this step
    bool factors_are_finite = true;
    nn::Tensor p;  // orthonormal columns, in this step
  };

  // Numbers that are summed over processes: factors in the format of messages, then the rest in f32.
  struct Sum {
    nn::Tensor values;
    std::size_t factors = 0;
    std::vector<f1_6_9> narrow;
    mpi::Pending of_factors, of_rest;
  };
  struct Part {
    std::vector<std::size_t> matrices;  // numbers of them
    std::vector<std::size_t> exact;     // of other shapes
    std::size_t p_size = 0, q_size = 0, exact_size = 0;
    std::size_t left = 0;  // shapes whose gradients are not announced yet
    // P of all matrices, then the gradients that go as they are, then a flag for each matrix; Q.
    Sum first, second;
  };

  Matrix make(std::size_t number, const Part& part) const;
  void draw_query(Matrix& matrix) const;
  // The error buffer in f32, itself or a copy in work_.
  nn::Tensor error_of(const Matrix& matrix) const;
  // Rounds what was written there, if it was a copy.
  static void keep_error(Matrix& matrix, std::span<const float> values);
  void require(std::span<const nn::Tensor> gradients) const;
  void start(Part& part);
  void start_q(Part& part);
  void take(Part& part, std::span<nn::Tensor> gradients);
  // Steps of an exchange, in their order.
  double scale_of(std::size_t shape) const { return scales_.empty() ? 1 : scales_[shape]; }
  void accumulate(Matrix& matrix, std::span<const float> gradient);
  void form_p(Matrix& matrix, nn::Tensor& message) const;
  void orthogonalise_p(Matrix& matrix, std::span<float> p);
  void form_q(Matrix& matrix, nn::Tensor& message) const;
  void take_q(Matrix& matrix, std::span<float> q, std::span<float> gradient);
  void update_error(Matrix& matrix, bool is_skipped, std::span<const float> gradient);
  void start(Sum& sum);
  void wait(Sum& sum);
  void clamp(std::span<f1_6_9> values);
  double factor(double scale) const { return scale / group_.size(); }

  nn::Engine& engine_;
  mpi::Comm& group_;
  std::vector<PowerSgdShape> shapes_;
  PowerSgdOptions options_;
  std::vector<Matrix> matrices_;
  std::vector<Part> parts_;
  std::size_t next_ = 0;               // part to start
  std::vector<double> scales_;         // of gradients in this step, by shape; empty: 1
  std::vector<nn::Tensor> announced_;  // gradients, by shape
  nn::Tensor work_;                    // an error buffer in f32
  PowerSgdReport report_;
  std::uint64_t sent_bytes_ = 0, whole_bytes_ = 0;  // of a step (CompressionTimes)
  CompressionTimes times_;
};

}  // namespace bitloom::train
