// Memory in files without names: as good as other memory, with errors instead of signals.
#include "core/file_memory.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/progress.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using bitloom::test::has;
using bitloom::test::message_of;
using bitloom::test::TempDir;

TEST_CASE("memory in a file holds what is written to it, and leaves nothing behind", "[file]") {
  const TempDir folder;
  FileMemory memory(folder / "a/b", 100000);
  REQUIRE(memory.bytes().size() == 100000);
  CHECK(std::ranges::all_of(memory.bytes(), [](std::byte b) { return b == std::byte{0}; }));
  std::ranges::fill(memory.bytes(), std::byte{7});
  const FileMemory moved = std::move(memory);
  CHECK(std::ranges::count(moved.bytes(), std::byte{7}) == 100000);
  CHECK(std::filesystem::is_empty(folder / "a/b"));
  CHECK(FileMemory().bytes().empty());
  CHECK(FileMemory(folder / "none", 0).bytes().empty());
  CHECK_FALSE(std::filesystem::exists(folder / "none"));
}

TEST_CASE("memory in a file that cannot be had is an error that says how much and where", "[file]") {
  const TempDir folder;
  const std::string huge = message_of(ErrorKind::io, [&] { FileMemory(folder.path(), std::size_t{1} << 60U); });
  CHECK(has(huge, "cannot have " + format_bytes(std::uint64_t{1} << 60U) + " in a file in '" + folder.path().string() + "'"));
  CHECK(std::filesystem::is_empty(folder.path()));
  test::write_file(folder / "file", "");
  CHECK(has(message_of(ErrorKind::io, [&] { FileMemory(folder / "file", 1); }), "file'"));
}
