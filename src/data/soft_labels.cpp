#include "data/soft_labels.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/error.h"

namespace bitloom::data {
namespace {

constexpr const char* images_key = "bitloom.images_hash";

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

TensorFile soft_labels_file(const Dataset& dataset) {
  TensorFile file;
  file.metadata[images_key] = content_hash(dataset);
  file.put(soft_labels_tensor, {dataset.size(), dataset.classes()}, dataset.soft_labels);
  return file;
}

void take_soft_labels(const TensorFile& file, const std::string& name, Dataset& dataset) {
  const auto bytes = file.get(soft_labels_tensor, DType::u8, {dataset.size(), dataset.classes()}).as<std::uint8_t>();
  const auto hash = file.metadata.find(images_key);
  if (hash != file.metadata.end() && hash->second != content_hash(dataset)) {
    fail(ErrorKind::data, "{}: soft labels of other images than the {} of the training set", name, dataset.size());
  }
  for (std::size_t i = 0; i < dataset.size(); ++i) {
    const auto row = bytes.subspan(i * dataset.classes(), dataset.classes());
    const unsigned sum = std::accumulate(row.begin(), row.end(), 0U);
    if (sum != soft_label_sum) {
      fail(ErrorKind::data, "{}: the soft labels of image {} sum up to {}; expected {}", name, i, sum, soft_label_sum);
    }
  }
  dataset.soft_labels.assign(bytes.begin(), bytes.end());
}

}  // namespace bitloom::data
