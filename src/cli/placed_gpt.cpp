#include "cli/placed_gpt.h"

#include "cli/device.h"
#include "core/field.h"
#include "plan/float_plan.h"

namespace bitloom::cli {
namespace {

mpi::Grid open_grid(Session& session, const GptUse& use, const std::string& file, std::optional<std::size_t> samples) {
  mpi::Grid grid = use.layout.make_grid(session.comm);
  session.on_root([&] {
    const plan::FloatModel model = plan::describe_gpt(models::config_of(TensorMapping::open(file).metadata, file));
    plan::FloatOptions options;
    options.batch = static_cast<std::size_t>(grid.shape().data);
    options.micro_batch = 0;
    plan::require_grid(model, grid.shape(), options);
    if (!samples || *samples >= options.batch) return;
    const std::size_t data_ranks = options.batch;
    options.batch = *samples;
    fail_field(ErrorKind::usage, "count", "{}; expected at least the {} data-parallel processes, which divide the samples; {}",
               *samples, data_ranks, plan::possible_grids(model, grid.shape().ranks(), grid.shape(), options));
  });
  return grid;
}

}  // namespace

void GptUse::declare_engine(Options& options) {
  declare_dtype(options, values);
  declare_device(options, device);
  options.text("backend", backend, "NAME", "Implementation that computes; without it: the device's own");
}

PlacedGpt::PlacedGpt(Session& session, const GptUse& use, const std::string& file, std::optional<std::size_t> samples)
    : engine_(session.comm.together([&] { return choose_device(use.device); }), use.backend),
      grid_(open_grid(session, use, file, samples)),
      loaded_(models::load_gpt(engine_, grid_, file, choose_dtype(engine_, use.values))),
      forward_(models::GptForward(engine_, *loaded_.net, grid_, loaded_.parts)) {}

}  // namespace bitloom::cli
