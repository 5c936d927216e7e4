#include "train/memory.h"

namespace bitloom::train {

MemoryNeeds predict_memory(nn::Layer& net, const nn::Shape& x, const TrainOptions& options) {
  const DType type = nn::parameter_type(options.values);
  const OptimizerOptions& optimizer = options.optimizer;
  const std::size_t copies = (optimizer.average > 0 ? 1 : 0) + (optimizer.lookahead > 0 ? 1 : 0);
  MemoryNeeds needs;
  for (const nn::Parameter* parameter : nn::parameters_of(net)) {
    const std::uint64_t bytes = parameter->shape.size() * dtype_size(type);
    const bool has_copy = parameter->reads_values && options.values != type;
    const bool has_master = !has_copy || parameter->has_master(options.master_weights);
    if (has_master) needs.parameters += bytes;
    if (has_copy) needs.parameters += parameter->shape.size() * dtype_size(options.values);
    needs.gradients += bytes;
    if (!parameter->is_frozen) {
      const std::size_t moments = moment_bytes(optimizer, parameter->is_block_matrix(), dtype_size(type));
      needs.optimizer += parameter->shape.size() * moments + copies * bytes;
    }
    needs.checkpoint += has_master ? bytes : parameter->shape.size() * dtype_size(options.values);
  }
  needs.checkpoint += needs.optimizer;
  needs.stash = net.peak_stash_bytes(x, options.values);
  return needs;
}

}  // namespace bitloom::train
