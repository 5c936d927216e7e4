#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "data/readers.h"
#include "data/synthetic.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;
namespace fs = std::filesystem;

TEST_CASE("load makes the synthetic set of a seed") {
  const LoadOptions small{.synthetic_train = 40, .synthetic_test = 20};
  const DataSplits one = load("synth", small);
  CHECK(one.train.size() == 40);
  CHECK(one.validation.size() == 0);
  CHECK(one.test.size() == 20);
  CHECK(content_hash(load("synth:1", small).train) == content_hash(one.train));
  CHECK(content_hash(load("synth:2", small).train) != content_hash(one.train));
  CHECK(load("synth", {.max_train = 7, .max_test = 3}).train.size() == 7);
  CHECK(load("synth", {.validation = 2, .max_train = 7, .max_test = 3}).train.size() == 5);
  for (const char* spec : {"synth:x", "synth:1x", "synth:-1", "synth:18446744073709551616"})
    CHECK(has(message_of(ErrorKind::usage, [&] { load(spec, small); }), "expected a whole number from 0 to 2^64 - 1"));
  CHECK(has(message_of(ErrorKind::usage, [&] { load("synth:", small); }), "expected a seed"));
  CHECK(has(message_of(ErrorKind::usage, [&] { load("synth", {.synthetic_train = 0}); }), "expected at least one of each"));
  CHECK(has(message_of(ErrorKind::usage, [&] { load("synth", {.validation = 40, .synthetic_train = 40}); }), "validation: 40"));
}

TEST_CASE("load recognises CIFAR-10 in the folder and in the folder that its archive makes") {
  const TempDir folder;
  const Dataset train = make_synthetic(3, 20);
  const Dataset test = make_synthetic(3, 10, synthetic_test_first);
  write_cifar10(train, test, folder / "cifar-10-batches-bin");
  for (const std::string& spec :
       {folder.path().string(), (folder / "cifar-10-batches-bin").string(), "cifar10:" + folder.path().string(),
        "cifar10:" + (folder / "cifar-10-batches-bin").string()}) {
    const DataSplits splits = load(spec, {.validation = 5});
    CHECK(splits.train.size() == 15);
    CHECK(splits.validation.size() == 5);
    CHECK(content_hash(splits.test) == content_hash(test));
  }
  const DataSplits few = load(folder.path().string(), {.max_train = 6, .max_test = 4});
  CHECK(few.train.size() == 6);
  CHECK(few.test.size() == 4);
  CHECK(few.train.labels[5] == train.labels[5]);
}

TEST_CASE("test images alone whose classes have no names get those that are expected") {
  const TempDir folder;
  const Dataset images = make_synthetic(3, 20);
  write_cifar10(images, images, folder.path());
  fs::remove(folder / "batches.meta.txt");
  const std::string here = folder.path().string();
  const std::vector<std::string> letters{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"};
  CHECK(load(here).test.class_names.front() == "0");
  // With training images a set is what it is: that another has as many classes makes them no equal ones.
  CHECK(load(here, {.test_alone = true, .class_names = letters}).test.class_names.front() == "0");
  for (int batch = 1; batch <= 5; ++batch) fs::remove(folder / fmt::format("data_batch_{}.bin", batch));
  const DataSplits alone = load(here, {.test_alone = true, .class_names = letters});
  CHECK(alone.train.size() == 0);
  CHECK(alone.test.size() == 20);
  CHECK(alone.test.class_names == letters);
  // Fewer than CIFAR-10 has.
  CHECK(load(here, {.test_alone = true, .class_names = {"a", "b"}}).test.class_names.front() == "0");
  const TempDir other;
  fs::create_directory(other / "cifar-100-binary");
  write_file(other / "cifar-100-binary/test.bin", std::string(2 * 3074, '\1'));
  CHECK(load(other.path().string(), {.test_alone = true}).test.size() == 2);
  CHECK(has(message_of(ErrorKind::data, [&] { load(other.path().string()); }), "train.bin is missing"));
}

TEST_CASE("load recognises CIFAR-100") {
  const TempDir folder;
  fs::create_directory(folder / "cifar-100-binary");
  for (const char* file : {"train.bin", "test.bin"})
    write_file(folder / "cifar-100-binary" / file, std::string(2 * 3074, '\1'));
  CHECK(load(folder.path().string()).train.classes() == 100);
  CHECK(load("cifar100:" + folder.path().string()).test.size() == 2);
}

TEST_CASE("load says what is wrong with a specification") {
  const TempDir folder;
  const std::string here = folder.path().string();
  CHECK(message_of(ErrorKind::data, [&] { load(here); }) ==
        here +
            ": no data set there: looked for data_batch_1.bin or test_batch.bin (CIFAR-10), train.bin or test.bin (CIFAR-100), "
            "train-images-idx3-ubyte or t10k-images-idx3-ubyte, or .gz of them (MNIST), sub-folders of images");
  CHECK(message_of(ErrorKind::data, [&] { load(here + "/none"); }) == here + "/none: no such folder");
  CHECK(message_of(ErrorKind::data, [&] { load("cifar10:" + here + "/none"); }) == here + "/none: no such folder");
  write_file(folder / "cifar.tar.gz", "x");
  CHECK(message_of(ErrorKind::data, [&] { load(here + "/cifar.tar.gz"); }) ==
        here + "/cifar.tar.gz: not a folder; archives have to be unpacked first");
  CHECK(has(message_of(ErrorKind::data, [&] { load("cifar10:" + here); }), "data_batch_1.bin is missing"));
  CHECK(has(message_of(ErrorKind::usage, [&] { load("cifer10:" + here); }),
            "unknown kind of data set 'cifer10' in 'cifer10:" + here + "'; did you mean 'cifar10'?"));
  CHECK(has(message_of(ErrorKind::usage, [&] { load(""); }), "no data set is named"));
  CHECK(has(message_of(ErrorKind::usage, [&] { load("synth", {.folder_test_share = 1.0}); }), "test share of a folder: 1"));
}

// The first images of a folder are all of its first class.
TEST_CASE("a few images of a folder are of all its classes") {
  const TempDir folder;
  const Dataset images = make_synthetic(4, 60);
  for (std::size_t i = 0; i < images.size(); ++i) {
    const fs::path place = folder / (i % 2 == 0 ? "train" : "test") / fmt::format("class{}", i / 20);
    fs::create_directories(place);
    write_png(images.image(i), images.shape, place / fmt::format("{}.png", i));
  }
  const DataSplits some = load(folder.path().string(), {.max_train = 12, .max_test = 9, .height = 16, .width = 16});
  CHECK(some.train.size() == 12);
  CHECK(some.test.size() == 9);
  CHECK(some.train.shape == ImageShape{16, 16, 3});
  for (const Dataset* set : {&some.train, &some.test}) {
    for (int label = 0; label < 3; ++label) CHECK(std::count(set->labels.begin(), set->labels.end(), label) > 0);
  }
}
