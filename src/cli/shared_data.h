// The images of a run on hosts of which some do not have them.
#pragma once

#include <cstdint>
#include <filesystem>

#include "cli/command.h"
#include "cli/model_source.h"
#include "data/dataset.h"

namespace bitloom::cli {

// Collective: what load_data() reads on rank 0, on all ranks. A rank that cannot read it takes it from its cache, where it is
// known by its hash, or gets it from rank 0, through other ranks that miss it, and puts it there. `cache` may be empty. Throws
// what load_data() throws on rank 0.
data::DataSplits load_shared_data(Session& session, const DataOptions& options, const std::filesystem::path& cache,
                                  std::uint64_t cache_limit);

}  // namespace bitloom::cli
