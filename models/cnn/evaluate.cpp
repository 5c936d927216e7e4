#include "models/cnn/evaluate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/field.h"
#include "core/softmax.h"
#include "nn/floats.h"

namespace bitloom::models {
namespace {

constexpr std::size_t part_of_rank = 256;  // images that a process takes before the next one does

struct View {
  int moved = 0;  // pixels up and left
  float weight = 1;
};

std::vector<View> views_of(std::size_t shift) {
  if (shift == 0) return {{0, 1}};
  const int moved = static_cast<int>(shift);
  return {{0, 0.5F}, {moved, 0.25F}, {-moved, 0.25F}};
}

}  // namespace

CnnClassifier::CnnClassifier(nn::Engine& engine, Cnn& net, PixelScale scale, DType values, const CnnViews& views,
                             std::size_t at_once)
    : CnnClassifier(
          engine, net, std::move(scale), values, views, at_once,
          [this](const nn::Tensor& x) {
            nn::Pass pass{engine_};
            pass.training = false;
            return nn::to_floats(engine_, net_.layers->forward(pass, x));
          },
          false) {}

CnnClassifier::CnnClassifier(nn::Engine& engine, Cnn& net, PixelScale scale, DType values, const CnnViews& views,
                             std::size_t at_once, Predict predict)
    : CnnClassifier(engine, net, std::move(scale), values, views, at_once, std::move(predict), true) {}

CnnClassifier::CnnClassifier(nn::Engine& engine, Cnn& net, PixelScale scale, DType values, const CnnViews& views,
                             std::size_t at_once, Predict predict, bool together)
    : engine_(engine),
      net_(net),
      scale_(std::move(scale)),
      values_(values),
      views_(views),
      at_once_(at_once),
      predict_(std::move(predict)),
      together_(together) {
  if (at_once == 0) fail(ErrorKind::internal, "0 images at once");
  const std::size_t least = std::min(net.config.image.height, net.config.image.width);
  if (views.shift >= least) {
    fail_field(ErrorKind::usage, "shift", "{}; expected less than the {} pixels of an image", views.shift, least);
  }
}

std::vector<float> CnnClassifier::logits(std::span<const std::span<const std::uint8_t>> images) {
  std::vector<float> all;
  for (std::size_t first = 0; first < images.size(); first += at_once_) {
    const std::vector<float> some = logits_of_part(images.subspan(first, std::min(at_once_, images.size() - first)));
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::vector<float> CnnClassifier::logits_of_part(std::span<const std::span<const std::uint8_t>> images) {
  const data::ImageShape& shape = net_.config.image;
  std::vector<float> numbers(images.size() * shape.size());
  std::vector<std::uint8_t> moved(shape.size());
  std::vector<float> sums(images.size() * net_.config.classes);
  for (const View& view : views_of(views_.shift)) {
    for (const bool mirror : {false, true}) {
      if (mirror && !views_.mirror) continue;
      for (std::size_t i = 0; i < images.size(); ++i) {
        std::span<const std::uint8_t> image = images[i];
        if (view.moved != 0) {
          data::shift(image, shape, view.moved, view.moved, false, moved.data());
          image = moved;
        }
        to_numbers(image, shape, scale_, mirror, std::span(numbers).subspan(i * shape.size(), shape.size()));
      }
      const std::vector<float> some =
          predict_(nn::from_floats(engine_, numbers, net_.input(images.size()), values_, nn::Use::data));
      const float weight = view.weight / (views_.mirror ? 2.0F : 1.0F);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += weight * some[i];
    }
  }
  return sums;
}

layerwise::Evaluation CnnClassifier::evaluate(mpi::Comm& comm, const data::Dataset& set, const Watch& watch) {
  const Clock::time_point start = Clock::now();
  const std::size_t classes = net_.config.classes;
  layerwise::Evaluation result;
  const bool keeps_confusion = classes <= layerwise::Evaluation::most_confused_classes;
  if (keeps_confusion) result.confusion.assign(classes * classes, 0);
  std::vector<layerwise::Mistake> wrong;
  const std::size_t batches = (set.size() + part_of_rank - 1) / part_of_rank;
  // How many are right; losses in millionths, added as whole numbers: the same for any number of ranks.
  std::array<std::int64_t, 2> sums{};
  std::string diverged;  // said by all ranks: the others would wait for one that throws
  std::size_t done = 0;
  std::vector<std::vector<std::uint8_t>> rooms(part_of_rank);
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::size_t rounds = (batches + ranks - 1) / ranks;
  for (std::size_t round = 0; round < rounds; ++round) {
    const std::size_t b = round * ranks + static_cast<std::size_t>(comm.rank());
    if (b >= batches && !together_) break;
    const std::size_t first = std::min(b * part_of_rank, set.size());
    const std::size_t count = std::min(part_of_rank, set.size() - first);
    std::vector<std::span<const std::uint8_t>> images;
    for (std::size_t i = 0; i < count; ++i) images.push_back(set.image(first + i, rooms[i]));
    // Those that have fewer images pass the first one in the places of the others.
    for (std::size_t i = count; together_ && ranks > 1 && i < part_of_rank; ++i) images.push_back(set.image(0, rooms[i]));
    set.check_reads();
    const std::vector<float> all = logits(images);
    for (std::size_t i = 0; i < count; ++i) {
      const std::span<const float> row(all.data() + i * classes, classes);
      const std::size_t label = set.labels[first + i];
      const auto found = static_cast<std::size_t>(std::max_element(row.begin(), row.end()) - row.begin());
      if (keeps_confusion) ++result.confusion[label * classes + found];
      sums[0] += found == label ? 1 : 0;
      const std::optional<std::int64_t> loss = micro_nats(cross_entropy(row, label));
      if (!loss && diverged.empty()) {
        diverged = fmt::format("the net's loss of image {} of '{}' is infinite or beyond 1,000,000: its training has diverged",
                               first + i, set.name);
      }
      sums[1] += loss.value_or(0);
      if (found != label) wrong.push_back({first + i, found, static_cast<float>(std::exp(-cross_entropy(row, found)))});
    }
    done += count;
    if (watch && !watch(done)) fail(ErrorKind::interrupted, "the evaluation was stopped");
  }
  comm.check(diverged, ErrorKind::data);
  comm.sum(std::span(result.confusion));
  comm.sum(sums);
  result.mistakes = layerwise::surest_of_all(comm, std::move(wrong));
  result.correct = static_cast<std::size_t>(sums[0]);
  result.images = set.size();
  result.correct_plain = result.correct;
  result.loss = 1e-6 * static_cast<double>(sums[1]) / static_cast<double>(std::max<std::size_t>(1, set.size()));
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace bitloom::models
