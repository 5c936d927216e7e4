#include "run/checkpoints.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/file_state.h"

namespace bitloom::run {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// In the metadata of checkpoints.
constexpr const char* identity_key = "bitloom.run.identity";

// The whole one gets its name, the one before it another. Killed in between, a run has either.
void put_in_place(const fs::path& folder) {
  const fs::path path = folder / checkpoint_name;
  std::error_code error;
  if (fs::exists(path)) fs::rename(path, folder / previous_checkpoint_name, error);
  fs::rename(folder / next_checkpoint_name, path, error);
  if (error) fail(ErrorKind::io, "cannot write '{}': {}", path.string(), error.message());
}

// Throws Error(io) where the file is there but the system does not open it: that says nothing of what is in it.
void require_opened(const fs::path& path) {
  const int error = opening_error(path);
  if (error != 0 && error != ENOENT) fail(ErrorKind::io, "cannot read '{}': {}", path.string(), std::strerror(error));
}

Json object_of(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  return json.is_object() ? json : Json{{"identity", text}};
}

}  // namespace

std::vector<fs::path> list_checkpoints(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const char* name : {checkpoint_name, previous_checkpoint_name}) {
    if (fs::exists(folder / name)) found.push_back(folder / name);
  }
  return found;
}

FoundCheckpoint find_checkpoint(const fs::path& folder, const std::function<void()>& alive) {
  FoundCheckpoint found;
  for (const fs::path& path : list_checkpoints(folder)) {
    try {
      require_opened(path);
      if (fs::is_directory(path)) fail(ErrorKind::data, "'{}' is a folder", path.string());
      found.file = TensorReader::open(path, Checksum::required, alive);
      found.path = path;
      return found;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;
      found.damaged.push_back(path);
      found.reasons.emplace_back(error.what());
    }
  }
  return found;
}

void set_aside(const std::vector<fs::path>& damaged) {
  for (const fs::path& path : damaged) {
    const fs::path to = path.string() + ".damaged";
    std::error_code error;
    fs::rename(path, to, error);
    if (error) {
      fail(ErrorKind::io, "cannot rename '{}' to '{}': {}; expected it to be moved or removed", path.string(), to.string(),
           error.message());
    }
  }
}

void require_identity(const std::map<std::string, std::string>& metadata, const fs::path& path, const std::string& identity,
                      const FieldName& field_name) {
  const auto written = metadata.find(identity_key);
  if (written == metadata.end()) {
    fail(ErrorKind::usage, "{} belongs to a run with other data, net or options, and does not say which", path.string());
  }
  if (written->second == identity) return;
  const Json stored = object_of(written->second);
  const Json given = object_of(identity);
  const auto version = [](const Json& json) {
    const auto found = json.find("version");
    return found == json.end() ? "unknown" : found->is_string() ? found->get<std::string>() : found->dump();
  };
  if (version(stored) != version(given)) {
    fail(ErrorKind::usage, "{} was written by another version of the program ({}; this one: {}), which alone can continue it",
         path.string(), version(stored), version(given));
  }
  fail(ErrorKind::usage, "{} belongs to a run with other data, net or options:{}", path.string(),
       describe_differences(find_differences(stored, given), field_name));
}

CheckpointWriter::CheckpointWriter(fs::path folder, bool resume) : folder_(std::move(folder)) {
  std::error_code ignored;
  if (!fs::is_regular_file(fs::symlink_status(folder_ / next_checkpoint_name, ignored))) return;
  if (resume) {
    put_in_place(folder_);
  } else {
    fs::remove(folder_ / next_checkpoint_name, ignored);
  }
}

void CheckpointWriter::begin(TensorFile file, const std::string& identity) {
  finish();
  file.metadata[identity_key] = identity;
  writing_ = std::async(std::launch::async, [folder = folder_, file = std::move(file)] {
    write_atomically(folder / next_checkpoint_name, file.serialize());
    put_in_place(folder);
  });
}

void CheckpointWriter::write(std::map<std::string, std::string> metadata, const std::map<std::string, StreamedTensor>& tensors,
                             const std::string& identity) {
  finish();
  metadata[identity_key] = identity;
  save_streamed(folder_ / next_checkpoint_name, metadata, tensors);
  put_in_place(folder_);
}

bool CheckpointWriter::is_writing() const {
  return writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void CheckpointWriter::finish() {
  if (writing_.valid()) writing_.get();
}

void remove_checkpoints(const fs::path& folder) {
  std::error_code ignored;
  for (const char* name : {checkpoint_name, previous_checkpoint_name}) fs::remove(folder / name, ignored);
}

}  // namespace bitloom::run
