// The checkpoints in the folder of a run: the last one, and the one before it, which is read where the last one is damaged.
#pragma once

#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/differences.h"
#include "core/safetensors.h"

namespace bitloom::run {

inline constexpr const char* checkpoint_name = "checkpoint.safetensors";
inline constexpr const char* previous_checkpoint_name = "checkpoint.previous.safetensors";
inline constexpr const char* next_checkpoint_name = "checkpoint.next.safetensors";  // whole, on its way to its name

// Those that a folder has, the newest first.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& folder);

struct FoundCheckpoint {
  std::optional<TensorReader> file;  // the newest whole one, if there is any
  std::filesystem::path path;
  // Newer ones that are damaged, and why.
  std::vector<std::filesystem::path> damaged;
  std::vector<std::string> reasons;
};
// Calls alive() now and then while it reads. Throws Error(io) if a file cannot be read: a device that fails now may not fail
// later.
FoundCheckpoint find_checkpoint(const std::filesystem::path& folder, const std::function<void()>& alive = nullptr);

// Renames damaged ones to NAME.damaged, so that the next checkpoint finds its place free. Throws Error(io).
void set_aside(const std::vector<std::filesystem::path>& damaged);

// Throws Error(usage), with each difference, unless the checkpoint was written by a run with this identity: a JSON object, its
// "version" the program's. field_name: what users call its fields; may be none.
void require_identity(const std::map<std::string, std::string>& metadata, const std::filesystem::path& path,
                      const std::string& identity, const FieldName& field_name);

class CheckpointWriter {
 public:
  // resume: one that a killed process had written, but not put into its place, becomes the newest; otherwise it is removed.
  CheckpointWriter(std::filesystem::path folder, bool resume);

  // Writes it on a thread of its own, under a temporary name that becomes checkpoint_name when it is whole and flushed: killed
  // at any moment, a run has the one before. Throws what writing the one before threw: Error(io), for a full disk say.
  void begin(TensorFile file, const std::string& identity);
  bool is_writing() const;
  // Waits for it. Throws what writing it threw.
  void finish();
  void write(TensorFile file, const std::string& identity) {
    begin(std::move(file), identity);
    finish();
  }
  // The same for what need not be in memory, by the caller's thread.
  void write(std::map<std::string, std::string> metadata, const std::map<std::string, StreamedTensor>& tensors,
             const std::string& identity);

 private:
  std::filesystem::path folder_;
  std::future<void> writing_;
};

// Removes those of a run that is done.
void remove_checkpoints(const std::filesystem::path& folder);

}  // namespace bitloom::run
