#include "layerwise/cache.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/hash.h"
#include "tests/support/catch.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/files.h"
#include "tests/support/killed.h"

namespace bitloom::layerwise {
namespace {

using test::TempDir;

constexpr std::uint64_t no_limit = std::uint64_t{1} << 40;

std::string key_of(int number) { return Hasher().update(number).finish().hex(); }

std::vector<std::byte> blob_of(int number, std::size_t size) {
  std::vector<std::byte> blob(size);
  for (std::size_t i = 0; i < size; ++i)
    blob[i] = static_cast<std::byte>(i * 7 + i / 251 + static_cast<std::size_t>(number) * 31);
  return blob;
}

std::filesystem::path file_of(const TempDir& folder, int number) { return folder / (key_of(number) + ".blob"); }

std::size_t files_ending_in(const TempDir& folder, const std::string& extension) {
  const auto is_one = [&](const auto& file) { return file.path().extension() == extension; };
  return static_cast<std::size_t>(
      std::count_if(std::filesystem::directory_iterator(folder.path()), std::filesystem::directory_iterator(), is_one));
}

// Entries of the cache in a folder, and the bytes of their files.
struct Contents {
  std::size_t entries = 0;
  std::uint64_t bytes = 0;
};
Contents contents_of(const std::filesystem::path& folder) {
  Contents contents;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".blob" && file.path().extension() != ".records") continue;
    std::error_code evicted;  // meanwhile, by another process
    const std::uintmax_t bytes = std::filesystem::file_size(file.path(), evicted);
    if (evicted) continue;
    ++contents.entries;
    contents.bytes += bytes;
  }
  return contents;
}

// Runs f in a child process, which must not touch the test framework. Returns whether f returned true.
template <typename F>
pid_t start_child(F&& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    bool good = false;
    try {
      good = f();
    } catch (...) {
    }
    ::_exit(good ? 0 : 1);
  }
  return child;
}

bool succeeded(pid_t child) {
  int status = -1;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_CASE("the cache returns what was put, of any size, to every object on the folder") {
  const TempDir folder;
  Cache cache(folder / "made" / "on demand", no_limit);
  Cache other(folder / "made" / "on demand", no_limit);
  int number = 0;
  for (const std::size_t size : {0, 1, 63, 64, 65, 3968, 4096, 100003}) {
    CAPTURE(size);
    ++number;
    REQUIRE_FALSE(cache.get(key_of(number)));
    const auto blob = blob_of(number, size);
    REQUIRE(cache.put(key_of(number), blob));
    REQUIRE((cache.get(key_of(number)) == blob));
    REQUIRE((other.get(key_of(number)) == blob));
  }
  REQUIRE(contents_of(folder / "made" / "on demand").entries == 8);
  REQUIRE(cache.damaged() == 0);
}

TEST_CASE("putting a key again replaces its entry") {
  const TempDir folder;
  const std::uint64_t size = 1000;
  Cache cache(folder.path(), size + Cache::entry_overhead);  // no room for both
  REQUIRE(cache.put(key_of(1), blob_of(1, size)));
  REQUIRE(cache.put(key_of(1), blob_of(1, size)));
  REQUIRE((cache.get(key_of(1)) == blob_of(1, size)));
  REQUIRE(contents_of(folder.path()).entries == 1);
}

TEST_CASE("keys that are no hashes are refused") {
  const TempDir folder;
  Cache cache(folder.path(), no_limit);
  for (const std::string key : {"", "abc", "../../../../etc/passwd", "0123456789ABCDEF", "0123456789abcdef/x"}) {
    CAPTURE(key);
    REQUIRE_THROWS_AS(cache.get(key), Error);
    REQUIRE_THROWS_AS(cache.put(key, {}), Error);
  }
  REQUIRE_THROWS_AS(cache.get(std::string(65, 'a')), Error);
}

TEST_CASE("damage anywhere in an entry is found, reported and repaired by the next put") {
  const TempDir folder;
  std::vector<std::string> reports;
  Cache cache(folder.path(), no_limit, [&](const std::filesystem::path& file, const std::string& reason) {
    REQUIRE(file == file_of(folder, 1));
    reports.push_back(reason);
  });
  const auto blob = blob_of(1, 1000);
  REQUIRE(cache.put(key_of(1), blob));
  const std::string good = test::read_file(file_of(folder, 1));
  REQUIRE(good.size() == blob.size() + Cache::entry_overhead);

  std::vector<std::string> damaged;
  // Magic, header length, body length, both halves of the checksum, the header's zeros, the body, the zeros at the end.
  for (const std::size_t place : {0, 7, 12, 16, 23, 24, 39, 40, 63, 64, 500, 1063, 1064, 1127}) {
    std::string bad = good;
    bad[place] = static_cast<char>(bad[place] ^ 4);
    damaged.push_back(bad);
  }
  for (const std::size_t length : {0, 1, 63, 64, 127, 128, 1000, 1127}) damaged.push_back(good.substr(0, length));
  damaged.push_back(good + '\0');
  damaged.push_back(std::string(good.size(), '\0'));

  for (std::size_t i = 0; i < damaged.size(); ++i) {
    CAPTURE(i);
    test::write_file(file_of(folder, 1), damaged[i]);
    REQUIRE_FALSE(cache.get(key_of(1)));
    REQUIRE(cache.damaged() == i + 1);
    REQUIRE(reports.size() == i + 1);
    REQUIRE_FALSE(std::filesystem::exists(file_of(folder, 1)));
    REQUIRE(cache.put(key_of(1), blob));
    REQUIRE((cache.get(key_of(1)) == blob));
  }
  REQUIRE(reports[0].find("begin") != std::string::npos);
  REQUIRE(reports[10].find("checksum") != std::string::npos);
}

TEST_CASE("an entry under another's name is damaged") {
  const TempDir folder;
  Cache cache(folder.path(), no_limit);
  REQUIRE(cache.put(key_of(1), blob_of(1, 100)));
  std::filesystem::rename(file_of(folder, 1), file_of(folder, 2));
  REQUIRE_FALSE(cache.get(key_of(2)));
  REQUIRE(cache.damaged() == 1);
}

TEST_CASE("an entry of another version is missing but not removed, and that is said") {
  const TempDir folder;
  std::string told;
  Cache cache(folder.path(), no_limit,
              [&](const std::filesystem::path& path, const std::string& what) { told += path.string() + " " + what + "\n"; });
  REQUIRE(cache.put(key_of(1), blob_of(1, 100)));
  std::string file = test::read_file(file_of(folder, 1));
  file[8] = 2;
  test::write_file(file_of(folder, 1), file);
  REQUIRE_FALSE(cache.get(key_of(1)));
  REQUIRE(cache.damaged() == 0);
  REQUIRE(std::filesystem::exists(file_of(folder, 1)));
  REQUIRE(told == file_of(folder, 1).string() +
                      " was written by another version of the program (format 2; this one: 1); it is kept for that one and not "
                      "used\n");
}

TEST_CASE("the least recently used entries go first, and only as many as needed") {
  const TempDir folder;
  const std::uint64_t size = 1000;
  const std::uint64_t limit = 4 * (size + Cache::entry_overhead);
  Cache cache(folder.path(), limit);
  for (int number = 1; number <= 4; ++number) REQUIRE(cache.put(key_of(number), blob_of(number, size)));
  REQUIRE(contents_of(folder.path()).bytes == limit);
  REQUIRE(contents_of(folder.path()).entries == 4);
  // 1 is used again, so that 2 is the oldest.
  REQUIRE(cache.get(key_of(1)));
  REQUIRE(cache.put(key_of(5), blob_of(5, size)));
  REQUIRE(contents_of(folder.path()).entries == 4);
  REQUIRE_FALSE(cache.get(key_of(2)));
  for (const int number : {1, 3, 4, 5}) REQUIRE(std::filesystem::exists(file_of(folder, number)));
  // 3 is used again, and a larger one needs the place of two.
  REQUIRE(cache.get(key_of(3)));
  REQUIRE(cache.put(key_of(6), blob_of(6, 2 * size)));
  REQUIRE(contents_of(folder.path()).entries == 3);
  for (const int number : {3, 5, 6}) REQUIRE(std::filesystem::exists(file_of(folder, number)));
  REQUIRE(cache.put(key_of(7), blob_of(7, limit - Cache::entry_overhead)));
  REQUIRE(contents_of(folder.path()).entries == 1);
}

TEST_CASE("a blob beyond the limit is refused and evicts nothing") {
  const TempDir folder;
  Cache cache(folder.path(), 2000);
  REQUIRE(cache.put(key_of(1), blob_of(1, 500)));
  REQUIRE_FALSE(cache.put(key_of(2), blob_of(2, 2001 - Cache::entry_overhead)));
  REQUIRE_FALSE(cache.get(key_of(2)));
  REQUIRE((cache.get(key_of(1)) == blob_of(1, 500)));

  Cache off(folder.path(), 0);
  REQUIRE_FALSE(off.put(key_of(3), {}));
  REQUIRE(off.get(key_of(1)));
}

TEST_CASE("files that are not the cache's are neither counted nor removed") {
  const TempDir folder;
  test::write_file(folder / "notes.txt", std::string(5000, 'x'));
  test::write_file(folder / "notes.tmp", std::string(5000, 'x'));
  Cache cache(folder.path(), 1000);
  REQUIRE(cache.put(key_of(1), blob_of(1, 800)));
  REQUIRE(cache.put(key_of(2), blob_of(2, 800)));
  REQUIRE(contents_of(folder.path()).entries == 1);
  REQUIRE(contents_of(folder.path()).bytes == 800 + Cache::entry_overhead);
  REQUIRE(std::filesystem::exists(folder / "notes.txt"));
  REQUIRE(std::filesystem::exists(folder / "notes.tmp"));
}

TEST_CASE("what a dead writer left is removed, what a living one writes is counted") {
  const TempDir folder;
  const std::filesystem::path dead = folder / (key_of(1) + ".123-0.tmp");
  const std::filesystem::path alive = folder / (key_of(2) + ".124-0.tmp");
  test::write_file(dead, std::string(900, 'x'));
  test::write_file(alive, std::string(900, 'x'));
  const int descriptor = ::open(alive.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(descriptor >= 0);
  REQUIRE(::flock(descriptor, LOCK_EX | LOCK_NB) == 0);
  Cache cache(folder.path(), 1000);
  REQUIRE_FALSE(cache.put(key_of(3), blob_of(3, 100)));
  REQUIRE_FALSE(std::filesystem::exists(dead));
  REQUIRE(std::filesystem::exists(alive));
  ::close(descriptor);
  REQUIRE(cache.put(key_of(3), blob_of(3, 100)));
  REQUIRE_FALSE(std::filesystem::exists(alive));
}

TEST_CASE("processes that write the same keys at once leave whole entries") {
  const TempDir folder;
  constexpr int keys = 4;
  constexpr std::size_t size = 50000;
  const std::uint64_t limit = 3 * (size + Cache::entry_overhead);  // so that they evict each other's entries as well
  const auto work = [&] {
    Cache cache(folder.path(), limit);
    for (int i = 0; i < 40; ++i) {
      const int number = i % keys;
      const auto found = cache.get(key_of(number));
      if (found && *found != blob_of(number, size)) return false;
      cache.put(key_of(number), blob_of(number, size));  // refused while the others' writing takes the space
      if (contents_of(folder.path()).bytes > limit) return false;
    }
    return cache.damaged() == 0;
  };
  const pid_t first = start_child(work);
  const pid_t second = start_child(work);
  const pid_t third = start_child(work);
  REQUIRE(succeeded(first));
  REQUIRE(succeeded(second));
  REQUIRE(succeeded(third));
  REQUIRE(files_ending_in(folder, ".tmp") == 0);
  Cache cache(folder.path(), limit);
  REQUIRE(contents_of(folder.path()).entries >= 1);
  for (int number = 0; number < keys; ++number) {
    const auto found = cache.get(key_of(number));
    if (found) REQUIRE((*found == blob_of(number, size)));
  }
  REQUIRE(cache.damaged() == 0);
}

TEST_CASE("a writer that is killed leaves nothing behind that is taken for an entry", "[ptrace]") {
  const TempDir folder;
  const auto blob = blob_of(1, 5000);
  bool killed = true;
  std::size_t abandoned = 0;
  std::size_t whole = 0;
  int call = 0;
  for (; killed; ++call) {
    CAPTURE(call);
    std::filesystem::remove(file_of(folder, 1));
    killed = test::killed_at_call(call, [&] { Cache(folder.path(), no_limit).put(key_of(1), blob); });
    abandoned += files_ending_in(folder, ".tmp");
    Cache cache(folder.path(), no_limit);
    const auto found = cache.get(key_of(1));
    whole += found ? 1 : 0;
    if (found) REQUIRE((*found == blob));
    REQUIRE(cache.damaged() == 0);
    REQUIRE(cache.put(key_of(2), blob_of(2, 10)));
    REQUIRE(files_ending_in(folder, ".tmp") == 0);
  }
  REQUIRE(call > 20);
  REQUIRE(abandoned >= 4);
  REQUIRE(whole >= 2);
}

TEST_CASE("a held lock delays put until the time-out") {
  const TempDir folder;
  Cache cache(folder.path(), no_limit, {}, std::chrono::milliseconds(30));
  REQUIRE(cache.put(key_of(1), blob_of(1, 10)));
  {
    const FileLock held(folder / "lock");
    try {
      cache.put(key_of(2), blob_of(2, 10));
      FAIL("put() returned");
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::busy);
    }
    REQUIRE((cache.get(key_of(1)) == blob_of(1, 10)));  // readers need no lock
  }
  REQUIRE(cache.put(key_of(2), blob_of(2, 10)));
}

// A limit on the size of files makes write() fail as a full disk does, with an error of the same group.
TEST_CASE("a full disk refuses the blob and leaves the cache usable") {
  const TempDir folder;
  {
    Cache cache(folder.path(), no_limit);
    REQUIRE(cache.put(key_of(1), blob_of(1, 1000)));
  }
  const pid_t child = start_child([&] {
    const test::FileSizeLimit full(5000);
    Cache cache(folder.path(), no_limit);
    return !cache.put(key_of(2), blob_of(2, 10000)) && !cache.get(key_of(2)) && cache.get(key_of(1)) == blob_of(1, 1000) &&
           cache.put(key_of(3), blob_of(3, 1000));
  });
  REQUIRE(succeeded(child));
  REQUIRE(files_ending_in(folder, ".tmp") == 0);
  Cache cache(folder.path(), no_limit);
  REQUIRE((cache.get(key_of(3)) == blob_of(3, 1000)));
}

TEST_CASE("record files are found, shared, bounded, evicted and rebuilt") {
  const TempDir folder;
  std::vector<std::string> reports;
  const std::uint64_t bytes = RecordFile::file_bytes(10, 4);
  Cache cache(folder.path(), bytes + 2000,
              [&](const std::filesystem::path&, const std::string& reason) { reports.push_back(reason); });
  REQUIRE_FALSE(cache.find_records(key_of(1), 10, 4));
  REQUIRE(cache.free_space() > 0);
  const auto file = cache.open_records(key_of(1), 10, 4);
  REQUIRE(file);
  REQUIRE(contents_of(folder.path()).bytes == bytes);
  std::vector<std::uint64_t> record{0, 1, 2, 3, 4};
  file->write(7, record);
  {  // another process has the record at once
    Cache other(folder.path(), bytes + 2000);
    const auto same = other.open_records(key_of(1), 10, 4);
    REQUIRE(same);
    std::vector<std::uint64_t> read(5);
    REQUIRE(same->read(7, read));
    REQUIRE((read == record));
    REQUIRE_FALSE(same->read(6, read));
  }
  REQUIRE_FALSE(cache.open_records(key_of(2), 1000, 4));  // beyond the limit: nothing is evicted for it
  REQUIRE(cache.find_records(key_of(1), 10, 4));
  // Newer entries take its place; whoever has it open keeps it.
  REQUIRE(cache.put(key_of(3), blob_of(3, 2000)));
  REQUIRE_FALSE(cache.find_records(key_of(1), 10, 4));
  std::vector<std::uint64_t> read(5);
  REQUIRE(file->read(7, read));

  const std::filesystem::path path = folder / (key_of(4) + ".records");
  REQUIRE(cache.open_records(key_of(4), 10, 4));
  const std::string good = test::read_file(path);
  std::vector<std::string> damaged;
  for (const std::size_t place : {0, 12, 16, 24, 32, 40, 63}) {
    damaged.push_back(good);
    damaged.back()[place] = static_cast<char>(damaged.back()[place] ^ 1);
  }
  for (const std::size_t length : {std::size_t{0}, std::size_t{63}, good.size() - 1}) damaged.push_back(good.substr(0, length));
  for (std::size_t i = 0; i < damaged.size(); ++i) {
    CAPTURE(i);
    test::write_file(path, damaged[i]);
    REQUIRE(cache.open_records(key_of(4), 10, 4));
    REQUIRE(reports.size() == i + 1);
    REQUIRE(test::read_file(path) == good);
  }
  REQUIRE(reports.front().find("header") != std::string::npos);
  REQUIRE(reports.back().find("bytes instead of") != std::string::npos);
  // A file of another version, which may still want it.
  std::string newer = good;
  newer[8] = 2;
  test::write_file(path, newer);
  REQUIRE_FALSE(cache.open_records(key_of(4), 10, 4));
  REQUIRE(test::read_file(path) == newer);
  REQUIRE(cache.probe_records(3, 4)->records() == 3);
  REQUIRE(files_ending_in(folder, ".tmp") == 0);
}

TEST_CASE("a full disk refuses a record file") {
  const TempDir folder;
  Cache cache(folder.path(), no_limit);
  const test::FileSizeLimit full(5000);
  REQUIRE_FALSE(cache.open_records(key_of(1), 1000, 4));
  REQUIRE(files_ending_in(folder, ".tmp") == 0);
  REQUIRE(files_ending_in(folder, ".records") == 0);
}

TEST_CASE("a cache folder that cannot be made is an error that names it") {
  const TempDir folder;
  test::write_file(folder / "file", "x");
  try {
    Cache cache(folder / "file" / "cache", no_limit);
    FAIL("the constructor returned");
  } catch (const Error& error) {
    REQUIRE(error.kind() == ErrorKind::io);
    REQUIRE(std::string(error.what()).find("file/cache") != std::string::npos);
  }
}

}  // namespace
}  // namespace bitloom::layerwise
