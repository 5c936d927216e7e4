// Error feedback of logical workers, the part they did not send: how much it is, and where it lies.
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <sstream>

#include "core/error.h"
#include "core/field.h"
#include "core/file.h"
#include "core/memory.h"
#include "layerwise/run.h"

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

// Before anything is written: after the death of hosts the others carry their workers too, and what these keep may then be more
// than a host has memory.
void Run::place_error_feedback() {
  if (!options_.train.sparse) return;
  const std::uint64_t sharers = processes_here(comm_);
  error_feedback_place_ = {options_.residual_memory != 0 ? options_.residual_memory : available_memory() / 2 / sharers,
                           options_.cache};
  comm_.together([&] {
    if (error_feedback_place_.memory == 0) return;  // the system does not say
    const auto ranks = static_cast<std::uint64_t>(comm_.size());
    const std::uint64_t here = (options_.train.workers + ranks - 1) / ranks;
    for (const StageSpec& spec : std::span(options_.net.stages).subspan(stage_)) {
      const std::uint64_t each = bytes_kept_by_worker(kernels_, spec, result_.model.encoder, result_.model.layers, data_.train,
                                                      for_stage(options_.train, spec));
      if (here * each <= error_feedback_place_.memory) continue;
      const std::uint64_t rest = (here - error_feedback_place_.memory / each) * each;
      const std::uint64_t room = error_feedback_place_.folder.empty() ? 0 : free_space(error_feedback_place_.folder) / sharers;
      if (rest <= room) continue;
      fail_field(error_feedback_place_.folder.empty() ? ErrorKind::usage : ErrorKind::io, "workers",
                 "{} of them on rank {} keep {} in stage '{}' ({} each), more than the {} of `residual_memory`{}; expected "
                 "{}, more processes, fewer workers, or `error_feedback` none",
                 here, comm_.rank(), format_bytes(here * each), spec.name, format_bytes(each),
                 format_bytes(error_feedback_place_.memory),
                 error_feedback_place_.folder.empty() ? ""
                                                      : fmt::format(", and for the rest {} has room for {}",
                                                                    error_feedback_place_.folder.string(), format_bytes(room)),
                 error_feedback_place_.folder.empty() ? "`cache` FOLDER, where the rest can lie" : "more room");
    }
  });
}

void Run::tell_error_feedback(const mpi::SparseExchange& exchange) {
  const std::uint64_t each = exchange.error_feedback_bytes();
  if (each == 0) return;
  const std::uint64_t here = each * exchange.local_workers();
  const std::uint64_t in_file = exchange.error_feedback_bytes_in_file();
  progress_.line(fmt::format(
      "{} workers keep what they do not send, {} each: {} on rank {}{}", options_.train.workers, format_bytes(each),
      format_bytes(here), comm_.rank(),
      in_file == 0 ? ""
                   : fmt::format(", {} of it in a file in {}", format_bytes(in_file), error_feedback_place_.folder.string())));
}

}  // namespace bitloom::layerwise
