// Forward passes of a GPT by one process or by those of a grid, none of which needs to have the whole net: what evaluation and
// sampling are made of.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "models/gpt/gpt.h"
#include "mpi/grid.h"
#include "train/parallel/stage_forward.h"

namespace bitloom::models {

class GptForward {
 public:
  // By this process, or by all of the net's tensor group alike.
  GptForward(nn::Engine& engine, Gpt& net);
  // The stages of a pipeline have neighbouring layers, `parts` of the net, and each tensor group a net of its own, divided;
  // data ranks have the same net. All outlive this. Throws Error(usage) as StageForward does.
  GptForward(nn::Engine& engine, Gpt& net, mpi::Grid& grid, const train::Partition& parts);

  nn::Engine& engine() const { return *engine_; }
  Gpt& net() const { return *net_; }
  mpi::Grid& grid() const { return *grid_; }
  // Passes that keep all processes busy, and after which a collective is due.
  std::size_t passes_at_once() const { return static_cast<std::size_t>(grid_->shape().data * grid_->shape().pipeline); }

  // Whether this process gets hidden states and computes logits: its stage is the last.
  bool is_last() const { return stages_.is_last(); }
  // Collective in a pipeline: hidden states (B,T,C) of ids (B,T), which all stages give, on the last stage; none elsewhere.
  // net: this one, or one of another length with its parameters.
  nn::Tensor hidden(nn::Pass& pass, Gpt& net, std::span<const std::int32_t> ids, const nn::Shape& shape);
  // Collective in a pipeline: values of the last stage, on all.
  template <typename T>
  void take_from_last(std::span<T> values) const {
    grid_->pipeline().broadcast(values, grid_->shape().pipeline - 1);
  }

 private:
  struct Alone {
    mpi::Comm comm;
    mpi::Grid grid{comm, {}};
  };

  nn::Engine* engine_;
  Gpt* net_;
  std::shared_ptr<Alone> alone_;  // of a process without a grid
  mpi::Grid* grid_;
  train::StageForward stages_;
};

}  // namespace bitloom::models
