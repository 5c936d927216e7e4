#include <zlib.h>

#include <filesystem>

#include "data/readers.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;
namespace fs = std::filesystem;

namespace {

std::string big_endian(std::initializer_list<std::uint32_t> numbers) {
  std::string bytes;
  for (const std::uint32_t number : numbers) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(number >> shift & 255));
  }
  return bytes;
}

// `count` images of 4 x 5; pixel p of image i is 20 i + p (modulo 256).
std::string images(std::uint32_t count) {
  std::string bytes = big_endian({0x803, count, 4, 5});
  for (std::uint32_t k = 0; k < count * 20; ++k) bytes.push_back(static_cast<char>(k));
  return bytes;
}

std::string labels(std::uint32_t count) {
  std::string bytes = big_endian({0x801, count});
  for (std::uint32_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(i % 10));
  return bytes;
}

void write_gz(const fs::path& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  REQUIRE(file != nullptr);
  REQUIRE(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) == static_cast<int>(bytes.size()));
  REQUIRE(gzclose(file) == Z_OK);
}

void check_small(const Dataset& dataset) {
  REQUIRE(dataset.size() == 12);
  CHECK(dataset.shape == ImageShape{4, 5, 1});
  CHECK(dataset.classes() == 10);
  for (std::size_t i = 0; i < 12; ++i) {
    CHECK(dataset.labels[i] == i % 10);
    for (std::size_t p = 0; p < 20; ++p) CHECK(dataset.image(i)[p] == (20 * i + p) % 256);
  }
}

}  // namespace

TEST_CASE("a folder with the test files of MNIST alone can be read to measure nets") {
  const TempDir folder;
  write_gz(folder / "t10k-images-idx3-ubyte.gz", images(12));
  write_file(folder / "t10k-labels-idx1-ubyte", labels(12));
  const std::string here = folder.path().string();
  for (const std::string& spec : {here, "idx:" + here}) {
    const DataSplits splits = load(spec, {.test_alone = true});
    check_small(splits.test);
    CHECK(splits.train.size() == 0);
    CHECK(splits.train.shape == splits.test.shape);
    CHECK(splits.train.class_names == splits.test.class_names);
    CHECK(splits.validation.size() == 0);
    CHECK(message_of(ErrorKind::data, [&] { load(spec); }) ==
          here + ": neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz is there");
  }
}

TEST_CASE("IDX files are read plain and compressed") {
  const TempDir folder;
  write_file(folder / "train-images-idx3-ubyte", images(12));
  write_file(folder / "train-labels-idx1-ubyte", labels(12));
  write_gz(folder / "t10k-images-idx3-ubyte.gz", images(12));
  write_gz(folder / "t10k-labels-idx1-ubyte.gz", labels(12));
  check_small(read_idx(folder.path(), true));
  check_small(read_idx(folder.path(), false));
  // Through the front door, and from the folder that torchvision makes.
  fs::create_directories(folder / "MNIST");
  fs::create_directory_symlink(folder.path(), folder / "MNIST" / "raw");
  const DataSplits splits = load(folder.path().string(), {.validation = 2});
  CHECK(splits.train.size() == 10);
  CHECK(splits.validation.size() == 2);
  CHECK(load("idx:" + folder.path().string()).test.size() == 12);
}

TEST_CASE("damaged IDX files are refused with the file, the value and what was expected") {
  const TempDir folder;
  const fs::path image_file = folder / "train-images-idx3-ubyte";
  const fs::path label_file = folder / "train-labels-idx1-ubyte";
  write_file(image_file, images(12));
  write_file(label_file, labels(12));
  const auto message = [&] { return message_of(ErrorKind::data, [&] { read_idx(folder.path(), true); }); };

  SECTION("bad magic numbers") {
    write_file(image_file, labels(12));
    CHECK(message() ==
          image_file.string() + ": magic number 0x00000801, expected 0x00000803 (images: unsigned bytes in 3 dimensions)");
    write_file(image_file, images(12));
    write_file(label_file, images(12));
    CHECK(has(message(), "expected 0x00000801 (labels: unsigned bytes in 1 dimension)"));
  }
  SECTION("numbers of images and labels differ") {
    write_file(label_file, labels(11));
    CHECK(message() == label_file.string() + ": 11 labels, but " + image_file.string() + " has 12 images");
  }
  SECTION("truncated") {
    fs::resize_file(image_file, 16 + 239);
    CHECK(message() == image_file.string() + ": truncated: the images end after 239 of 240 bytes");
    fs::resize_file(image_file, 6);
    CHECK(message() == image_file.string() + ": truncated: the number of images end after 2 of 4 bytes");
    fs::resize_file(image_file, 0);
    CHECK(has(message(), "the magic number end after 0 of 4 bytes"));
  }
  SECTION("oversized") {
    write_file(image_file, images(12) + "x");
    CHECK(message() == image_file.string() + ": more bytes than its header says");
  }
  SECTION("a header that claims terabytes") {
    write_file(image_file, big_endian({0x803, 0xffffffff, 4096, 4096}));
    write_file(label_file, big_endian({0x801, 0xffffffff}));
    CHECK(message() == label_file.string() + ": truncated: its header says 4294967295 bytes of data, the file has 8");
    write_file(image_file, big_endian({0x803, 12, 4096, 4096}));
    write_file(label_file, labels(12));
    CHECK(has(message(), "its header says 201326592 bytes of data, the file has 16"));
  }
  SECTION("impossible sizes") {
    write_file(image_file, big_endian({0x803, 12, 0, 5}));
    CHECK(message() == image_file.string() + ": 12 images of 0 x 5, expected at least one, of 1 to 4096 on a side");
  }
  SECTION("label out of range") {
    std::string bytes = labels(12);
    bytes[8 + 4] = 10;
    write_file(label_file, bytes);
    CHECK(message() == label_file.string() + ": record 5 of 12 has label 10, expected 0 to 9");
  }
  SECTION("missing") {
    fs::remove(label_file);
    CHECK(message() == folder.path().string() + ": neither train-labels-idx1-ubyte nor train-labels-idx1-ubyte.gz is there");
    CHECK(has(message_of(ErrorKind::data, [&] { read_idx(folder / "nowhere", true); }), "no such folder"));
  }
}

TEST_CASE("a cut or garbled gzip stream is refused") {
  const TempDir folder;
  const fs::path image_file = folder / "train-images-idx3-ubyte.gz";
  write_gz(image_file, images(5000));
  write_gz(folder / "train-labels-idx1-ubyte.gz", labels(5000));
  REQUIRE(read_idx(folder.path(), true).size() == 5000);
  const std::string whole = read_file(image_file);
  // Cut in the data, and cut in the checksum at the end.
  for (const std::size_t size : {whole.size() / 2, whole.size() - 3}) {
    write_file(image_file, whole.substr(0, size));
    const std::string message = message_of(ErrorKind::data, [&] { read_idx(folder.path(), true); });
    CHECK(has(message, image_file.string() + ": broken or truncated: "));
  }
  std::string garbled = whole;
  garbled[garbled.size() - 6] ^= 1;  // the checksum
  write_file(image_file, garbled);
  CHECK(has(message_of(ErrorKind::data, [&] { read_idx(folder.path(), true); }), "broken or truncated"));
}
