#include "core/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/file_descriptor.h"
#include "core/file_state.h"
#include "core/text.h"

namespace bitloom {
namespace {

[[noreturn]] void fail_writing(const std::filesystem::path& path, int error) {
  fail(ErrorKind::io, "cannot write metrics to '{}': {}", path.string(), std::strerror(error));
}

// 0, or the errno of what failed. end: the length of the file, which has `size` bytes, up to and including its last line end.
int find_last_line_end(int descriptor, std::uint64_t size, std::uint64_t& end) {
  char block[4096];
  for (end = 0; size > 0;) {
    const std::uint64_t begin = size > sizeof block ? size - sizeof block : 0;
    const std::span<char> part(block, size - begin);
    if (const int error = read_at(descriptor, begin, std::as_writable_bytes(part)); error != 0) return error;
    const std::size_t last = std::string_view(part.data(), part.size()).rfind('\n');
    if (last != std::string_view::npos) {
      end = begin + last + 1;
      return 0;
    }
    size = begin;
  }
  return 0;
}

}  // namespace

MetricsWriter::MetricsWriter(const std::filesystem::path& path) : path_(path) {
  // Read access is for finding the last line end.
  descriptor_ = open_file(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW, 0666);
  if (descriptor_ < 0 && errno == ELOOP) {
    fail(ErrorKind::io, "cannot write metrics to '{}': it is a symbolic link; expected a file of its own", path_.string());
  }
  if (descriptor_ < 0) fail_writing(path_, errno);
  struct stat status {};
  int error = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (error == 0 && !S_ISREG(status.st_mode)) error = EINVAL;
  if (error == 0) {
    const std::uint64_t length = static_cast<std::uint64_t>(status.st_size);
    error = find_last_line_end(descriptor_, length, size_);
    if (error == 0 && size_ != length && ::ftruncate(descriptor_, static_cast<off_t>(size_)) != 0) error = errno;
  }
  if (error != 0) {
    ::close(descriptor_);
    fail_writing(path_, error);
  }
}

MetricsWriter::MetricsWriter(MetricsWriter&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

MetricsWriter& MetricsWriter::operator=(MetricsWriter&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

MetricsWriter::~MetricsWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void MetricsWriter::require_in_place() const {
  if (names_open_file(path_, descriptor_)) return;
  fail(ErrorKind::io, "cannot write metrics to '{}': it was deleted or replaced since it was opened", path_.string());
}

void MetricsWriter::write(const nlohmann::json& object) {
  require_in_place();
  // A line of metrics is not worth stopping a run for a file name that is not UTF-8: such bytes are replaced.
  const std::string line = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t wrote = ::write(descriptor_, line.data() + done, line.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const int error = wrote < 0 ? errno : ENOSPC;
      // Best effort; the constructor cuts off the torn line if this fails too.
      if (done > 0 && ::ftruncate(descriptor_, static_cast<off_t>(size_)) != 0) fail_writing(path_, errno);
      fail_writing(path_, error);
    }
    done += static_cast<std::size_t>(wrote);
  }
  size_ += line.size();
}

void MetricsWriter::sync() {
  require_in_place();
  if (const int error = flush(descriptor_); error != 0) fail_writing(path_, error);
}

std::uint64_t MetricsWriter::truncate_to(std::uint64_t size) {
  if (size >= size_) return size_;
  if (::ftruncate(descriptor_, static_cast<off_t>(size)) != 0) fail_writing(path_, errno);
  size_ = size;
  return size_;
}

std::vector<nlohmann::json> read_metrics(const std::filesystem::path& path) {
  const std::string text = read_text(path);
  std::vector<nlohmann::json> objects;
  std::size_t number = 1;
  for (std::size_t begin = 0; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    const bool torn = end == std::string::npos;
    const std::string_view line = std::string_view(text).substr(begin, torn ? std::string::npos : end - begin);
    nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (object.is_object() && json_depth(line) <= deepest_json) {
      objects.push_back(std::move(object));
    } else if (!torn) {
      fail(ErrorKind::data, "'{}', line {}: not a JSON object{}", path.string(), number,
           object.is_object() ? fmt::format(" of at most {} levels", deepest_json) : "");
    }
    begin = torn ? text.size() : end + 1;
  }
  return objects;
}

}  // namespace bitloom
