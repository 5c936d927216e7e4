#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "core/error.h"

namespace bitloom::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "checkpoint-";
constexpr std::string_view suffix = ".safetensors";

}  // namespace

std::optional<std::uint64_t> step_of_checkpoint(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return {};
  const char* first = name.data() + prefix.size();
  const char* last = name.data() + name.size() - suffix.size();
  std::uint64_t step = 0;
  const auto [end, error] = std::from_chars(first, last, step);
  if (error != std::errc() || end != last) return {};
  return step;
}

std::vector<fs::path> list_checkpoints(const fs::path& folder) {
  std::vector<std::pair<std::uint64_t, fs::path>> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (const auto step = step_of_checkpoint(entry.path())) found.emplace_back(*step, entry.path());
  }
  if (error) fail(ErrorKind::data, "'{}': {}", folder.string(), error.message());
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

fs::path write_checkpoint(const fs::path& folder, std::uint64_t step, const TensorFile& file, std::size_t keep) {
  const fs::path path = folder / fmt::format("{}{}{}", prefix, step, suffix);
  file.save(path);
  std::vector<fs::path> all = list_checkpoints(folder);
  while (all.size() > std::max<std::size_t>(keep, 1)) {
    // A run that went back to an earlier step may have written a smaller number than others have: never the one just written.
    const auto oldest = std::find_if(all.begin(), all.end(), [&](const fs::path& other) { return other != path; });
    std::error_code error;
    fs::remove(*oldest, error);  // what cannot be removed costs room, no more
    all.erase(oldest);
  }
  return path;
}

FoundCheckpoint read_newest_checkpoint(const fs::path& folder) {
  FoundCheckpoint found;
  std::vector<fs::path> all = list_checkpoints(folder);
  if (all.empty()) fail(ErrorKind::data, "'{}': no checkpoint there", folder.string());
  std::string reasons;
  for (auto path = all.rbegin(); path != all.rend(); ++path) {
    try {
      found.file = TensorFile::load(*path, Checksum::required);
      found.path = *path;
      return found;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;
      found.damaged.push_back(path->string());
      reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", error.what());
    }
  }
  fail(ErrorKind::data, "no checkpoint in '{}' can be used: {}", folder.string(), reasons);
}

}  // namespace bitloom::train
