// A folder of images: one sub-folder per class.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <numeric>

#include "core/error.h"
#include "core/hash.h"
#include "core/text.h"
#include "data/readers.h"

namespace bitloom::data {
namespace {

namespace fs = std::filesystem;

// Names in a folder, in byte order, that are not hidden and satisfy `wanted`.
template <typename Wanted>
std::vector<std::string> sorted_names(const fs::path& folder, Wanted wanted) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.front() != '.' && wanted(*at)) names.push_back(name);
  }
  if (error) fail(ErrorKind::data, "{}: the folder cannot be read: {}", folder.string(), error.message());
  std::sort(names.begin(), names.end());
  return names;
}

// The pictures of a folder, class by class. Names only: they are what stays in memory, some hundred bytes each.
struct Listing {
  std::vector<std::string> files;
  std::vector<std::uint16_t> labels;

  fs::path path(const fs::path& folder, const Dataset& dataset, std::size_t i) const {
    return folder / dataset.class_names[labels[i]] / files[i];
  }
};

Listing list_images(const fs::path& folder, const std::vector<std::string>& found, const Dataset& dataset) {
  Listing listing;
  std::error_code none;  // a link that leads nowhere is no picture
  for (const std::string& name : found) {
    if (!is_utf8(name)) fail(ErrorKind::data, "{}: the class name '{}' is not UTF-8 text", folder.string(), name);
    if (name.find_first_of("\n\t") != std::string::npos || printable(name) != name) {
      fail(ErrorKind::data, "{}: the class name '{}' has control characters, such as an end of line", folder.string(), name);
    }
    const auto known = std::find(dataset.class_names.begin(), dataset.class_names.end(), name);
    if (known == dataset.class_names.end())
      fail(ErrorKind::data, "{}: class '{}' is not one of the {} expected classes", folder.string(), name, dataset.classes());
    const auto label = static_cast<std::uint16_t>(known - dataset.class_names.begin());
    auto files = sorted_names(folder / name, [&](const fs::directory_entry& entry) {
      return is_image_name(entry.path()) && entry.is_regular_file(none);
    });
    if (files.empty()) fail(ErrorKind::data, "{}: no .png, .jpg or .jpeg file there", (folder / name).string());
    listing.labels.insert(listing.labels.end(), files.size(), label);
    std::move(files.begin(), files.end(), std::back_inserter(listing.files));
  }
  return listing;
}

// Everything that the pixels depend on: a picture that changes has another size or time.
Hash128 key_of(const fs::path& folder, const Dataset& dataset, const Listing& listing) {
  Hasher hasher;
  hasher.update(std::string_view("bitloom pixels 4"));
  hasher.update(dataset.shape.height).update(dataset.shape.width).update(dataset.shape.channels);
  for (std::size_t i = 0; i < listing.files.size(); ++i) {
    const fs::path path = listing.path(folder, dataset, i);
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) fail(ErrorKind::data, "{}: {}", path.string(), std::strerror(errno));
    hasher.update(std::string_view(dataset.class_names[listing.labels[i]])).update(std::string_view(listing.files[i]));
    hasher.update(status.st_size).update(status.st_mtim.tv_sec).update(status.st_mtim.tv_nsec);
  }
  return hasher.finish();
}

}  // namespace

Dataset read_image_folder(const fs::path& folder, const ImageShape& shape, const FolderMemory& memory,
                          const std::vector<std::string>& class_names) {
  if (!fs::is_directory(folder))
    fail(ErrorKind::data, "{}: no such folder (looked for one sub-folder of images per class)", folder.string());
  std::error_code none;
  const std::vector<std::string> found =
      sorted_names(folder, [&](const fs::directory_entry& entry) { return entry.is_directory(none); });
  Dataset dataset{"folder", shape, class_names.empty() ? found : class_names, {}, {}};
  if (dataset.classes() > 65536)
    fail(ErrorKind::data, "{}: {} classes, at most 65536 work", folder.string(), dataset.classes());
  Listing listing = list_images(folder, found, dataset);
  const std::size_t images = listing.labels.size();
  if (images == 0) fail(ErrorKind::data, "{}: no sub-folders with images in them", folder.string());
  const DecodeImage decode = [&](std::size_t i, std::span<std::uint8_t> out) {
    const Image image = fit(read_image(listing.path(folder, dataset, i), shape.channels), shape.height, shape.width);
    std::copy(image.pixels.begin(), image.pixels.end(), out.begin());
  };
  if (memory.store_folder.empty() || std::uint64_t{images} * shape.size() <= memory.limit) {
    dataset.pixels.resize(images * shape.size());
    for_all_images(images,
                   [&](std::size_t i) { decode(i, std::span(dataset.pixels).subspan(i * shape.size(), shape.size())); });
  } else {
    dataset.store = PixelStore::open(memory.store_folder, memory.store_limit, key_of(folder, dataset, listing), images,
                                     shape.size(), decode);
    dataset.places.resize(images);
    std::iota(dataset.places.begin(), dataset.places.end(), 0U);
  }
  dataset.labels = std::move(listing.labels);
  return dataset;
}

}  // namespace bitloom::data
