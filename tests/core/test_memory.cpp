// Memory that containers leave to their processes.
#include "core/memory.h"

#include <limits>

#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace bitloom;
using bitloom::test::TempDir;
using bitloom::test::write_file;

TEST_CASE("a control group leaves its limit less what cannot go, and no more than those above it", "[memory]") {
  const TempDir root;
  constexpr std::uint64_t any = std::numeric_limits<std::uint64_t>::max();
  CHECK(available_in_group(root.path(), "/") == any);
  std::filesystem::create_directories(root / "a/b");
  write_file(root / "a/b/memory.max", "max\n");
  CHECK(available_in_group(root.path(), "/a/b") == any);
  write_file(root / "a/memory.max", "1000\n");
  write_file(root / "a/memory.current", "700\n");
  CHECK(available_in_group(root.path(), "/a/b") == 300);
  write_file(root / "a/memory.stat", "anon 400\ninactive_file 250\nactive_file 50\n");
  CHECK(available_in_group(root.path(), "/a/b") == 550);
  write_file(root / "a/b/memory.max", "90\n");
  write_file(root / "a/b/memory.current", "100\n");
  CHECK(available_in_group(root.path(), "/a/b") == 0);
  CHECK(available_in_group(root.path(), "/a") == 550);
  CHECK(available_in_group(root.path(), "/") == any);
}

TEST_CASE("this machine has memory, some of it free", "[memory]") {
  CHECK(available_memory() > 0);
  CHECK(available_memory() <= total_memory());
}
