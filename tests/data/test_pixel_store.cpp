#include "data/pixel_store.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/readers.h"
#include "data/synthetic.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t image_count = 40, bytes = 50;
constexpr std::uint64_t plenty = std::uint64_t{1} << 30;
constexpr Hash128 key{1, 2};

void draw(std::size_t i, std::span<std::uint8_t> out) {
  for (std::size_t k = 0; k < out.size(); ++k) out[k] = static_cast<std::uint8_t>(7 * i + k);
}

// Opens the store and returns how many images were decoded for it.
std::size_t open_counted(const fs::path& folder, const Hash128& of = key, std::uint64_t limit = plenty) {
  std::atomic<std::size_t> decoded = 0;
  const auto store = PixelStore::open(folder, limit, of, image_count, bytes, [&](std::size_t i, std::span<std::uint8_t> out) {
    ++decoded;
    draw(i, out);
  });
  std::vector<std::uint8_t> image(bytes), expected(bytes);
  for (std::size_t i = 0; i < image_count; ++i) {
    store->prefetch(i);
    store->read(i, image);
    draw(i, expected);
    CHECK(image == expected);
  }
  store->check();
  return decoded;
}

// Two classes of `count` pictures in all.
void write_pictures(const fs::path& folder, std::size_t count) {
  const Dataset set = make_synthetic(4, count);
  for (std::size_t i = 0; i < count; ++i) {
    const fs::path place = folder / (i % 2 == 0 ? "even" : "odd");
    fs::create_directories(place);
    write_png(set.image(i), set.shape, place / (std::to_string(i) + ".png"));
  }
}

LoadOptions stored_in(const fs::path& folder) {
  LoadOptions options{.validation = 7, .max_test = 5, .height = 20, .width = 24};
  options.folder_memory.store_folder = folder;
  options.folder_memory.limit = 1000;
  return options;
}

}  // namespace

TEST_CASE("a store decodes each image once, and the next one that opens it none", "[pixel_store]") {
  const TempDir folder;
  CHECK(open_counted(folder / "new" / "folder") == image_count);
  CHECK(open_counted(folder / "new" / "folder") == 0);
}

TEST_CASE("a store that was not finished is continued", "[pixel_store]") {
  const TempDir folder;
  const std::string message = message_of(ErrorKind::data, [&] {
    PixelStore::open(folder.path(), plenty, key, image_count, bytes, [](std::size_t i, std::span<std::uint8_t> out) {
      if (i == 20 || i == 30) fail(ErrorKind::data, "picture {} is broken", i);
      draw(i, out);
    });
  });
  CHECK(message == fmt::format("2 of {} images cannot be used:\n  picture 20 is broken\n  picture 30 is broken", image_count));
  CHECK(open_counted(folder.path()) == 2);
}

// Each broken picture of a set ended a start of its own.
TEST_CASE("images that cannot be used are told together, other errors at once", "[pixel_store]") {
  const auto refused = [](std::size_t from, std::size_t to) {
    return message_of(ErrorKind::data, [&] {
      for_all_images(1000, [&](std::size_t i) {
        if (i >= from && i < to) fail(ErrorKind::data, "picture {}", i);
      });
    });
  };
  CHECK(refused(7, 8) == "picture 7");
  const std::string many = refused(100, 150);
  CHECK(many.starts_with("50 of 1000 images cannot be used:\n  picture 100\n  picture 101\n"));
  CHECK(many.ends_with("\n  picture 119\n  and 30 more"));
  CHECK(message_of(ErrorKind::io, [] {
          for_all_images(1000, [](std::size_t i) { fail(i == 500 ? ErrorKind::io : ErrorKind::data, "picture {}", i); });
        }) == "picture 500");
}

TEST_CASE("damage to a stored image is found, and the file named", "[pixel_store]") {
  const TempDir folder;
  open_counted(folder.path());
  const fs::path file = folder / (key.hex() + ".pixels");
  {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(64 + 3 * (8 + bytes) + 8 + 10);
    stream.put('\x55');
  }
  const auto store = PixelStore::open(folder.path(), plenty, key, image_count, bytes, draw);
  std::vector<std::uint8_t> image(bytes);
  store->read(2, image);
  store->check();
  CHECK_FALSE(store->has_failed());
  store->read(3, image);
  CHECK(store->has_failed());
  CHECK(image == std::vector<std::uint8_t>(bytes, 0));
  CHECK(message_of(ErrorKind::io, [&] { store->check(); }) ==
        file.string() + ": image 3 cannot be read or is damaged; remove the file, and it is made again");
  fs::resize_file(file, 64 + 5 * (8 + bytes));  // a file cut by a full disk or by hand is made whole
  CHECK(open_counted(folder.path()) == image_count - 4);
}

TEST_CASE("stores that were not used for long make room", "[pixel_store]") {
  const TempDir folder;
  const std::uint64_t size = 64 + image_count * (8 + bytes);
  const auto path = [&](std::uint64_t k) { return folder / (Hash128{k, 0}.hex() + ".pixels"); };
  write_file(folder / "other.txt", "stays");
  for (std::uint64_t k = 1; k <= 3; ++k) {
    open_counted(folder.path(), {k, 0}, 2 * size);
    fs::last_write_time(path(k), fs::file_time_type::clock::now() - std::chrono::hours(10 - k));
  }
  CHECK(!fs::exists(path(1)));
  CHECK(fs::exists(path(2)));
  open_counted(folder.path(), {2, 0}, 2 * size);  // used
  open_counted(folder.path(), {4, 0}, 2 * size);
  CHECK(fs::exists(path(2)));
  CHECK(!fs::exists(path(3)));
  open_counted(folder.path(), {5, 0}, 10);  // larger than the limit by itself, and needed
  CHECK(!fs::exists(path(2)));
  CHECK(!fs::exists(path(4)));
  CHECK(fs::exists(path(5)));
  CHECK(fs::exists(folder / "other.txt"));
}

TEST_CASE("a store that the device has no room for is refused before it is filled", "[pixel_store]") {
  const TempDir folder;
  const std::string message = message_of(ErrorKind::io, [&] {
    PixelStore::open(folder.path(), plenty, key, 1000, std::size_t{1} << 45U, [](std::size_t, std::span<std::uint8_t>) {});
  });
  CHECK(has(message, folder.path().string() + ": 1000 images take 31."));
  CHECK(has(message, " PiB and the device has "));
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("a folder of images that exceeds the memory limit is the same set, but not in memory", "[pixel_store]") {
  const TempDir pictures, cache;
  write_pictures(pictures.path(), 60);
  LoadOptions in_memory = stored_in("");
  const DataSplits expected = load(pictures.path().string(), in_memory);
  const DataSplits stored = load(pictures.path().string(), stored_in(cache.path()));
  const std::array<const Dataset*, 3> wanted{&expected.train, &expected.validation, &expected.test};
  const std::array<const Dataset*, 3> found{&stored.train, &stored.validation, &stored.test};
  for (std::size_t part = 0; part < 3; ++part) {
    CHECK(wanted[part]->store == nullptr);
    REQUIRE(found[part]->store != nullptr);
    CHECK(found[part]->pixels.empty());
    CHECK(found[part]->pixel_memory() == 4 * found[part]->size());
    CHECK(found[part]->labels == wanted[part]->labels);
    CHECK(content_hash(*found[part]) == content_hash(*wanted[part]));
    std::vector<std::uint8_t> room;
    for (std::size_t i = 0; i < found[part]->size(); ++i) {
      CHECK(std::ranges::equal(found[part]->image(i, room), wanted[part]->image(i)));
    }
  }
  CHECK(stored.validation.size() == 7);
  CHECK(stored.test.size() == 5);
}

TEST_CASE("a picture that changed is decoded again", "[pixel_store]") {
  const TempDir pictures, cache;
  write_pictures(pictures.path(), 20);
  const auto hash = [&] { return content_hash(load(pictures.path().string(), stored_in(cache.path())).train); };
  const auto files = [&] { return std::distance(fs::directory_iterator(cache.path()), fs::directory_iterator()); };
  const std::string before = hash();
  CHECK(hash() == before);
  CHECK(files() == 1);
  const Dataset other = make_synthetic(9, 20);
  for (const auto& entry : fs::directory_iterator(pictures / "even")) write_png(other.image(3), other.shape, entry.path());
  CHECK(hash() != before);
  CHECK(files() == 2);
  write_file(pictures / "odd" / "1.png", "not a picture");
  CHECK(message_of(ErrorKind::data, hash) == (pictures / "odd" / "1.png").string() + ": neither a PNG nor a JPEG file");
}
