// Files of records on hosts of which each has a part.
#include "layerwise/record_share.h"

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/random.h"
#include "layerwise/cache.h"
#include "mpi/bundle.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

constexpr std::uint64_t records = 3000, words = 64;  // some 1.5 MB: several messages

// Content of record i.
std::vector<std::uint64_t> content(std::uint64_t i) {
  std::vector<std::uint64_t> record(1 + words);
  for (std::uint64_t w = 1; w <= words; ++w) record[w] = mix64(i * 1000 + w);
  return record;
}

// A rank's own file, as on a host of its own.
class OwnFile {
 public:
  static constexpr const char* key = "0123456789abcdef0123";
  OwnFile() : cache_(folder_.path(), std::uint64_t{1} << 26U), file_(cache_.open_records(key, records, words)) {}

  RecordFile& file() { return *file_; }
  void fill(std::uint64_t i) {
    auto record = content(i);
    file_->write(i, record);
  }
  // Whether record i is there; what is there is right.
  bool holds(std::uint64_t i) {
    std::vector<std::uint64_t> record(1 + words);
    if (!file_->read(i, record)) return false;
    const auto expected = content(i);
    REQUIRE(std::equal(expected.begin() + 1, expected.end(), record.begin() + 1));
    return true;
  }
  // Turns a bit of its content.
  void damage(std::uint64_t i) {
    std::fstream disk(folder_ / (std::string(key) + ".records"), std::ios::in | std::ios::out | std::ios::binary);
    disk.seekg(static_cast<std::streamoff>(RecordFile::file_bytes(i, words) + 100));
    const auto byte = static_cast<char>(disk.peek() ^ 1);
    disk.seekp(static_cast<std::streamoff>(RecordFile::file_bytes(i, words) + 100));
    disk.put(byte);
    REQUIRE(disk.good());
  }
  std::uint64_t held() {
    std::uint64_t count = 0;
    for (std::uint64_t i = 0; i < records; ++i) count += holds(i) ? 1 : 0;
    return count;
  }

 private:
  TempDir folder_;
  Cache cache_;
  std::unique_ptr<RecordFile> file_;
};

std::vector<std::uint64_t> all_records() {
  std::vector<std::uint64_t> all(records);
  std::iota(all.begin(), all.end(), 0U);
  return all;
}

constexpr double for_ever = 1e6;  // to compute a record

}  // namespace

TEST_CASE("files without records get those of another, from whoever has them", "[share]") {
  const auto own = static_cast<std::uint64_t>(world().rank());
  const auto ranks = static_cast<std::uint64_t>(world().size());
  for (const bool scattered : {false, true}) {
    INFO(scattered);
    OwnFile host;
    for (std::uint64_t i = 0; i < records; ++i) {
      if (scattered ? i % ranks == own : own == 0) host.fill(i);
    }
    const auto all = all_records();
    int called = 0;
    const auto rows = share_records(world(), {&host.file(), all, [] { return for_ever; }, [&] { ++called; }});
    CHECK(host.held() == records);
    CHECK(rows.size() == (ranks == 1 ? 0 : scattered ? ranks : ranks - 1));
    CHECK((called > 1) == (ranks > 1));
    for (const RecordShare& row : rows) {
      INFO(row.rank);
      const std::uint64_t had = scattered ? (records - static_cast<std::uint64_t>(row.rank) + ranks - 1) / ranks : 0;
      CHECK(row.missing == records - had);
      CHECK(row.elsewhere == row.missing);
      CHECK(row.received == row.missing);
      CHECK(row.seconds > 0);
      CHECK(row.bytes_per_second > 0);
      CHECK(row.compute_seconds > row.send_seconds);
    }
  }
}

TEST_CASE("records that are computed sooner than they come stay where they are", "[share]") {
  OwnFile host;
  if (world().is_root()) {
    for (std::uint64_t i = 0; i < records; ++i) host.fill(i);
  }
  const auto all = all_records();
  const auto rows = share_records(world(), {&host.file(), all, [] { return 0.0; }, {}});
  for (const RecordShare& row : rows) {
    CHECK(row.compute_seconds == 0);
    CHECK(row.received > 0);  // those that told how fast they come
    CHECK(row.received < records / 10);
  }
  CHECK(rows.size() == static_cast<std::size_t>(world().size() - 1));
  if (!world().is_root()) CHECK(host.held() < records);
}

TEST_CASE("only what is read, there and sound is passed on", "[share]") {
  if (world().size() < 2) return;
  OwnFile host;
  for (std::uint64_t i = 0; i < 2000 && world().is_root(); ++i) host.fill(i);
  if (world().is_root()) host.damage(1500);
  std::vector<std::uint64_t> reads;
  for (std::uint64_t i = 1000; i < 2500; ++i) reads.push_back(i);
  const bool asks = world().rank() == 1;
  const auto rows = share_records(world(), {&host.file(),
                                            asks ? std::span<const std::uint64_t>(reads) : std::span<const std::uint64_t>(),
                                            [] { return for_ever; },
                                            {}});
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].rank == 1);
  CHECK(rows[0].missing == 1500);
  CHECK(rows[0].elsewhere == 1000);
  CHECK(rows[0].received == 999);
  if (!world().is_root()) CHECK(host.held() == (asks ? 999 : 0));
  if (asks) CHECK(!host.holds(1500));
}

TEST_CASE("ranks that have one file open get records once, and those that have none are no trouble", "[share]") {
  const auto all = all_records();
  CHECK(share_records(world(), {nullptr, {}, {}, {}}).empty());
  std::optional<TempDir> folder;
  if (world().is_root()) folder.emplace();
  Cache cache(world().broadcast_text(folder ? folder->path().string() : ""), std::uint64_t{1} << 26U);
  const auto shared = cache.open_records(OwnFile::key, records, words);
  REQUIRE(shared != nullptr);
  // The last rank has all of them on a host of its own, the one before it nothing at all where there are three.
  const int last = world().size() - 1;
  OwnFile host;
  for (std::uint64_t i = 0; i < records && world().rank() == last; ++i) host.fill(i);
  RecordFile* file = world().rank() == last ? &host.file() : last > 2 && world().rank() == last - 1 ? nullptr : shared.get();
  const auto reads = file == nullptr ? std::span<const std::uint64_t>() : std::span<const std::uint64_t>(all);
  const auto rows = share_records(world(), {file, reads, [] { return for_ever; }, {}});
  if (last == 0) {
    CHECK(rows.empty());
    return;
  }
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].rank == 0);
  CHECK(rows[0].received == records);
  CHECK(shared->filled_share(records) == 1);
  world().barrier();  // the folder goes with its owner
}

// Where two runs filled one file, a rank could look before a record came and the first rank of its host afterwards, which then
// had it sent from itself: an error of that rank alone, after which the others waited for it.
TEST_CASE("records that came while ranks looked for them are not sent to who has them", "[share]") {
  if (world().size() < 3) return;
  std::optional<TempDir> folder;
  if (world().is_root()) folder.emplace();
  const std::filesystem::path place = world().broadcast_text(folder ? folder->path().string() : "");
  Cache cache(place, std::uint64_t{1} << 26U);
  const auto shared = cache.open_records(OwnFile::key, records, words);
  REQUIRE(shared != nullptr);
  // Nothing can be read through this, as if all had come later.
  const int descriptor = ::open((place / (std::string(OwnFile::key) + ".records")).c_str(), O_WRONLY | O_CLOEXEC);
  REQUIRE(descriptor >= 0);
  RecordFile early(descriptor, OwnFile::key, records, words);
  const int own = world().rank(), last = world().size() - 1;
  OwnFile host;
  for (std::uint64_t i = 0; i < records; ++i) {
    auto record = content(i);
    if (own == 0 && i % 2 == 0) shared->write(i, record);
    if (own == last) host.fill(i);
  }
  RecordFile* file = own == 0 ? shared.get() : own == 1 ? &early : own == last ? &host.file() : nullptr;
  const auto all = all_records();
  const auto reads = file == nullptr ? std::span<const std::uint64_t>() : std::span<const std::uint64_t>(all);
  const auto rows = share_records(world(), {file, reads, [] { return for_ever; }, {}});
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].rank == 0);
  CHECK(rows[0].missing == records / 2);
  CHECK(rows[0].elsewhere == records / 2);
  CHECK(rows[0].received == records / 2);
  CHECK(shared->filled_share(records) == 1);
  world().barrier();  // the folder goes with its owner
}

// With a quorum below 1 the root may pass a stop mark on to ranks that have closed the stage. It was taken for records, or for
// a question that is too long.
TEST_CASE("a stop mark of the stage before does not meet the records of the next", "[share]") {
  const auto ranks = static_cast<std::size_t>(world().size());
  if (ranks < 2) return;
  mpi::Bundle late;
  late.update = std::numeric_limits<std::uint64_t>::max() - 1;
  const std::vector<std::byte> mark = mpi::encode(late);
  for (const bool asks : {false, true}) {
    INFO(asks);
    // Rank 0 has the records that rank 1 needs, or needs those that it has.
    const int holder = asks ? 1 : 0;
    OwnFile host;
    for (std::uint64_t i = 0; i < records && world().rank() == holder; ++i) host.fill(i);
    if (world().is_root()) {
      world().send(1, mark);
      world().send(1, {std::byte{7}});  // one of the length of a question
    }
    world().barrier();
    const auto all = all_records();
    const auto rows = share_records(world(), {&host.file(), all, [] { return for_ever; }, {}});
    CHECK(rows.size() == ranks - 1);
    CHECK(host.held() == records);
    if (world().rank() != 1) continue;
    CHECK(world().receive(0) == mark);
    CHECK(world().receive(0) == std::vector<std::byte>{std::byte{7}});
  }
}

// A way that does not exist was looked up all the same.
TEST_CASE("messages that nobody asked for, and lengths that cannot be, are errors", "[share]") {
  if (world().size() < 2) return;
  const auto ranks = static_cast<std::size_t>(world().size());
  constexpr std::size_t table = (records + 63) / 64;
  const auto all = all_records();
  // Rank 0 has all records, which rank 1 says to lack; what it does then is up to the test. The others have no files.
  const auto error_of = [&](std::int64_t has_records, std::int64_t has_words, std::optional<std::size_t> sends) {
    OwnFile host;
    for (std::uint64_t i = 0; i < records && world().is_root(); ++i) host.fill(i);
    std::string message;
    if (world().is_root()) {
      message = message_of(ErrorKind::data, [&] { share_records(world(), {&host.file(), all, [] { return for_ever; }, {}}); });
    } else {
      const auto sum_of = [&](std::size_t size, std::size_t place, std::int64_t value) {
        std::vector<std::int64_t> values(size);
        if (world().rank() == 1) values[place] = value;
        world().sum(std::span(values));
      };
      sum_of(ranks, 1, 12345);  // number of its file
      sum_of(ranks, 1, has_records);
      sum_of(ranks, 1, has_words);
      if (sends) {
        sum_of(2, 0, records);
        sum_of(ranks * table, 0, 0);
        std::vector<std::int64_t> lacks(ranks * table);
        if (world().rank() == 1) std::fill_n(lacks.begin() + table, table, -1);
        world().sum(std::span(lacks));
        if (world().rank() == 1) world().send(0, std::vector<std::byte>(*sends), mpi::Channel::records);
      }
    }
    world().wait_until([&] { return world().sends_finished(mpi::Channel::records); }, "test");
    world().barrier();
    return world().broadcast_text(message);
  };
  CHECK(error_of(records, words, 100) == "receive: rank 1 sends a message of 100 bytes; expected at most 1");
  CHECK(error_of(records, words, 0) == "outputs of frozen layers: rank 1 sends records, which rank 0 does not expect");
  CHECK(error_of(records, words + 1, std::nullopt) ==
        "outputs of frozen layers: rank 1 has 3000 records of 65 words; expected 3000 of 64, as the others have");
  CHECK(error_of(-1, words, std::nullopt) ==
        "outputs of frozen layers: rank 1 has -1 records of 64 words; expected 3000 of 64, as the others have");
}
