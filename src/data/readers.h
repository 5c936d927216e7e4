// Data sets on disk, and the one function that turns what the user typed after --data into training, validation and test
// sets. Every function throws a data error (ErrorKind::data) that names the file, what was found and what was expected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/image.h"

namespace bitloom::data {

// CIFAR-10 "binary version": data_batch_1.bin .. data_batch_5.bin (train; all five) or test_batch.bin, each any
// whole number of records of 1 label byte and 3 x 32 x 32 pixel bytes; the five of equal length but for one record, since a
// file cut at the end of a record looks whole. Class names and their number come from batches.meta.txt, one per line; without
// it they are `class_names` or, if these are none, "0" .. "9". Source: https://www.cs.toronto.edu/~kriz/cifar.html
Dataset read_cifar10(const std::filesystem::path& folder, bool train, const std::vector<std::string>& class_names = {});

// CIFAR-100: train.bin or test.bin, records of 1 coarse label, 1 fine label and 3 x 32 x 32 bytes. The fine label is used;
// names come from fine_label_names.txt if it is there.
Dataset read_cifar100(const std::filesystem::path& folder, bool train, const std::vector<std::string>& class_names = {});

// MNIST and Fashion-MNIST: train-images-idx3-ubyte and train-labels-idx1-ubyte (train) or t10k-..., each as it is or with
// .gz added (the unpacked one wins). One channel; ten classes "0" .. "9".
// Source: http://yann.lecun.com/exdb/mnist/
Dataset read_idx(const std::filesystem::path& folder, bool train);

// Where the images of a folder are kept once they are decoded.
struct FolderMemory {
  std::uint64_t limit = std::uint64_t{1} << 30;        // more bytes of pixels than that go to a file in store_folder
  std::filesystem::path store_folder{};                // empty: all images are held in memory
  std::uint64_t store_limit = std::uint64_t{8} << 30;  // bytes of such files of earlier runs together with this one
};

// One sub-folder per class (its name is the class name), PNG and JPEG files in it, directly; cut and resized to the shape as
// fit() does, with 3 channels (RGB) or 1 (grey). Classes and files are in byte order of their names; other files are skipped.
// `class_names` may be given to fix the list (a test folder may lack a class); a sub-folder that is not in it is an error. All
// threads decode.
Dataset read_image_folder(const std::filesystem::path& folder, const ImageShape& shape, const FolderMemory& memory = {},
                          const std::vector<std::string>& class_names = {});

// Names of the files of CIFAR-10.
std::vector<std::string> cifar10_files();

// Writes `train` as data_batch_1.bin .. data_batch_5.bin (an even split in order) and batches.meta.txt, `test` (if it has
// images) as test_batch.bin. The folder is made; files of these names are replaced. Needs 3 x 32 x 32 images and at most
// 256 classes; throws a usage error otherwise, an io error if the disk refuses.
void write_cifar10(const Dataset& train, const Dataset& test, const std::filesystem::path& folder);

struct LoadOptions {
  std::size_t validation = 0;  // images taken out of the training set for validation
  std::uint64_t seed = 1;      // seed of the choice of validation images
  // Largest number of training images, before the split; 0 takes all. The first ones; of a folder, which is in order of
  // classes, some that the seed chooses. The same for test images.
  std::size_t max_train = 0;
  std::size_t max_test = 0;
  std::size_t synthetic_train = 10000;  // images that `synth` makes
  std::size_t synthetic_test = 2000;
  std::size_t height = 32;  // size of images in folders
  std::size_t width = 32;
  std::size_t channels = 3;
  FolderMemory folder_memory{};
  double folder_test_share = 0.2;  // share of a folder without test/ for the test set
  // Whether a set may have test images alone: the training set is empty then. If CIFAR's files do not tell the names of the
  // classes, or a folder has not all of them, these are taken, where there are any.
  bool test_alone = false;
  std::vector<std::string> class_names{};
};

// `spec` is one of
//   synth, synth:SEED   the built-in synthetic set (data/synthetic.h)
//   cifar10:PATH, cifar100:PATH, idx:PATH, folder:PATH
//   PATH                the kind is recognised from the files there, in PATH itself or in one of its sub-folders
//                       cifar-10-batches-bin, cifar-100-binary, MNIST/raw, FashionMNIST/raw
// A folder of images holds train/ and test/ with one sub-folder per class each; without test/ a share of the images, keyed
// by the seed, becomes the test set; without train/ the folder itself holds the classes. Throws a usage error for an unknown
// kind or an impossible option, a data error for a set without training images unless `test_alone`.
DataSplits load(const std::string& spec, const LoadOptions& options = {});

// For the user: that load() passes over images that lie beside those it reads, as in ImageNet's val/ beside train/. "": none.
std::string note_on_unread(const std::string& spec);
// For the user: that load() takes a part of the images in a folder for tests, since it has no test/. "": it has, or is none.
std::string note_on_drawn_tests(const std::string& spec);

}  // namespace bitloom::data
