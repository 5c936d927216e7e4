#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "tests/support/catch.h"
#include "tests/support/environment.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/files.h"
#include "tests/support/killed.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using test::Environment;
using test::has;
using test::message_of;
namespace fs = std::filesystem;

namespace {

std::size_t files_in(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

// A process that takes a lock and keeps it until it is told to stop or is killed.
class LockingProcess {
 public:
  explicit LockingProcess(const fs::path& path) {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    REQUIRE(::pipe(stop_) == 0);
    id_ = ::fork();
    REQUIRE(id_ >= 0);
    char byte = 0;
    if (id_ == 0) {
      ::close(stop_[1]);
      try {
        const FileLock lock(path);
        byte = ::write(ready[1], "x", 1) == 1 && ::read(stop_[0], &byte, 1) == 0 ? 0 : 1;
      } catch (const Error&) {
        byte = 2;
      }
      ::_exit(byte);
    }
    ::close(ready[1]);
    ::close(stop_[0]);
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    ::close(ready[0]);
  }
  ~LockingProcess() {
    if (id_ > 0) stop();
  }
  // Its exit status.
  int stop() {
    ::close(stop_[1]);
    return wait();
  }
  void kill() {
    ::kill(id_, SIGKILL);
    wait();
    ::close(stop_[1]);
  }
  pid_t id() const { return id_; }

 private:
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(id_, -1), &status, 0);
    return status;
  }

  pid_t id_ = -1;
  int stop_[2] = {-1, -1};
};

}  // namespace

TEST_CASE("whole files are read, whatever their size", "[file]") {
  const test::TempDir folder;
  for (const std::size_t size : {0, 1, 4095, 4096, 4097, 100000}) {
    std::string text(size, '\0');
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 7);
    test::write_file(folder / "file", text);
    CHECK(read_text(folder / "file") == text);
    const std::vector<std::byte> bytes = read_bytes(folder / "file");
    const FileMapping mapping(folder / "file");
    REQUIRE(bytes.size() == size);
    REQUIRE(mapping.size() == size);
    CHECK(std::equal(bytes.begin(), bytes.end(), text.begin(), [](std::byte a, char b) { return a == std::byte(b); }));
    CHECK(std::equal(bytes.begin(), bytes.end(), mapping.bytes().begin()));
  }
}

TEST_CASE("files that tell no size are read to their end", "[file]") { CHECK(has(read_text("/proc/self/status"), "Pid:")); }

TEST_CASE("what cannot be read is a data error with path and reason", "[file]") {
  const test::TempDir folder;
  const fs::path missing = folder / "missing";
  for (const std::string& message :
       {message_of(ErrorKind::data, [&] { read_text(missing); }), message_of(ErrorKind::data, [&] { read_bytes(missing); }),
        message_of(ErrorKind::data, [&] { FileMapping{missing}; })}) {
    CHECK(has(message, missing.string()));
    CHECK(has(message, "No such file"));
  }
  CHECK(has(message_of(ErrorKind::data, [&] { read_text(folder.path()); }), "Is a directory"));
  CHECK(has(message_of(ErrorKind::data, [&] { read_text("/dev/zero"); }), "more than 1024 MiB that are no regular file"));
  CHECK(has(message_of(ErrorKind::data, [&] { FileMapping{folder.path()}; }), "Is a directory"));
  CHECK(has(message_of(ErrorKind::data, [&] { FileMapping{"/dev/null"}; }), "not a regular file"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);  // nobody writes to it
  CHECK(has(message_of(ErrorKind::data, [&] { FileMapping{folder / "pipe"}; }), "not a regular file"));
}

TEST_CASE("a mapping can be moved and outlives the file's name", "[file]") {
  const test::TempDir folder;
  test::write_file(folder / "file", "abc");
  FileMapping first(folder / "file");
  fs::remove(folder / "file");
  FileMapping second = std::move(first);
  CHECK(first.size() == 0);
  FileMapping third;
  third = std::move(second);
  REQUIRE(third.size() == 3);
  CHECK(third.bytes()[2] == std::byte{'c'});
}

TEST_CASE("an atomic write creates or replaces, and leaves nothing else behind", "[file]") {
  const test::TempDir folder;
  write_atomically(folder / "file", "first version");
  CHECK(test::read_file(folder / "file") == "first version");
  write_atomically(folder / "file", "second");
  CHECK(test::read_file(folder / "file") == "second");
  write_atomically(folder / "file", std::span<const std::byte>());
  CHECK(test::read_file(folder / "file") == "");
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("a file without a folder in its name is written to the current one", "[file]") {
  const test::TempDir folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  write_atomically("file", "text");
  fs::current_path(before);
  CHECK(test::read_file(folder / "file") == "text");
}

TEST_CASE("a disk that fills up during an atomic write costs nothing", "[file]") {
  const test::TempDir folder;
  const fs::path path = folder / "model";
  write_atomically(path, "old content");
  const std::string large(100000, 'x');
  std::string message;
  {
    const test::FileSizeLimit limit(50000);
    message = message_of(ErrorKind::io, [&] { write_atomically(path, large); });
  }
  CHECK(has(message, path.string()));
  CHECK(has(message, "File too large"));
  CHECK(test::read_file(path) == "old content");
  CHECK(files_in(folder.path()) == 1);
  write_atomically(path, large);
  CHECK(test::read_file(path) == large);
}

// Temporary files of killed writers stayed for ever.
TEST_CASE("a writer that is killed at any moment leaves the old file or the new one, and the next leaves no other",
          "[file][ptrace]") {
  const test::TempDir folder;
  const fs::path path = folder / "model";
  const std::string before(1000, 'a');
  const std::string after(2000, 'b');
  int call = 0;
  std::size_t abandoned = 0;
  std::size_t replaced = 0;
  bool killed = true;
  for (; killed; ++call) {
    CAPTURE(call);
    write_atomically(path, before);
    REQUIRE(files_in(folder.path()) == 1);  // the leftover of the killed writer of the last round is gone
    killed = test::killed_at_call(call, [&] { write_atomically(path, after); });
    const std::string content = test::read_file(path);
    REQUIRE((content == before || content == after));
    replaced += content == after ? 1 : 0;
    abandoned += files_in(folder.path()) - 1;
  }
  CHECK(call > 10);
  CHECK(abandoned >= 3);  // between its creation and its new name a temporary is there in the middle of several calls
  CHECK(replaced >= 2);
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("writers of one file do not remove each other's temporaries", "[file]") {
  const test::TempDir folder;
  const fs::path path = folder / "model";
  std::vector<pid_t> children;
  for (int child = 0; child < 3; ++child) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    bool good = true;
    try {
      for (int i = 0; i < 100; ++i) write_atomically(path, std::string(3000, static_cast<char>('a' + child)));
    } catch (const Error&) {
      good = false;
    }
    ::_exit(good ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  const std::string content = test::read_file(path);
  CHECK(content == std::string(3000, content.at(0)));
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("devices are written to, not replaced", "[file]") {
  const test::TempDir folder;
  fs::create_symlink("/dev/null", folder / "null");
  write_atomically(folder / "null", "text");
  CHECK(fs::is_character_file(folder / "null"));
  fs::create_symlink("/dev/full", folder / "full");
  const std::string message = message_of(ErrorKind::io, [&] { write_atomically(folder / "full", "text"); });
  CHECK(has(message, "No space left on device"));
  CHECK(has(message, (folder / "full").string()));
  CHECK(fs::is_character_file(folder / "full"));
  CHECK(files_in(folder.path()) == 2);
}

// Standard output that led into a file: the link was replaced, and the file got nothing.
TEST_CASE("a file that is open is written to through links to its descriptor, which stay", "[file]") {
  const test::TempDir folder;
  const int descriptor = ::open((folder / "log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(::write(descriptor, "before, ", 8) == 8);
  fs::create_symlink("/proc/self/fd/" + std::to_string(descriptor), folder / "output");
  fs::create_symlink("output", folder / "link");
  write_atomically(folder / "output", "first, ");
  write_atomically(folder / "link", "second");
  REQUIRE(::write(descriptor, ", after", 7) == 7);
  CHECK(fs::is_symlink(folder / "output"));
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(test::read_file(folder / "log") == "before, first, second, after");
  CHECK(files_in(folder.path()) == 3);
  ::close(descriptor);
  // A link to a file that nobody has open is replaced as ever.
  fs::create_symlink("log", folder / "other");
  write_atomically(folder / "other", "whole");
  CHECK_FALSE(fs::is_symlink(folder / "other"));
  CHECK(test::read_file(folder / "log") == "before, first, second, after");
}

TEST_CASE("an atomic write that cannot start or finish says why", "[file]") {
  const test::TempDir folder;
  const fs::path lost = folder / "nowhere" / "file";
  const std::string message = message_of(ErrorKind::io, [&] { write_atomically(lost, "text"); });
  CHECK(has(message, lost.string()));
  CHECK(has(message, "No such file"));
  // The rename fails: the target is a folder.
  fs::create_directory(folder / "taken");
  CHECK(has(message_of(ErrorKind::io, [&] { write_atomically(folder / "taken", "text"); }), "Is a directory"));
  CHECK(files_in(folder.path()) == 1);
}

// The system said that the name was too long, which by itself it was not.
TEST_CASE("an atomic write says how long a name may be", "[file]") {
  const test::TempDir folder;
  const std::string name(240, 'a');
  const std::string message = message_of(ErrorKind::io, [&] { write_atomically(folder / name, std::string_view("text")); });
  CHECK(has(message, name + "': its name has 240 bytes; expected at most 2"));
  CHECK(has(message_of(ErrorKind::io, [&] { write_atomically(folder / std::string(256, 'a'), std::string_view("text")); }),
            "': File name too long"));
  write_atomically(folder / std::string(220, 'a'), std::string_view("text"));
  CHECK(fs::exists(folder / std::string(220, 'a')));
}

TEST_CASE("a lock is held by one process at a time", "[file]") {
  const test::TempDir folder;
  const fs::path path = folder / "lock";
  LockingProcess other(path);
  const std::string message = message_of(ErrorKind::busy, [&] { FileLock{path}; });
  CHECK(has(message, path.string()));
  CHECK(has(message, "process " + std::to_string(other.id())));
  CHECK(other.stop() == 0);
  const FileLock lock(path);
  CHECK(test::read_file(path) == std::to_string(::getpid()) + "\n");
}

TEST_CASE("a killed process leaves no lock behind", "[file]") {
  const test::TempDir folder;
  LockingProcess other(folder / "lock");
  CHECK(has(message_of(ErrorKind::busy, [&] { FileLock{folder / "lock"}; }), "is held by"));
  other.kill();
  CHECK_NOTHROW(FileLock{folder / "lock"});
}

TEST_CASE("a lock also excludes its own process, moves, and ends with its object", "[file]") {
  const test::TempDir folder;
  const fs::path path = folder / "lock";
  {
    FileLock first(path);
    FileLock second = std::move(first);
    CHECK(has(message_of(ErrorKind::busy, [&] { FileLock{path}; }), std::to_string(::getpid())));
    FileLock other(folder / "other");
    other = std::move(second);
    CHECK_NOTHROW(FileLock{folder / "other"});
    message_of(ErrorKind::busy, [&] { FileLock{path}; });
  }
  CHECK_NOTHROW(FileLock{path});
}

// A link to somebody's file had that file emptied.
TEST_CASE("a lock file that is a symbolic link is refused and its target left alone", "[file]") {
  const test::TempDir folder;
  test::write_file(folder / "precious", "text");
  for (const char* target : {"precious", "missing"}) {
    fs::create_symlink(folder / target, folder / "lock");
    const std::string message = message_of(ErrorKind::io, [&] { FileLock{folder / "lock"}; });
    CHECK(has(message, "is a symbolic link"));
    CHECK(has(message, (folder / "lock").string()));
    fs::remove(folder / "lock");
  }
  CHECK(test::read_file(folder / "precious") == "text");
  CHECK_FALSE(fs::exists(folder / "missing"));
}

TEST_CASE("a lock file that cannot be created is an io error", "[file]") {
  const test::TempDir folder;
  CHECK(has(message_of(ErrorKind::io, [&] { FileLock{folder / "nowhere" / "lock"}; }), "nowhere"));
}

TEST_CASE("a process id that is longer than the new one does not show through", "[file]") {
  const test::TempDir folder;
  test::write_file(folder / "lock", "99999999999999\n");
  const FileLock lock(folder / "lock");
  CHECK(test::read_file(folder / "lock") == std::to_string(::getpid()) + "\n");
}

TEST_CASE("the cache folder follows the XDG specification", "[file]") {
  const Environment home("HOME", "/home/someone");
  {
    const Environment cache("XDG_CACHE_HOME", "/fast/cache");
    CHECK(user_cache_folder() == "/fast/cache/bitloom");
  }
  for (const char* ignored : {static_cast<const char*>(nullptr), "", "relative/path"}) {
    const Environment cache("XDG_CACHE_HOME", ignored);
    CHECK(user_cache_folder() == "/home/someone/.cache/bitloom");
  }
  const Environment cache("XDG_CACHE_HOME", nullptr);
  const Environment no_home("HOME", nullptr);
  CHECK(has(message_of(ErrorKind::usage, [] { user_cache_folder(); }), "XDG_CACHE_HOME"));
}

TEST_CASE("a file whose parts cannot all be had stays as it was", "[file]") {
  const test::TempDir folder;
  const auto byte = std::byte{65};
  write_atomically(folder / "a", [&](const TakeBytes& take) {
    for (int i = 0; i < 3; ++i) take({&byte, 1});
  });
  CHECK(read_text(folder / "a") == "AAA");
  CHECK(has(message_of(ErrorKind::data,
                       [&] {
                         write_atomically(folder / "a", [&](const TakeBytes& take) {
                           take({&byte, 1});
                           fail(ErrorKind::data, "no more");
                         });
                       }),
            "no more"));
  CHECK(read_text(folder / "a") == "AAA");
  const std::filesystem::directory_iterator files(folder.path());
  CHECK(std::distance(begin(files), end(files)) == 1);
}

TEST_CASE("parts of a file come in any order, also for a pipe", "[file]") {
  const test::TempDir folder;
  const auto write_parts = [](const fs::path& path) {
    write_parts_atomically(path, [](const WritePart& write) {
      const auto put = [&](std::uint64_t place, std::string_view text) { write(place, std::as_bytes(std::span(text))); };
      put(5, "");
      put(5, "fg");
      put(3, "de");
      put(7, "h");
      put(0, "abc");
      put(8, "i");
    });
  };
  write_parts(folder / "file");
  CHECK(test::read_file(folder / "file") == "abcdefghi");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  const int reader = ::open((folder / "pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  write_parts(folder / "pipe");
  std::string text(20, ' ');
  text.resize(static_cast<std::size_t>(::read(reader, text.data(), text.size())));
  CHECK(text == "abcdefghi");
  ::close(reader);
  // A disk that fills up in the middle costs nothing.
  {
    const test::FileSizeLimit limit(4);
    CHECK(has(message_of(ErrorKind::io, [&] { write_parts(folder / "file"); }), "File too large"));
  }
  CHECK(test::read_file(folder / "file") == "abcdefghi");
  CHECK(files_in(folder.path()) == 2);
}

TEST_CASE("files are read and written at places, and say why they are not", "[file]") {
  const test::TempDir folder;
  test::write_file(folder / "file", "abcdef");
  const int file = ::open((folder / "file").c_str(), O_RDWR | O_CLOEXEC);
  const int unwritable = ::open((folder / "file").c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(file >= 0);
  std::string text(3, ' ');
  CHECK(read_at(file, 2, std::as_writable_bytes(std::span(text))) == 0);
  CHECK(text == "cde");
  CHECK(read_at(file, 4, std::as_writable_bytes(std::span(text))) == EIO);
  CHECK(write_at(file, 5, std::as_bytes(std::span(text))) == 0);
  CHECK(test::read_file(folder / "file").substr(0, 5) == "abcde");
  CHECK(std::filesystem::file_size(folder / "file") == 8);
  CHECK(write_at(unwritable, 0, std::as_bytes(std::span(text))) == EBADF);
  ::close(file);
  ::close(unwritable);
}

TEST_CASE("a folder that is not there yet has the room of the one that is", "[file]") {
  const test::TempDir folder;
  CHECK(free_space(folder.path()) > 0);
  CHECK(free_space(folder / "a/b") <= std::filesystem::space(folder.path()).capacity);
}
