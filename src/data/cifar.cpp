// The binary versions of CIFAR-10 and CIFAR-100: records of one or two label bytes and 3 x 32 x 32 pixel bytes.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "data/readers.h"

namespace bitloom::data {
namespace {

namespace fs = std::filesystem;

constexpr ImageShape cifar_shape{32, 32, 3};
constexpr std::size_t train_batches = 5;

// Layout of one of the two formats.
struct CifarFormat {
  const char* name;
  std::size_t label_bytes;  // per record
  std::size_t label_at;     // place of the class among them
  std::size_t classes;      // if there is no file of names
  const char* names_file;   // one class name per line
  std::size_t record_bytes() const { return label_bytes + cifar_shape.size(); }
};

constexpr CifarFormat cifar10{"cifar10", 1, 0, 10, "batches.meta.txt"};
constexpr CifarFormat cifar100{"cifar100", 2, 1, 100, "fine_label_names.txt"};

// 3000001 -> "3,000,001".
std::string grouped(std::size_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
  return text;
}

std::string batch_name(std::size_t number) { return "data_batch_" + std::to_string(number) + ".bin"; }

std::vector<std::string> read_class_names(const fs::path& folder, const CifarFormat& format,
                                          const std::vector<std::string>& otherwise) {
  std::vector<std::string> names;
  const fs::path path = folder / format.names_file;
  if (!fs::exists(path)) {
    if (otherwise.size() == format.classes) return otherwise;
    for (std::size_t i = 0; i < format.classes; ++i) names.push_back(std::to_string(i));
    return names;
  }
  for (const std::string& line : split(read_text(path), '\n')) {
    if (!line.empty()) names.push_back(line);
  }
  for (const std::string& name : names) {
    if (!is_utf8(name)) fail(ErrorKind::data, "{}: the class name '{}' is not UTF-8 text", path.string(), name);
  }
  std::vector<std::string> sorted = names;
  std::ranges::sort(sorted);
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end())
    fail(ErrorKind::data, "{}: two classes are named '{}'", path.string(), *twice);
  if (names.empty() || names.size() > 256)
    fail(ErrorKind::data, "{}: {} class names, expected 1 to 256, one per line", path.string(), names.size());
  return names;
}

// Other pictures may come in CIFAR-10's format: with classes of their own they have the name of their folder.
std::string name_of(const fs::path& folder, const CifarFormat& format, const std::vector<std::string>& classes) {
  static const std::vector<std::string> of_cifar10{"airplane", "automobile", "bird",  "cat",  "deer",
                                                   "dog",      "frog",       "horse", "ship", "truck"};
  if (format.names_file != cifar10.names_file || !fs::exists(folder / format.names_file) || classes == of_cifar10) {
    return format.name;
  }
  const fs::path path = fs::absolute(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

// Appends the records of one file.
void append_records(const fs::path& path, const CifarFormat& format, Dataset& dataset) {
  const FileMapping file(path);
  const std::size_t record = format.record_bytes();
  if (file.size() == 0)
    fail(ErrorKind::data, "{}: the file is empty, expected {}-byte records", path.string(), grouped(record));
  if (file.size() % record != 0)
    fail(ErrorKind::data, "{}: {} bytes is not a whole number of {}-byte records", path.string(), grouped(file.size()),
         grouped(record));
  const std::size_t count = file.size() / record;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(file.bytes().data());
  for (std::size_t i = 0; i < count; ++i, bytes += record) {
    const std::uint8_t label = bytes[format.label_at];
    if (label >= dataset.classes())
      fail(ErrorKind::data, "{}: record {} of {} has label {}, expected 0 to {} ({} classes)", path.string(), i + 1, count,
           label, dataset.classes() - 1, dataset.classes());
    dataset.labels.push_back(label);
    const std::uint8_t* image = bytes + format.label_bytes;
    dataset.pixels.insert(dataset.pixels.end(), image, image + cifar_shape.size());
  }
}

Dataset read_files(const fs::path& folder, const CifarFormat& format, const std::vector<std::string>& files,
                   const std::vector<std::string>& class_names) {
  if (!fs::is_directory(folder))
    fail(ErrorKind::data, "{}: no such folder (looked for {} there)", folder.string(), files.front());
  std::size_t records = 0;
  std::size_t least = ~std::size_t{0};
  std::size_t most = 0;
  for (const std::string& file : files) {
    std::error_code error;
    const std::uintmax_t size = fs::file_size(folder / file, error);
    if (error) {
      fail(ErrorKind::data, "{}: {} is missing or not a file: {} data set needs {}", folder.string(), file, format.name,
           fmt::join(files, ", "));
    }
    const std::size_t here = size / format.record_bytes();
    records += here;
    least = std::min(least, here);
    most = std::max(most, here);
  }
  std::vector<std::string> classes = read_class_names(folder, format, class_names);
  std::string name = name_of(folder, format, classes);
  Dataset dataset{std::move(name), cifar_shape, std::move(classes), {}, {}};
  dataset.pixels.reserve(records * cifar_shape.size());
  dataset.labels.reserve(records);
  for (const std::string& file : files) append_records(folder / file, format, dataset);
  if (most - least > 1) {
    fail(ErrorKind::data, "{}: {} hold {} to {} records, expected the same number each: one is cut off or too long",
         folder.string(), fmt::join(files, ", "), least, most);
  }
  return dataset;
}

// Records `begin` .. `end` - 1 as the bytes of a CIFAR-10 file.
std::string encode_records(const Dataset& dataset, std::size_t begin, std::size_t end) {
  std::string bytes;
  bytes.reserve((end - begin) * cifar10.record_bytes());
  for (std::size_t i = begin; i < end; ++i) {
    bytes.push_back(static_cast<char>(dataset.labels[i]));
    const auto image = dataset.image(i);
    bytes.append(reinterpret_cast<const char*>(image.data()), image.size());
  }
  return bytes;
}

}  // namespace

Dataset read_cifar10(const fs::path& folder, bool train, const std::vector<std::string>& class_names) {
  std::vector<std::string> files;
  for (std::size_t batch = 1; train && batch <= train_batches; ++batch) files.push_back(batch_name(batch));
  if (!train) files.emplace_back("test_batch.bin");
  return read_files(folder, cifar10, files, class_names);
}

std::vector<std::string> cifar10_files() {
  std::vector<std::string> files{"test_batch.bin", cifar10.names_file};
  for (std::size_t batch = 1; batch <= train_batches; ++batch) files.push_back(batch_name(batch));
  return files;
}

Dataset read_cifar100(const fs::path& folder, bool train, const std::vector<std::string>& class_names) {
  return read_files(folder, cifar100, {train ? "train.bin" : "test.bin"}, class_names);
}

void write_cifar10(const Dataset& train, const Dataset& test, const fs::path& folder) {
  for (const Dataset* part : {&train, &test}) {
    if (part->size() == 0) continue;
    if (part->shape != cifar_shape)
      fail(ErrorKind::usage, "CIFAR-10 files hold 3 x 32 x 32 images, but {} has {} x {} x {}", part->name,
           part->shape.channels, part->shape.height, part->shape.width);
    if (part->classes() == 0 || part->classes() > 256)
      fail(ErrorKind::usage, "CIFAR-10 files hold 1 to 256 classes, but {} has {}", part->name, part->classes());
  }
  if (train.size() < train_batches)
    fail(ErrorKind::usage, "{} training images cannot fill {} CIFAR-10 files", train.size(), train_batches);
  if (test.size() != 0 && test.class_names != train.class_names)
    fail(ErrorKind::usage, "the training and the test set must have the same class names to share one {}", cifar10.names_file);

  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorKind::io, "{}: the folder cannot be made: {}", folder.string(), error.message());
  for (std::size_t batch = 0; batch < train_batches; ++batch) {
    const std::size_t begin = train.size() * batch / train_batches;
    const std::size_t end = train.size() * (batch + 1) / train_batches;
    write_atomically(folder / batch_name(batch + 1), encode_records(train, begin, end));
  }
  if (test.size() != 0) write_atomically(folder / "test_batch.bin", encode_records(test, 0, test.size()));
  std::string names;
  for (const std::string& name : train.class_names) names += name + "\n";
  write_atomically(folder / cifar10.names_file, names);
}

}  // namespace bitloom::data
