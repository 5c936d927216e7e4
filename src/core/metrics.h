// Metrics of a run: one JSON object per line (JSON Lines), appended as the run goes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace bitloom {

class MetricsWriter {
 public:
  // Opens for appending; creates the file if it is missing; cuts off a last line without an end (a crash while writing it).
  // Throws an io error that names the path and the reason, a symbolic link being one.
  explicit MetricsWriter(const std::filesystem::path& path);
  MetricsWriter(MetricsWriter&& other) noexcept;
  MetricsWriter& operator=(MetricsWriter&& other) noexcept;
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;
  ~MetricsWriter();

  // Appends one object as a line; readers see it when the call returns. NaN and infinities become null. Throws an io error
  // (disk full, ...) and then leaves the file as it was before the call; a file that was deleted or replaced since it was
  // opened is such an error, since what is written to it is lost.
  void write(const nlohmann::json& object);
  // Flushes what was written to the device: call before writing a checkpoint that remembers size(). The same errors.
  void sync();
  // The file's length in bytes: always the end of a line.
  std::uint64_t size() const noexcept { return size_; }
  // Drops the lines after the first `size` bytes, where `size` is an earlier size(): a resumed run then repeats no line. A
  // file that is shorter stays as it is, since lost metrics must not stop a run. Returns the new size().
  std::uint64_t truncate_to(std::uint64_t size);

 private:
  void require_in_place() const;

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

// All objects of a metrics file, in order; a last line without an end that does not parse is left out. Throws a data error
// that names the path and the line for any other line that is not a JSON object.
std::vector<nlohmann::json> read_metrics(const std::filesystem::path& path);

}  // namespace bitloom
