// Shared memory that killed processes leave.
#include "launch/leftovers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "tests/support/catch.h"

using namespace bitloom::launch;

namespace {

namespace fs = std::filesystem;

// A file in /dev/shm that this process maps, as Open MPI's processes do: no other test takes it for a leftover.
class MappedSegment {
 public:
  explicit MappedSegment(fs::path file) : path_(std::move(file)) {
    const int descriptor = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(descriptor >= 0);
    REQUIRE(ftruncate(descriptor, bytes) == 0);
    memory_ = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    close(descriptor);
    REQUIRE(memory_ != MAP_FAILED);
  }
  MappedSegment(const MappedSegment&) = delete;
  MappedSegment& operator=(const MappedSegment&) = delete;
  ~MappedSegment() {
    if (memory_ != nullptr) munmap(memory_, bytes);
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  const fs::path& path() const { return path_; }
  void unmap() {
    REQUIRE(munmap(memory_, bytes) == 0);
    memory_ = nullptr;
  }

 private:
  static constexpr std::size_t bytes = 4096;
  fs::path path_;
  void* memory_ = nullptr;
};

}  // namespace

// Those of Open MPI 5 stayed, until the memory of the machine was full.
TEST_CASE("segments that Open MPI 4 and 5 leave are removed, and others are not", "[launch]") {
  for (const char* kind : {"vader_segment", "sm_segment", "segment"}) {
    INFO(kind);
    const bool is_known = std::string(kind) != "segment";
    MappedSegment segment(fmt::format("/dev/shm/{}.bitloom-test-{}.{}.job.0", kind, getpid(), getuid()));
    const fs::path path = segment.path();
    std::set<fs::path> others = shared_segments();
    CHECK(others.contains(path) == is_known);
    others.erase(path);
    remove_segments(others);
    CHECK(fs::exists(path));  // in use
    segment.unmap();
    remove_segments(others);
    CHECK(fs::exists(path) == !is_known);
  }
  const fs::path foreign = fmt::format("/dev/shm/sm_segment.bitloom-test-{}.{}.job.0", getpid(), getuid() + 1);
  const MappedSegment segment(foreign);
  CHECK_FALSE(shared_segments().contains(foreign));
}
