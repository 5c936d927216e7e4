#include "models/gpt/forward.h"

namespace bitloom::models {

GptForward::GptForward(nn::Engine& engine, Gpt& net)
    : engine_(&engine),
      net_(&net),
      alone_(std::make_shared<Alone>()),
      grid_(&alone_->grid),
      stages_(grid_->pipeline(), {{0, net.layers().size()}}) {}

GptForward::GptForward(nn::Engine& engine, Gpt& net, mpi::Grid& grid, const train::Partition& parts)
    : engine_(&engine), net_(&net), grid_(&grid), stages_(grid.pipeline(), parts) {}

nn::Tensor GptForward::hidden(nn::Pass& pass, Gpt& net, std::span<const std::int32_t> ids, const nn::Shape& shape) {
  nn::Tensor x;
  if (grid_->stage() == 0) x = engine_->from(ids, shape, nn::Use::data);
  return stages_.run(pass, net.layers(), std::move(x));
}

}  // namespace bitloom::models
