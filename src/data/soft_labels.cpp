#include "data/soft_labels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/hash.h"
#include "core/text.h"

namespace bitloom::data {
namespace {

constexpr const char* images_key = "bitloom.images_hash";
constexpr const char* step_key = "bitloom.soft_label_step";

}  // namespace

void quantise_probabilities(std::span<const float> probabilities, std::span<std::uint8_t> bytes) {
  std::vector<float> lost(probabilities.size());
  unsigned left = soft_label_sum;
  for (std::size_t l = 0; l < probabilities.size(); ++l) {
    const float scaled = probabilities[l] * static_cast<float>(soft_label_sum);
    if (!(scaled >= 0 && probabilities[l] <= 1)) {
      fail(ErrorKind::data, "a probability of {}; expected 0 to 1", probabilities[l]);
    }
    bytes[l] = static_cast<std::uint8_t>(scaled);
    lost[l] = scaled - static_cast<float>(bytes[l]);
    left -= std::min<unsigned>(left, bytes[l]);
  }
  std::vector<std::size_t> order(probabilities.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return lost[a] > lost[b]; });
  for (std::size_t i = 0; left > 0; i = (i + 1) % order.size(), --left) ++bytes[order[i]];
}

std::array<Shift, 9> label_shifts(int step) {
  std::array<Shift, 9> shifts;
  for (int i = 0; i < 9; ++i) shifts[static_cast<std::size_t>(i)] = {(i / 3 - 1) * step, (i % 3 - 1) * step};
  return shifts;
}

std::size_t labels_per_image(int step) { return step == 0 ? 1 : 9; }

std::span<const std::uint8_t> soft_label(const Dataset& dataset, std::size_t i, const Shift& shift) {
  const int step = dataset.soft_label_step;
  std::size_t place = i * labels_per_image(step);
  if (step != 0) {
    const auto nearest = [&](int moved) { return 2 * std::abs(moved) <= step ? 1 : moved < 0 ? 0 : 2; };
    place += static_cast<std::size_t>(3 * nearest(shift.down) + nearest(shift.across));
  }
  return std::span(dataset.soft_labels).subspan(place * dataset.classes(), dataset.classes());
}

std::string soft_labels_hash(const Dataset& dataset) {
  if (dataset.soft_labels.empty()) return "";
  const std::string hash = hash_bytes(std::as_bytes(std::span(dataset.soft_labels))).hex();
  return dataset.soft_label_step == 0 ? hash : fmt::format("{} {}", hash, dataset.soft_label_step);
}

namespace {

std::vector<std::size_t> shape_of(const Dataset& dataset, int step) {
  if (step == 0) return {dataset.size(), dataset.classes()};
  return {dataset.size(), labels_per_image(step), dataset.classes()};
}

}  // namespace

TensorFile soft_labels_file(const Dataset& dataset) {
  TensorFile file;
  file.metadata[images_key] = content_hash(dataset);
  if (dataset.soft_label_step != 0) file.metadata[step_key] = fmt::format("{}", dataset.soft_label_step);
  file.put(soft_labels_tensor, shape_of(dataset, dataset.soft_label_step), dataset.soft_labels);
  return file;
}

void take_soft_labels(const TensorFile& file, const std::string& name, Dataset& dataset) {
  int step = 0;
  if (const auto stored = file.metadata.find(step_key); stored != file.metadata.end()) {
    const auto number = parse_int(stored->second);
    const auto most = static_cast<std::int64_t>(std::min(dataset.shape.height, dataset.shape.width));
    if (!number || *number < 0 || *number >= most) {
      fail(ErrorKind::data, "{}: the metadata '{}' is '{}'; expected pixels, 0 to {}", name, step_key, stored->second,
           most - 1);
    }
    step = static_cast<int>(*number);
  }
  const auto bytes = file.get(soft_labels_tensor, DType::u8, shape_of(dataset, step)).as<std::uint8_t>();
  const auto hash = file.metadata.find(images_key);
  if (hash != file.metadata.end() && hash->second != content_hash(dataset)) {
    fail(ErrorKind::data, "{}: soft labels of other images than the {} of the training set", name, dataset.size());
  }
  const std::size_t each = labels_per_image(step);
  for (std::size_t i = 0; i < dataset.size() * each; ++i) {
    const auto row = bytes.subspan(i * dataset.classes(), dataset.classes());
    const unsigned sum = std::accumulate(row.begin(), row.end(), 0U);
    if (sum != soft_label_sum) {
      fail(ErrorKind::data, "{}: the soft labels of image {} sum up to {}; expected {}", name, i / each, sum, soft_label_sum);
    }
  }
  dataset.soft_labels.assign(bytes.begin(), bytes.end());
  dataset.soft_label_step = step;
}

}  // namespace bitloom::data
