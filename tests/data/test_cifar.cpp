#include <filesystem>

#include "core/random.h"
#include "data/readers.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;
namespace fs = std::filesystem;

namespace {

Dataset random_set(std::size_t count, std::uint64_t seed, std::size_t classes) {
  Dataset dataset{"random", {32, 32, 3}, {}, {}, {}};
  for (std::size_t c = 0; c < classes; ++c) dataset.class_names.push_back("class " + std::to_string(c));
  Random random(seed, Stream::test);
  for (std::size_t i = 0; i < count; ++i)
    dataset.labels.push_back(static_cast<std::uint16_t>(random.below(static_cast<std::uint32_t>(classes))));
  for (std::size_t i = 0; i < count * 3072; ++i) dataset.pixels.push_back(static_cast<std::uint8_t>(random.below(256)));
  return dataset;
}

// A folder of 13 training and 4 test images that a test may then damage.
void write_small(const fs::path& folder) { write_cifar10(random_set(13, 1, 10), random_set(4, 2, 10), folder); }

}  // namespace

TEST_CASE("CIFAR-10 files come back as they were written") {
  const TempDir folder;
  const Dataset train = random_set(13, 1, 7);
  const Dataset test = random_set(4, 2, 7);
  write_cifar10(train, test, folder / "new" / "cifar");
  const Dataset read_train = read_cifar10(folder / "new" / "cifar", true);
  CHECK(read_train.pixels == train.pixels);
  CHECK(read_train.labels == train.labels);
  CHECK(read_train.class_names == train.class_names);
  CHECK(read_train.shape == ImageShape{32, 32, 3});
  const Dataset read_test = read_cifar10(folder / "new" / "cifar", false);
  CHECK(content_hash(read_test) == content_hash(test));
}

TEST_CASE("the layout of a CIFAR-10 record is a label and three planes") {
  const TempDir folder;
  std::string record(3073, '\0');
  record[0] = 6;
  record[1 + 2 * 1024 + 3 * 32 + 5] = 77;  // blue, row 3, column 5
  write_file(folder / "test_batch.bin", record);
  const Dataset test = read_cifar10(folder.path(), false);
  REQUIRE(test.size() == 1);
  CHECK(test.labels[0] == 6);
  CHECK(test.image(0)[2 * 1024 + 3 * 32 + 5] == 77);
  CHECK(test.classes() == 10);
  CHECK(test.class_names[3] == "3");
}

TEST_CASE("class names in Windows line ends and with blank lines are understood") {
  const TempDir folder;
  write_small(folder.path());
  std::string names;
  for (int i = 0; i < 10; ++i) names += "k" + std::to_string(i) + "\r\n";
  write_file(folder / "batches.meta.txt", names + "\n");
  const Dataset test = read_cifar10(folder.path(), false);
  REQUIRE(test.classes() == 10);
  CHECK(test.class_names[9] == "k9");
}

TEST_CASE("damaged CIFAR-10 files are refused with the file, the value and what was expected") {
  const TempDir folder;
  write_small(folder.path());
  const fs::path batch = folder / "data_batch_2.bin";
  const std::string whole = read_file(batch);
  const auto message = [&] { return message_of(ErrorKind::data, [&] { read_cifar10(folder.path(), true); }); };

  SECTION("truncated") {
    fs::resize_file(batch, whole.size() - 1);
    CHECK(message() == batch.string() + ": 9,218 bytes is not a whole number of 3,073-byte records");
  }
  SECTION("oversized") {
    fs::resize_file(batch, 3000001);
    CHECK(message() == batch.string() + ": 3,000,001 bytes is not a whole number of 3,073-byte records");
  }
  SECTION("cut at the end of a record, or one file twice in a row") {
    fs::resize_file(batch, 3073);
    CHECK(has(message(), "hold 1 to 3 records, expected the same number each: one is cut off or too long"));
    write_file(batch, whole + whole);
    CHECK(has(message(), "hold 2 to 6 records"));
  }
  SECTION("class names of another encoding") {
    write_file(folder / "batches.meta.txt", "cat\nb\xe4r\n");
    CHECK(has(message(), "' is not UTF-8 text"));
  }
  SECTION("empty") {
    fs::resize_file(batch, 0);
    CHECK(message() == batch.string() + ": the file is empty, expected 3,073-byte records");
  }
  SECTION("label out of range") {
    std::string bytes = whole;
    bytes[2 * 3073] = 10;
    write_file(batch, bytes);
    CHECK(message() == batch.string() + ": record 3 of 3 has label 10, expected 0 to 9 (10 classes)");
  }
  SECTION("fewer classes than labels") {
    write_file(folder / "batches.meta.txt", "cat\n");
    CHECK(has(message(), "expected 0 to 0 (1 classes)"));
  }
  SECTION("no class names") {
    write_file(folder / "batches.meta.txt", "\n\n");
    CHECK(message() == (folder / "batches.meta.txt").string() + ": 0 class names, expected 1 to 256, one per line");
  }
  SECTION("one class name twice") {
    write_file(folder / "batches.meta.txt", "cat\ndog\ncat\n");
    CHECK(message() == (folder / "batches.meta.txt").string() + ": two classes are named 'cat'");
  }
  SECTION("missing batch") {
    fs::remove(batch);
    CHECK(message() == folder.path().string() +
                           ": data_batch_2.bin is missing or not a file: cifar10 data set needs data_batch_1.bin, "
                           "data_batch_2.bin, data_batch_3.bin, data_batch_4.bin, data_batch_5.bin");
  }
  SECTION("a folder in place of a file") {
    fs::remove(batch);
    fs::create_directory(batch);
    CHECK(has(message(), "data_batch_2.bin is missing or not a file"));
  }
  SECTION("missing folder") {
    CHECK(message_of(ErrorKind::data, [&] { read_cifar10(folder / "nowhere", false); }) ==
          (folder / "nowhere").string() + ": no such folder (looked for test_batch.bin there)");
  }
}

TEST_CASE("CIFAR-100 uses the fine label") {
  const TempDir folder;
  std::string records;
  for (const char fine : {3, 99}) records += std::string(1, 19) + fine + std::string(3072, fine);
  write_file(folder / "train.bin", records);
  const Dataset train = read_cifar100(folder.path(), true);
  CHECK(train.classes() == 100);
  CHECK(train.labels == std::vector<std::uint16_t>{3, 99});
  CHECK(train.image(1)[3071] == 99);

  records[3074 + 1] = 100;
  write_file(folder / "train.bin", records);
  CHECK(message_of(ErrorKind::data, [&] { read_cifar100(folder.path(), true); }) ==
        (folder / "train.bin").string() + ": record 2 of 2 has label 100, expected 0 to 99 (100 classes)");
  fs::resize_file(folder / "train.bin", 3073);
  CHECK(has(message_of(ErrorKind::data, [&] { read_cifar100(folder.path(), true); }),
            "not a whole number of 3,074-byte records"));
  CHECK(has(message_of(ErrorKind::data, [&] { read_cifar100(folder.path(), false); }), "test.bin is missing"));
}

TEST_CASE("what does not fit in CIFAR-10 files is not written") {
  const TempDir folder;
  const Dataset none;
  CHECK(message_of(ErrorKind::usage, [&] { write_cifar10(random_set(4, 1, 10), none, folder / "x"); }) ==
        "4 training images cannot fill 5 CIFAR-10 files");
  Dataset grey = random_set(6, 1, 10);
  grey.shape = {48, 64, 1};
  CHECK(message_of(ErrorKind::usage, [&] { write_cifar10(grey, none, folder / "x"); }) ==
        "CIFAR-10 files hold 3 x 32 x 32 images, but random has 1 x 48 x 64");
  CHECK(message_of(ErrorKind::usage, [&] { write_cifar10(random_set(6, 1, 257), none, folder / "x"); }) ==
        "CIFAR-10 files hold 1 to 256 classes, but random has 257");
  CHECK(has(message_of(ErrorKind::usage, [&] { write_cifar10(random_set(6, 1, 10), random_set(6, 1, 9), folder / "x"); }),
            "must have the same class names"));
  CHECK_FALSE(fs::exists(folder / "x"));
}

TEST_CASE("a folder that cannot be made is an io error") {
  const TempDir folder;
  write_file(folder / "file", "x");
  CHECK(has(message_of(ErrorKind::io, [&] { write_small(folder / "file" / "below"); }), "the folder cannot be made"));
}

TEST_CASE("the real CIFAR-10 has 50,000 balanced training images") {
  const auto data = data_folder();
  if (!data) return;
  const DataSplits splits = load(data->string(), {});
  CHECK(splits.train.size() == 50000);
  CHECK(splits.test.size() % 1000 == 0);
  CHECK(splits.test.size() >= 8000);
  CHECK(splits.train.class_names[0] == "airplane");
  CHECK(splits.train.class_names[9] == "truck");
  std::vector<int> count(10);
  for (const std::uint16_t label : splits.train.labels) ++count[label];
  CHECK(count == std::vector<int>(10, 5000));
}
