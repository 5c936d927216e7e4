#include "layerwise/error_feedback_place.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/field.h"
#include "core/file.h"
#include "core/memory.h"

namespace bitloom::layerwise {
namespace {

// Collective: the processes on this one's host.
std::uint64_t processes_here(mpi::Comm& comm) {
  const std::vector<std::string> hosts = mpi::host_names(comm);
  std::istringstream all(comm.broadcast_text(fmt::format("{}", fmt::join(hosts, "\n"))));
  std::uint64_t here = 0;
  for (std::string host; std::getline(all, host);) here += host == mpi::host_name() ? 1 : 0;
  return std::max<std::uint64_t>(here, 1);
}

}  // namespace

mpi::ErrorFeedbackPlace place_error_feedback(const simd::Kernels& kernels, mpi::Comm& comm, const RunOptions& options,
                                             const Model& model, const data::Dataset& images, std::size_t first_stage) {
  if (!options.train.sparse) return {};
  const std::uint64_t sharers = processes_here(comm);
  const mpi::ErrorFeedbackPlace place = {
      options.residual_memory != 0 ? options.residual_memory : available_memory() / 2 / sharers, options.cache};
  comm.together([&] {
    if (place.memory == 0) return;  // the system does not say
    const auto ranks = static_cast<std::uint64_t>(comm.size());
    const std::uint64_t here = (options.train.workers + ranks - 1) / ranks;
    for (const StageSpec& spec : std::span(options.net.stages).subspan(first_stage)) {
      const std::uint64_t each =
          bytes_kept_by_worker(kernels, spec, model.encoder, model.layers, images, for_stage(options.train, spec));
      if (here * each <= place.memory) continue;
      const std::uint64_t rest = (here - place.memory / each) * each;
      const std::uint64_t room = place.folder.empty() ? 0 : free_space(place.folder) / sharers;
      if (rest <= room) continue;
      fail_field(place.folder.empty() ? ErrorKind::usage : ErrorKind::io, "workers",
                 "{} of them on rank {} keep {} in stage '{}' ({} each), more than the {} of `residual_memory`{}; expected "
                 "{}, more processes, fewer workers, or `error_feedback` none",
                 here, comm.rank(), format_bytes(here * each), spec.name, format_bytes(each), format_bytes(place.memory),
                 place.folder.empty()
                     ? ""
                     : fmt::format(", and for the rest {} has room for {}", place.folder.string(), format_bytes(room)),
                 place.folder.empty() ? "`cache` FOLDER, where the rest can lie" : "more room");
    }
  });
  return place;
}

std::string error_feedback_text(const mpi::SparseExchange& exchange, const mpi::ErrorFeedbackPlace& place, std::size_t workers,
                                int rank) {
  const std::uint64_t each = exchange.error_feedback_bytes();
  if (each == 0) return "";
  const std::uint64_t here = each * exchange.local_workers();
  const std::uint64_t in_file = exchange.error_feedback_bytes_in_file();
  return fmt::format(
      "{} workers keep what they do not send, {} each: {} on rank {}{}", workers, format_bytes(each), format_bytes(here), rank,
      in_file == 0 ? "" : fmt::format(", {} of it in a file in {}", format_bytes(in_file), place.folder.string()));
}

}  // namespace bitloom::layerwise
