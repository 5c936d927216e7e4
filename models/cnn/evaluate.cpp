#include "models/cnn/evaluate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
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
  bool mirror = false;
  float weight = 1;
};

std::vector<View> views_of(const CnnViews& views) {
  const int moved = static_cast<int>(views.shift);
  std::vector<View> all{{0, false, 1}};
  if (moved != 0) all = {{0, false, 0.5F}, {moved, false, 0.25F}, {-moved, false, 0.25F}};
  if (!views.mirror) return all;
  std::vector<View> both;
  for (const View& view : all) {
    for (const bool mirror : {false, true}) both.push_back({view.moved, mirror, view.weight / 2});
  }
  return both;
}

// Images of a pass: of few that are left whole multiples of this, so that passes have few different sizes, for each of which
// kernels are made.
constexpr std::size_t left_images = 16;

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
  if (together && views.stop_early())
    fail(ErrorKind::internal, "views until an image is sure, of a net that processes have together");
  const std::size_t least = std::min(net.config.image.height, net.config.image.width);
  if (views.shift >= least) {
    fail_field(ErrorKind::usage, "shift", "{}; expected less than the {} pixels of an image", views.shift, least);
  }
}

std::vector<float> CnnClassifier::logits(std::span<const std::span<const std::uint8_t>> images,
                                         std::vector<std::size_t>* taken) {
  std::vector<float> all;
  std::vector<std::size_t> views(images.size());
  for (std::size_t first = 0; first < images.size(); first += at_once_) {
    const std::size_t count = std::min(at_once_, images.size() - first);
    const std::vector<float> some = logits_of_part(images.subspan(first, count), std::span(views).subspan(first, count));
    all.insert(all.end(), some.begin(), some.end());
  }
  if (taken != nullptr) *taken = std::move(views);
  return all;
}

std::vector<float> CnnClassifier::logits_of_part(std::span<const std::span<const std::uint8_t>> images,
                                                 std::span<std::size_t> taken) {
  const std::size_t classes = net_.config.classes;
  const double most_doubt = static_cast<double>(layerwise::most_doubt(views_));
  std::vector<float> means(images.size() * classes);  // sums, of images that are open
  std::vector<std::size_t> open(images.size());
  std::iota(open.begin(), open.end(), std::size_t{0});
  const std::vector<View> views = views_of(views_);
  float weight = 0;
  for (std::size_t v = 0; v < views.size() && !open.empty(); ++v) {
    const std::vector<float> some = logits_of_view(images, open, views[v].moved, views[v].mirror);
    weight += views[v].weight;
    const bool is_last = v + 1 == views.size();
    std::vector<std::size_t> left;
    for (std::size_t k = 0; k < open.size(); ++k) {
      const std::span<float> row(means.data() + open[k] * classes, classes);
      std::vector<float> mean(classes);
      for (std::size_t l = 0; l < classes; ++l) {
        row[l] += views[v].weight * some[k * classes + l];
        mean[l] = row[l] / weight;
      }
      const auto found = static_cast<std::size_t>(std::ranges::max_element(mean) - mean.begin());
      if (is_last || (views_.stop_early() && cross_entropy(mean, found) <= most_doubt)) {
        std::ranges::copy(mean, row.begin());
        taken[open[k]] = v + 1;
      } else {
        left.push_back(open[k]);
      }
    }
    open = std::move(left);
  }
  return means;
}

// Logits (open, classes) of a view of the images that are open.
std::vector<float> CnnClassifier::logits_of_view(std::span<const std::span<const std::uint8_t>> images,
                                                 std::span<const std::size_t> open, int moved, bool mirror) {
  const data::ImageShape& shape = net_.config.image;
  const std::size_t whole = (open.size() + left_images - 1) / left_images * left_images;
  const std::size_t count = std::min(whole, images.size());
  std::vector<float> numbers(count * shape.size());  // zeros where there is no image
  std::vector<std::uint8_t> room(shape.size());
  for (std::size_t i = 0; i < open.size(); ++i) {
    std::span<const std::uint8_t> image = images[open[i]];
    if (moved != 0) {
      data::shift(image, shape, moved, moved, false, room.data());
      image = room;
    }
    to_numbers(image, shape, scale_, mirror, std::span(numbers).subspan(i * shape.size(), shape.size()));
  }
  return predict_(nn::from_floats(engine_, numbers, net_.input(count), values_, nn::Use::data));
}

layerwise::Evaluation CnnClassifier::evaluate(mpi::Comm& comm, const data::Dataset& set, const Watch& watch) {
  const Clock::time_point start = Clock::now();
  const std::size_t classes = net_.config.classes;
  layerwise::Evaluation result;
  const bool keeps_confusion = classes <= layerwise::Evaluation::most_confused_classes;
  if (keeps_confusion) result.confusion.assign(classes * classes, 0);
  std::vector<layerwise::Mistake> wrong;
  const std::size_t batches = (set.size() + part_of_rank - 1) / part_of_rank;
  // How many are right; losses in millionths; views: added as whole numbers, the same for any number of ranks.
  std::array<std::int64_t, 3> sums{};
  std::string diverged;  // said by all ranks: the others would wait for one that throws
  std::size_t done = 0;
  std::vector<std::vector<std::uint8_t>> rooms(part_of_rank);
  std::vector<std::size_t> taken;
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
    const std::vector<float> all = logits(images, &taken);
    for (std::size_t i = 0; i < count; ++i) {
      sums[2] += static_cast<std::int64_t>(taken[i]);
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
  result.views = static_cast<double>(sums[2]) / static_cast<double>(std::max<std::size_t>(1, set.size()));
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace bitloom::models
