// Checkpoints of the float trainer in a folder: safetensors with a checksum, the last ones kept, never one half written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/safetensors.h"

namespace bitloom::train {

// Writes FOLDER/checkpoint-STEP.safetensors (a temporary name, flushed, then renamed) and then removes all but the newest
// `keep`. Throws Error(io), for a full disk say; what was there is then there still.
std::filesystem::path write_checkpoint(const std::filesystem::path& folder, std::uint64_t step, const TensorFile& file,
                                       std::size_t keep = 2);

// The step that a checkpoint's name says; none of other files.
std::optional<std::uint64_t> step_of_checkpoint(const std::filesystem::path& path);

// Oldest first.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& folder);

// The newest whose checksum is right. damaged: those that are newer. Throws Error(data) if there is none, which names what is
// wrong with each.
struct FoundCheckpoint {
  std::filesystem::path path;
  TensorFile file;
  std::vector<std::string> damaged;
};
FoundCheckpoint read_newest_checkpoint(const std::filesystem::path& folder);

}  // namespace bitloom::train
