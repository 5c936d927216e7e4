// Checkpoints: the newest good one is found, and none is lost to a full disk.
#include "train/checkpoint.h"

#include "tests/support/catch.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::train;
using bitloom::test::has;
using bitloom::test::message_of;

namespace {

TensorFile file_with(float value, std::size_t size = 8) {
  TensorFile file;
  file.put("x", {size}, std::vector<float>(size, value));
  return file;
}

float value_of(const TensorFile& file) { return file.get("x").as<float>()[0]; }

}  // namespace

TEST_CASE("the last checkpoints are kept and the newest is read", "[checkpoint]") {
  const test::TempDir folder;
  for (const std::uint64_t step : {9, 10, 100}) write_checkpoint(folder.path(), step, file_with(static_cast<float>(step)));
  CHECK(list_checkpoints(folder.path()) ==
        std::vector{folder / "checkpoint-10.safetensors", folder / "checkpoint-100.safetensors"});
  CHECK(value_of(read_newest_checkpoint(folder.path()).file) == 100);
  test::write_file(folder / "checkpoint-x.safetensors", "not one of them");
  CHECK(list_checkpoints(folder.path()).size() == 2);
}

TEST_CASE("a damaged checkpoint is passed over, and named", "[checkpoint]") {
  const test::TempDir folder;
  for (const std::uint64_t step : {1, 2}) write_checkpoint(folder.path(), step, file_with(static_cast<float>(step)));
  const auto newest = folder / "checkpoint-2.safetensors";
  const std::string bytes = test::read_file(newest);
  SECTION("a bit is flipped") {
    std::string damaged = bytes;
    damaged.back() = static_cast<char>(damaged.back() ^ 1);
    test::write_file(newest, damaged);
  }
  SECTION("it is cut off") { test::write_file(newest, bytes.substr(0, bytes.size() - 1)); }
  SECTION("it is empty") { test::write_file(newest, ""); }
  SECTION("it has no checksum") {
    TensorFile other = file_with(2);
    const std::vector<std::byte> serialized = other.serialize();
    std::string text(reinterpret_cast<const char*>(serialized.data()), serialized.size());
    const std::size_t at = text.find("bitloom.xxh3");
    REQUIRE(at != std::string::npos);
    text[at] = 'c';
    test::write_file(newest, text);
  }
  const FoundCheckpoint found = read_newest_checkpoint(folder.path());
  CHECK(value_of(found.file) == 1);
  CHECK(found.damaged == std::vector{newest.string()});
  test::write_file(folder / "checkpoint-1.safetensors", "x");
  CHECK(has(message_of(ErrorKind::data, [&] { read_newest_checkpoint(folder.path()); }), "no checkpoint in"));
}

TEST_CASE("a full disk leaves the checkpoints that are there", "[checkpoint]") {
  const test::TempDir folder;
  for (const std::uint64_t step : {1, 2}) write_checkpoint(folder.path(), step, file_with(static_cast<float>(step)));
  {
    const test::FileSizeLimit limit(4096);
    CHECK(message_of(ErrorKind::io, [&] { write_checkpoint(folder.path(), 3, file_with(3, 100000)); }) != "no error");
  }
  CHECK(list_checkpoints(folder.path()).size() == 2);
  CHECK(value_of(read_newest_checkpoint(folder.path()).file) == 2);
}

TEST_CASE("a folder without checkpoints is said to be one", "[checkpoint]") {
  const test::TempDir folder;
  CHECK(has(message_of(ErrorKind::data, [&] { read_newest_checkpoint(folder.path()); }), "no checkpoint there"));
  CHECK(message_of(ErrorKind::data, [&] { list_checkpoints(folder / "missing"); }) != "no error");
}
