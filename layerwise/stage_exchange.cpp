#include "layerwise/stage_exchange.h"

#include <algorithm>
#include <array>

namespace bitloom::layerwise {
namespace {

constexpr std::array<const StageExchangeKind*, 2> kinds = {&dense_sums, &sparse_messages};

}  // namespace

const StageExchangeKind& stage_exchange(const TrainOptions& options) {
  return **std::find_if(kinds.begin(), kinds.end(), [&](const StageExchangeKind* kind) { return kind->is_chosen(options); });
}

}  // namespace bitloom::layerwise
