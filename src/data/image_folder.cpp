// A folder of images: one sub-folder per class.
#include <algorithm>

#include "core/error.h"
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

}  // namespace

Dataset read_image_folder(const fs::path& folder, std::size_t height, std::size_t width, std::size_t channels,
                          const std::vector<std::string>& class_names) {
  if (!fs::is_directory(folder))
    fail(ErrorKind::data, "{}: no such folder (looked for one sub-folder of images per class)", folder.string());
  const std::vector<std::string> found =
      sorted_names(folder, [](const fs::directory_entry& entry) { return entry.is_directory(); });
  Dataset dataset{"folder", {height, width, channels}, class_names.empty() ? found : class_names, {}, {}};
  if (dataset.classes() > 65536)
    fail(ErrorKind::data, "{}: {} classes, at most 65536 work", folder.string(), dataset.classes());
  for (const std::string& name : found) {
    if (!is_utf8(name)) fail(ErrorKind::data, "{}: the class name '{}' is not UTF-8 text", folder.string(), name);
    const auto known = std::find(dataset.class_names.begin(), dataset.class_names.end(), name);
    if (known == dataset.class_names.end())
      fail(ErrorKind::data, "{}: class '{}' is not one of the {} expected classes", folder.string(), name, dataset.classes());
    const auto label = static_cast<std::uint16_t>(known - dataset.class_names.begin());
    const auto files = sorted_names(
        folder / name, [](const fs::directory_entry& entry) { return is_image_name(entry.path()) && entry.is_regular_file(); });
    if (files.empty()) fail(ErrorKind::data, "{}: no .png, .jpg or .jpeg file there", (folder / name).string());
    for (const std::string& file : files) {
      const Image image = resize(read_image(folder / name / file, channels), height, width);
      dataset.pixels.insert(dataset.pixels.end(), image.pixels.begin(), image.pixels.end());
      dataset.labels.push_back(label);
    }
  }
  if (dataset.size() == 0) fail(ErrorKind::data, "{}: no sub-folders with images in them", folder.string());
  return dataset;
}

}  // namespace bitloom::data
