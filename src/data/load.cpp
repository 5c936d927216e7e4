// From what the user typed after --data to training, validation and test sets.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <utility>

#include "core/error.h"
#include "core/random.h"
#include "core/suggest.h"
#include "data/readers.h"
#include "data/synthetic.h"

namespace bitloom::data {
namespace {

namespace fs = std::filesystem;

bool any_exists(const fs::path& folder, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) { return fs::exists(folder / name); });
}

// One of several training files is enough: that others are missing the reader says.
bool trains_cifar10(const fs::path& folder) {
  return any_exists(folder,
                    {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"});
}
bool trains_cifar100(const fs::path& folder) { return any_exists(folder, {"train.bin"}); }
bool trains_idx(const fs::path& folder) {
  return any_exists(folder, {"train-images-idx3-ubyte", "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte",
                             "train-labels-idx1-ubyte.gz"});
}
bool is_cifar10(const fs::path& folder) { return trains_cifar10(folder) || any_exists(folder, {"test_batch.bin"}); }
bool is_cifar100(const fs::path& folder) { return trains_cifar100(folder) || any_exists(folder, {"test.bin"}); }
bool is_idx(const fs::path& folder) {
  return trains_idx(folder) || any_exists(folder, {"t10k-images-idx3-ubyte", "t10k-images-idx3-ubyte.gz"});
}
// True if there are sub-folders with images directly in them.
bool holds_classes(const fs::path& folder) {
  std::error_code error, none;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (!entry.is_directory(none)) continue;
    for (const auto& file : fs::directory_iterator(entry.path(), error)) {
      if (is_image_name(file.path())) return true;
    }
  }
  return false;
}
bool trains_folder(const fs::path& folder) { return holds_classes(folder) || holds_classes(folder / "train"); }
bool is_image_folder(const fs::path& folder) { return trains_folder(folder) || holds_classes(folder / "test"); }

DataSplits load_image_folder(const fs::path& folder, const LoadOptions& options) {
  const auto read = [&](const fs::path& from, const std::vector<std::string>& classes) {
    return read_image_folder(from, {options.height, options.width, options.channels}, options.folder_memory, classes);
  };
  DataSplits splits;
  if (!trains_folder(folder) && holds_classes(folder / "test")) {
    if (!options.test_alone) {
      fail(ErrorKind::data,
           "{}: no training images there: test/ has sub-folders of images, but there is no train/ that has some",
           folder.string());
    }
    splits.test = read(folder / "test", options.class_names);
    return splits;
  }
  // "train" may also be a class, so its name alone says nothing.
  const bool has_train = holds_classes(folder / "train");
  splits.train = read(has_train ? folder / "train" : folder, {});
  if (has_train && fs::is_directory(folder / "test")) {
    splits.test = read(folder / "test", splits.train.class_names);
    return splits;
  }
  const auto count = static_cast<std::size_t>(static_cast<double>(splits.train.size()) * options.folder_test_share);
  // Other keys than the validation split's, which would choose by the same permutation.
  splits.test = split_validation(splits.train, count, mix64(options.seed));
  return splits;
}

// The images of a folder come class by class: the first ones would all be of one class.
void choose(Dataset& dataset, std::size_t count, std::uint64_t seed) {
  if (count != 0 && count < dataset.size()) dataset = split_validation(dataset, count, seed);
}

DataSplits load_some_of_folder(const fs::path& folder, const LoadOptions& options) {
  DataSplits splits = load_image_folder(folder, options);
  choose(splits.train, options.max_train, mix64(options.seed + 1));
  choose(splits.test, options.max_test, mix64(options.seed + 2));
  return splits;
}

Dataset read_part_of_idx(const fs::path& folder, bool train, const std::vector<std::string>&) {
  return read_idx(folder, train);
}

template <auto read, bool (*trains)(const fs::path&)>
DataSplits load_pair(const fs::path& folder, const LoadOptions& options) {
  DataSplits splits;
  const bool has_train = !options.test_alone || trains(folder);
  if (has_train) splits.train = read(folder, true, {});
  splits.test = read(folder, false, has_train ? std::vector<std::string>() : options.class_names);
  return splits;
}

// Kinds of data that can be read from a folder, in the order of recognition.
struct Kind {
  const char* name;
  bool (*recognised)(const fs::path& folder);
  DataSplits (*load)(const fs::path& folder, const LoadOptions& options);
  std::array<const char*, 2> subfolders;  // where its archives unpack to; "" for none
  const char* looked_for;
};

constexpr auto kinds = std::to_array<Kind>({
    {"cifar10",
     &is_cifar10,
     &load_pair<&read_cifar10, &trains_cifar10>,
     {"cifar-10-batches-bin", ""},
     "data_batch_1.bin or test_batch.bin (CIFAR-10)"},
    {"cifar100",
     &is_cifar100,
     &load_pair<&read_cifar100, &trains_cifar100>,
     {"cifar-100-binary", ""},
     "train.bin or test.bin (CIFAR-100)"},
    {"idx",
     &is_idx,
     &load_pair<&read_part_of_idx, &trains_idx>,
     {"MNIST/raw", "FashionMNIST/raw"},
     "train-images-idx3-ubyte or t10k-images-idx3-ubyte, or .gz of them (MNIST)"},
    {"folder", &is_image_folder, &load_some_of_folder, {"", ""}, "sub-folders of images"},
});

// The folder itself or one of its usual sub-folders, whichever this kind recognises; "" if none.
fs::path locate(const Kind& kind, const fs::path& folder) {
  if (kind.recognised(folder)) return folder;
  for (const char* subfolder : kind.subfolders) {
    if (*subfolder != '\0' && kind.recognised(folder / subfolder)) return folder / subfolder;
  }
  return {};
}

void expect_folder(const fs::path& path) {
  if (!fs::exists(path)) fail(ErrorKind::data, "{}: no such folder", path.string());
  if (!fs::is_directory(path)) fail(ErrorKind::data, "{}: not a folder; archives have to be unpacked first", path.string());
}

DataSplits load_path(const fs::path& path, const LoadOptions& options) {
  expect_folder(path);
  std::vector<std::string> looked_for;
  for (const Kind& kind : kinds) {
    if (const fs::path folder = locate(kind, path); !folder.empty()) return kind.load(folder, options);
    looked_for.emplace_back(kind.looked_for);
  }
  fail(ErrorKind::data, "{}: no data set there: looked for {}", path.string(), fmt::join(looked_for, ", "));
}

DataSplits load_synthetic(const std::string& seed_text, const LoadOptions& options) {
  std::uint64_t seed = 1;
  if (!seed_text.empty()) {
    const char* end = seed_text.data() + seed_text.size();
    const auto parsed = std::from_chars(seed_text.data(), end, seed);
    if (parsed.ec != std::errc{} || parsed.ptr != end)
      fail(ErrorKind::usage, "data set 'synth:{}': expected a whole number from 0 to 2^64 - 1 after 'synth:'", seed_text);
  }
  if (options.synthetic_train == 0 || options.synthetic_test == 0)
    fail(ErrorKind::usage, "data set 'synth': {} training and {} test images, expected at least one of each",
         options.synthetic_train, options.synthetic_test);
  const auto capped = [](std::size_t count, std::size_t most) { return most == 0 ? count : std::min(count, most); };
  return {make_synthetic(seed, capped(options.synthetic_train, options.max_train)),
          {},
          make_synthetic(seed, capped(options.synthetic_test, options.max_test), synthetic_test_first)};
}

DataSplits load_all(const std::string& spec, const LoadOptions& options) {
  const std::size_t colon = spec.find(':');
  const std::string name = spec.substr(0, colon);
  const std::string rest = colon == std::string::npos ? "" : spec.substr(colon + 1);
  if (name == "synth") {
    if (colon != std::string::npos && rest.empty()) fail(ErrorKind::usage, "data set 'synth:': expected a seed after 'synth:'");
    return load_synthetic(rest, options);
  }
  if (colon == std::string::npos) return load_path(spec, options);
  for (const Kind& kind : kinds) {
    if (name != kind.name) continue;
    expect_folder(rest);
    // If it is not recognised, the reader says best what is missing.
    const fs::path folder = locate(kind, rest);
    return kind.load(folder.empty() ? fs::path(rest) : folder, options);
  }
  if (fs::exists(spec)) return load_path(spec, options);
  std::vector<std::string> known{"synth"};
  for (const Kind& kind : kinds) known.emplace_back(kind.name);
  fail(ErrorKind::usage, "unknown kind of data set '{}' in '{}'{}", name, spec, did_you_mean(name, known));
}

// The folder of images that a spec means; "" where it means another kind.
fs::path image_folder_of(const std::string& spec) {
  constexpr std::string_view kind = "folder:";
  if (spec.starts_with(kind)) return spec.substr(kind.size());
  if (!fs::is_directory(spec)) return {};
  const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& each) { return !locate(each, spec).empty(); });
  return found != kinds.end() && found->load == &load_some_of_folder ? fs::path(spec) : fs::path();
}

}  // namespace

std::string note_on_unread(const std::string& spec) {
  const fs::path folder = image_folder_of(spec);
  if (folder.empty() || !holds_classes(folder / "train")) return "";
  for (const char* name : {"val", "valid", "validation"}) {
    if (!holds_classes(folder / name)) continue;
    if (fs::is_directory(folder / "test")) {
      return fmt::format("{}: the images in {}/ are not read; those for validation are taken out of train/", folder.string(),
                         name);
    }
    return fmt::format("{0}: the images in {1}/ are not read; a part of train/ is for tests, since there is no {0}/test",
                       folder.string(), name);
  }
  return "";
}

std::string note_on_drawn_tests(const std::string& spec) {
  const fs::path folder = image_folder_of(spec);
  if (folder.empty() || !trains_folder(folder) || (holds_classes(folder / "train") && fs::is_directory(folder / "test")))
    return "";
  return fmt::format(
      "{}: a part of its images, drawn at random, are those for tests; images in the classes' folders in "
      "a folder test are all measured",
      folder.string());
}

DataSplits load(const std::string& spec, const LoadOptions& options) {
  if (spec.empty()) fail(ErrorKind::usage, "no data set is named: expected 'synth', a folder, or KIND:FOLDER");
  if (!(options.folder_test_share > 0.0 && options.folder_test_share < 1.0))
    fail(ErrorKind::usage, "test share of a folder: {}, expected more than 0 and less than 1", options.folder_test_share);
  DataSplits splits;
  try {
    splits = load_all(spec, options);
  } catch (const fs::filesystem_error& error) {  // no permission to look, a device that fails
    fail(ErrorKind::data, "{}: {}", error.path1().string(), error.code().message());
  }
  if (splits.train.size() == 0) splits.train = without_images(splits.test);
  if (splits.train.class_names != splits.test.class_names || splits.train.shape != splits.test.shape)
    fail(ErrorKind::data, "{}: the training and the test set differ in image shape or classes", spec);
  if (options.max_train != 0) truncate(splits.train, options.max_train);
  if (options.max_test != 0) truncate(splits.test, options.max_test);
  splits.validation = split_validation(splits.train, options.validation, options.seed);
  return splits;
}

}  // namespace bitloom::data
