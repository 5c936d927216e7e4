#include "layerwise/record_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/files.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using bitloom::test::TempDir;

namespace {

using Record = std::vector<std::uint64_t>;

const char* const key = "0123456789abcdef";

int open_file(const std::filesystem::path& path) { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600); }

// An empty file of `records` records of 3 words.
int empty_file(const std::filesystem::path& path, std::uint64_t records) {
  const int descriptor = open_file(path);
  REQUIRE(descriptor >= 0);
  REQUIRE(::ftruncate(descriptor, static_cast<off_t>(RecordFile::file_bytes(records, 3))) == 0);
  REQUIRE(RecordFile(::dup(descriptor), key, records, 3).write_header() == 0);
  return descriptor;
}

}  // namespace

TEST_CASE("records of another file are taken if they are those of their place", "[record_file]") {
  const TempDir folder;
  RecordFile from(empty_file(folder / "from", 8), key, 8, 3);
  RecordFile to(empty_file(folder / "to", 8), key, 8, 3);
  CHECK(from.identity() != to.identity());
  CHECK(RecordFile(open_file(folder / "to"), key, 8, 3).identity() == to.identity());
  Record record{0, 11, 12, 13};
  from.write(2, record);
  Record sent(4), found(4);
  REQUIRE(from.read(2, sent));
  CHECK(!to.accept(3, sent));
  sent[2] ^= 1;
  CHECK(!to.accept(2, sent));
  sent[2] ^= 1;
  CHECK(to.accept(2, sent));
  CHECK(to.read(2, found));
  CHECK(found == record);
  Record none{0, 1, 2, 3};
  CHECK(!to.accept(4, none));
  CHECK(to.filled_share(8) == 0.125);
}

TEST_CASE("records come back as they were written, and only those", "[record_file]") {
  const TempDir folder;
  RecordFile file(empty_file(folder / "file", 8), key, 8, 3);
  CHECK(file.fault() == "");
  Record first{0, 11, 12, 13};
  Record zeros{0, 0, 0, 0};
  file.write(2, first);
  file.write(7, zeros);
  Record read(4, 99);
  for (std::uint64_t i = 0; i < 8; ++i) {
    INFO(i);
    CHECK(file.read(i, read) == (i == 2 || i == 7));
    if (i == 2) CHECK(read == first);
    if (i == 7) CHECK(read == zeros);
  }
  CHECK(file.filled_share(8) == 0.25);
  CHECK(file.filled_share(100) == 0.25);
  CHECK(file.seems_there(7));
  CHECK(!file.seems_there(6));
  file.drop_from_memory();
  CHECK(file.read(2, read));
  const RecordCounts counts = file.take_counts();
  CHECK(counts.read == 3);
  CHECK(counts.missing == 6);
  CHECK(counts.damaged == 0);
  CHECK(counts.written == 2);
  CHECK(file.take_counts().read == 0);
}

TEST_CASE("a damaged record is missing until it is written again", "[record_file]") {
  const TempDir folder;
  RecordFile file(empty_file(folder / "file", 4), key, 4, 3);
  Record record{0, 1, 2, 3};
  file.write(1, record);
  const std::string good = test::read_file(folder / "file");
  Record read(4);
  for (std::size_t byte = 0; byte < 32; ++byte) {
    INFO(byte);
    std::string bad = good;
    bad[64 + 32 + byte] = static_cast<char>(bad[64 + 32 + byte] ^ 16);
    test::write_file(folder / "file", bad);
    CHECK_FALSE(file.read(1, read));
    CHECK(file.take_counts().damaged == 1);
    file.write(1, record);
    CHECK(file.read(1, read));
    CHECK(test::read_file(folder / "file") == good);
  }
  // A record that strayed to another place, and one of another file.
  test::write_file(folder / "file", good.substr(0, 64) + good.substr(96, 32) + good.substr(96));
  CHECK_FALSE(file.read(0, read));
  CHECK(file.read(1, read));
  const RecordFile other(empty_file(folder / "other", 4), "fedcba9876543210", 4, 3);
  CHECK(other.fault() == "its header is not valid");
  RecordFile renamed(open_file(folder / "file"), "fedcba9876543210", 4, 3);
  CHECK_FALSE(renamed.read(1, read));
}

TEST_CASE("records that a full disk does not take are missing, and nothing else is lost", "[record_file]") {
  const TempDir folder;
  RecordFile file(empty_file(folder / "file", 8), key, 8, 3);
  Record record{0, 1, 2, 3};
  Record read(4);
  file.write(0, record);
  {
    const test::FileSizeLimit full(64 + 4 * 32);
    file.write(1, record);
    CHECK(file.error() == 0);
    file.write(6, record);
    CHECK(file.error() == EFBIG);
  }
  CHECK(file.read(0, read));
  CHECK(file.read(1, read));
  CHECK_FALSE(file.read(6, read));
  CHECK(file.take_counts().damaged == 0);

  RecordFile device(::open("/dev/full", O_RDWR | O_CLOEXEC), key, 8, 3);
  device.write(0, record);
  CHECK(device.error() == ENOSPC);
  CHECK(device.take_counts().written == 0);
}
