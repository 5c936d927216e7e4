// What logical workers keep of what they did not send: how much it is, and where it lies.
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "core/error.h"
#include "core/memory.h"
#include "layerwise/run.h"

namespace bitloom::layerwise {
namespace {

// Bytes that are free on the device of a folder, which may not be there yet.
std::uint64_t free_space(std::filesystem::path folder) {
  std::error_code error;
  folder = std::filesystem::absolute(folder, error);
  while (!std::filesystem::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  return error ? 0 : space.available;
}

// Collective: the processes on this one's host.
std::uint64_t processes_here(mpi::Comm& comm) {
  const std::vector<std::string> hosts = mpi::host_names(comm);
  std::istringstream all(comm.broadcast_text(fmt::format("{}", fmt::join(hosts, "\n"))));
  std::uint64_t here = 0;
  for (std::string host; std::getline(all, host);) here += host == mpi::host_name() ? 1 : 0;
  return std::max<std::uint64_t>(here, 1);
}

}  // namespace

// Before anything is written: after the death of hosts the others carry their workers too, and what these keep may then be more
// than a host has memory.
void Run::place_residuals() {
  if (!options_.train.sparse) return;
  residual_place_.memory =
      options_.residual_memory != 0 ? options_.residual_memory : available_memory() / 2 / processes_here(comm_);
  residual_place_.folder = options_.cache;
  if (residual_place_.memory == 0) return;  // the system does not say
  comm_.together([&] {
    const auto ranks = static_cast<std::uint64_t>(comm_.size());
    const std::uint64_t here = (options_.train.workers + ranks - 1) / ranks;
    for (std::size_t s = stage_; s < options_.net.stages.size(); ++s) {
      const StageSpec& spec = options_.net.stages[s];
      TrainOptions one = for_stage(options_.train, spec);
      if (one.exchange.exact() || one.exchange.residuals == mpi::Residuals::none) continue;
      one.workers = one.batch = 1;
      mpi::Comm alone;
      const Stage stage(kernels_, alone, spec, result_.model.encoder, result_.model.layers, data_.train, one, 0, {});
      const std::uint64_t each = stage.exchange()->residual_bytes();
      if (each == 0) continue;
      const std::uint64_t in_memory = std::min(residual_place_.memory / each, here);
      const std::uint64_t rest = (here - in_memory) * each;
      if (rest == 0) continue;
      const std::string what = fmt::format(
          "--workers: {} of them on rank {} keep {} in stage '{}' ({} each), more than the {} of --residual-memory", here,
          comm_.rank(), format_bytes(here * each), spec.name, format_bytes(each), format_bytes(residual_place_.memory));
      if (residual_place_.folder.empty()) {
        fail(ErrorKind::usage,
             "{}; expected --cache FOLDER, where the rest can lie, more processes, fewer workers, or "
             "--residuals none",
             what);
      }
      if (const std::uint64_t space = free_space(residual_place_.folder); rest > space) {
        fail(ErrorKind::io,
             "{}, and {} has room for {} of the rest; expected more room, more processes, fewer workers, or "
             "--residuals none",
             what, residual_place_.folder.string(), format_bytes(space));
      }
    }
  });
}

void Run::tell_residuals(const mpi::SparseExchange& exchange) {
  const std::uint64_t each = exchange.residual_bytes();
  if (each == 0) return;
  const std::uint64_t here = each * exchange.local_workers();
  const std::uint64_t in_file = exchange.residual_bytes_in_file();
  progress_.line(fmt::format(
      "{} workers keep what they do not send, {} each: {} on rank {}{}", options_.train.workers, format_bytes(each),
      format_bytes(here), comm_.rank(),
      in_file == 0 ? "" : fmt::format(", {} of it in a file in {}", format_bytes(in_file), residual_place_.folder.string())));
}

}  // namespace bitloom::layerwise
