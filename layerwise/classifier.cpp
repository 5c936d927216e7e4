// The vote of a net's heads on images, and its accuracy on a set.
#include <omp.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>

#include "core/clock.h"
#include "core/error.h"
#include "core/field.h"
#include "core/softmax.h"
#include "data/augment.h"
#include "layerwise/model.h"

namespace bitloom::layerwise {
namespace {

constexpr std::size_t first_images = 16;  // images of each rank, until it is known how long one takes
constexpr double slice_seconds = 1;

// Collective: calls each(begin, end, done) for this rank's share of one slice of the `count` images after the other; `done`
// tells the watch that the rank is at work. All ranks meet after each slice, so that one that hangs shows soon, and none waits
// long for a slower one.
template <typename F>
void in_slices(mpi::Comm& comm, std::size_t count, const EvaluationWatch& watch, F&& each) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto rank = static_cast<std::size_t>(comm.rank());
  const std::size_t smallest = first_images * ranks;
  std::size_t slice = smallest;
  for (std::size_t begin = 0; begin < count;) {
    const std::size_t size = std::min(slice, count - begin);
    const Clock::time_point start = Clock::now();
    const auto first = static_cast<std::ptrdiff_t>(begin + rank * size / ranks);
    const auto last = static_cast<std::ptrdiff_t>(begin + (rank + 1) * size / ranks);
    each(first, last, [&] {
      if (watch.alive && omp_get_thread_num() == 0) watch.alive(begin);
    });
    begin += size;
    // The slowest rank says how many images a slice has.
    std::array<std::int64_t, 2> all = {static_cast<std::int64_t>(1e6 * seconds_since(start)),
                                       watch.stop && watch.stop() ? 1 : 0};
    comm.max(all);
    if (watch.alive) watch.alive(begin);
    if (all[1] != 0 && begin < count) {
      fail(ErrorKind::interrupted, "interrupted after the evaluation of {} of {} images", begin, count);
    }
    const double wanted =
        static_cast<double>(size) * slice_seconds * 1e6 / static_cast<double>(std::max<std::int64_t>(all[0], 1));
    slice = wanted > static_cast<double>(count) ? count : std::max(smallest, static_cast<std::size_t>(wanted));
  }
}

// The class with the largest score.
std::size_t largest(const std::vector<float>& scores) {
  return static_cast<std::size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

void keep_surest(std::vector<Mistake>& mistakes) {
  std::erase_if(mistakes, [](const Mistake& each) { return !std::isfinite(each.probability); });
  std::ranges::sort(mistakes, [](const Mistake& a, const Mistake& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.image < b.image;
  });
  mistakes.resize(std::min(mistakes.size(), Evaluation::most_mistakes));
}

}  // namespace

void check_views(const Views& views, const data::ImageShape& shape, std::string_view named) {
  if (views.shift >= std::min(shape.height, shape.width)) {
    fail(ErrorKind::usage, "{}: {} pixels; expected less than the images have, {} x {}", named, views.shift, shape.height,
         shape.width);
  }
}

float most_doubt(const Views& views) { return -log_fixed(static_cast<float>(views.sure)); }

Classifier::Classifier(const simd::Kernels& kernels, const Encoder& encoder, const std::vector<BinaryLayer>& layers,
                       std::vector<const Head*> heads, std::vector<std::size_t> head_layers, const Views& views)
    : kernels_(kernels),
      encoder_(encoder),
      layers_(layers),
      forward_(kernels, encoder, layers),
      heads_(std::move(heads)),
      head_layers_(std::move(head_layers)),
      needed_(needed_layers(layers, head_layers_)),
      views_(views) {
  check_views(views, encoder.image_shape());
}

Classifier Classifier::of(const simd::Kernels& kernels, const Model& model) {
  return of(kernels, model, model.net.classifier, model.net.views);
}

Classifier Classifier::of(const simd::Kernels& kernels, const Model& model, const std::vector<std::string>& members,
                          const Views& views) {
  std::vector<const Head*> heads;
  std::vector<std::size_t> head_layers;
  for (const std::string& name : members) {
    model.net.layer(name);
    const auto found = model.heads.find(name);
    if (found == model.heads.end()) fail_field(ErrorKind::usage, "layers", "layer '{}' has no head in this model", name);
    heads.push_back(&found->second);
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
      if (model.net.layers[i].name == name) head_layers.push_back(i);
    }
  }
  return Classifier(kernels, model.encoder, model.layers, std::move(heads), std::move(head_layers), views);
}

void Classifier::run_layers(ForwardWorkspace& work) const {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (needed_[i]) forward_.run_layer(i, work);
  }
}

void Classifier::head_logits(std::size_t h, const ForwardWorkspace& work, std::vector<std::int16_t>& counts,
                             std::vector<float>& logits) const {
  counts.resize(heads_[h]->features());
  heads_[h]->count(kernels_, work.maps[head_layers_[h] + 1], counts.data());
  heads_[h]->predict(kernels_, counts.data(), 1, logits.data());
}

// Whether the mean of the votes that are in `sums` names a class surely enough for no more views.
bool Classifier::is_sure(const std::vector<float>& sums, std::size_t votes) const {
  std::vector<float> means(sums);
  for (float& each : means) each /= static_cast<float>(votes);
  return cross_entropy(means, largest(means)) <= static_cast<double>(most_doubt(views_));
}

std::size_t Classifier::scores(const std::uint8_t* image, ForwardWorkspace& work, std::vector<float>& out,
                               std::size_t* plain_label) const {
  const std::size_t classes = heads_.front()->classes();
  out.assign(classes, 0.0F);
  std::vector<std::uint8_t> moved(encoder_.image_shape().size());
  std::vector<float> logits(classes);
  std::vector<std::int16_t> counts;
  const auto far = static_cast<int>(views_.shift);
  const std::array<std::array<int, 2>, 5> shifts = {{{0, 0}, {far, 0}, {-far, 0}, {0, far}, {0, -far}}};
  std::array<std::vector<std::uint64_t>, 2> unmoved;  // bits of the image and of its mirror image, from which moved ones follow
  std::size_t view = 0;
  for (bool sure = false; view < views_.count() && !sure; ++view) {
    const bool flip = views_.mirror && view % 2 == 1;
    const auto [down, across] = shifts[views_.mirror ? view / 2 : view];
    const std::uint8_t* seen = image;
    if (flip || down != 0 || across != 0) {
      data::shift({image, moved.size()}, encoder_.image_shape(), down, across, flip, moved.data());
      seen = moved.data();
    }
    if (down == 0 && across == 0) {
      forward_.encode(seen, work);
      if (far != 0) unmoved[flip ? 1 : 0].assign(work.maps[0], work.maps[0] + encoder_.output().size());
    } else {
      forward_.encode_moved(seen, unmoved[flip ? 1 : 0].data(), down, flip ? -across : across, work);
    }
    run_layers(work);
    for (std::size_t h = 0; h < heads_.size(); ++h) {
      head_logits(h, work, counts, logits);
      subtract_cross_entropies(logits, out);
    }
    if (view == 0 && plain_label != nullptr) *plain_label = largest(out);  // no view is moved before the first
    sure = views_.stop_early() && is_sure(out, (view + 1) * heads_.size());
  }
  const auto votes = static_cast<float>(view * heads_.size());
  for (float& score : out) score /= votes;
  return view;
}

std::vector<double> Classifier::head_accuracies(mpi::Comm& comm, const data::Dataset& dataset,
                                                const EvaluationWatch& watch) const {
  std::vector<std::int64_t> correct(heads_.size(), 0);
  in_slices(comm, dataset.size(), watch, [&](std::ptrdiff_t begin, std::ptrdiff_t end, const auto& done) {
#pragma omp parallel
    {
      ForwardWorkspace work = make_workspace();
      std::vector<std::uint8_t> room;
      std::vector<float> logits(heads_.front()->classes());
      std::vector<std::int16_t> counts;
      std::vector<std::int64_t> mine(heads_.size(), 0);
#pragma omp for schedule(dynamic, 4)
      for (std::ptrdiff_t i = begin; i < end; ++i) {
        const auto k = static_cast<std::size_t>(i);
        forward_.encode(dataset.image(k, room).data(), work);
        run_layers(work);
        for (std::size_t h = 0; h < heads_.size(); ++h) {
          head_logits(h, work, counts, logits);
          mine[h] += std::max_element(logits.begin(), logits.end()) - logits.begin() == dataset.labels[k] ? 1 : 0;
        }
        done();
      }
#pragma omp critical
      for (std::size_t h = 0; h < correct.size(); ++h) correct[h] += mine[h];
    }
    dataset.check_reads();
  });
  comm.sum(std::span(correct));
  std::vector<double> accuracies;
  for (const std::int64_t count : correct)
    accuracies.push_back(static_cast<double>(count) / static_cast<double>(dataset.size()));
  return accuracies;
}

std::vector<Mistake> surest_of_all(mpi::Comm& comm, std::vector<Mistake> own) {
  constexpr std::size_t values = 4;  // of a mistake: whether there is one, and what it is
  keep_surest(own);
  const auto rank = static_cast<std::size_t>(comm.rank());
  // Every rank puts its own at its place among those of all.
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()) * Evaluation::most_mistakes * values, 0);
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::int64_t* const to = all.data() + (rank * Evaluation::most_mistakes + i) * values;
    to[0] = 1;
    to[1] = static_cast<std::int64_t>(own[i].image);
    to[2] = static_cast<std::int64_t>(own[i].label);
    to[3] = std::bit_cast<std::int32_t>(own[i].probability);
  }
  comm.sum(std::span(all));
  std::vector<Mistake> mistakes;
  for (std::size_t k = 0; k < all.size(); k += values) {
    if (all[k] == 0) continue;
    mistakes.push_back({static_cast<std::size_t>(all[k + 1]), static_cast<std::size_t>(all[k + 2]),
                        std::bit_cast<float>(static_cast<std::int32_t>(all[k + 3]))});
  }
  keep_surest(mistakes);
  return mistakes;
}

Evaluation Classifier::evaluate(mpi::Comm& comm, const data::Dataset& dataset, const EvaluationWatch& watch) const {
  const Clock::time_point start = Clock::now();
  const std::size_t classes = heads_.front()->classes();
  const bool keeps_confusion = classes <= Evaluation::most_confused_classes;
  // Integers only cross images: how many are right, by the vote and as they are, how many have a loss that is not a number that
  // can be summed, millionths of a nat, views, then the (classes, classes) counts.
  enum : std::size_t { correct, plain, endless, loss_sum, views, counters };
  std::vector<std::int64_t> sums(counters + (keeps_confusion ? classes * classes : 0), 0);
  std::vector<Mistake> mistakes;  // this rank's
  in_slices(comm, dataset.size(), watch, [&](std::ptrdiff_t begin, std::ptrdiff_t end, const auto& done) {
    std::vector<std::size_t> votes(static_cast<std::size_t>(end - begin));
#pragma omp parallel
    {
      ForwardWorkspace work = make_workspace();
      std::vector<std::uint8_t> room;
      std::vector<float> out;
      std::array<std::int64_t, counters> mine{};
      std::vector<Mistake> wrong;
#pragma omp for schedule(dynamic, 4)
      for (std::ptrdiff_t i = begin; i < end; ++i) {
        const auto k = static_cast<std::size_t>(i);
        std::size_t plain_label = 0;
        mine[views] += static_cast<std::int64_t>(scores(dataset.image(k, room).data(), work, out, &plain_label));
        const std::size_t label = dataset.labels[k];
        const std::size_t found = largest(out);
        votes[static_cast<std::size_t>(i - begin)] = found;
        mine[correct] += found == label ? 1 : 0;
        mine[plain] += plain_label == label ? 1 : 0;
        const std::optional<std::int64_t> loss = micro_nats(cross_entropy(out, label));
        mine[endless] += loss ? 0 : 1;
        mine[loss_sum] += loss.value_or(0);
        if (found != label) {
          softmax(out, out);
          wrong.push_back({k, found, out[found]});
        }
        done();
      }
#pragma omp critical
      {
        for (std::size_t k = 0; k < mine.size(); ++k) sums[k] += mine[k];
        mistakes.insert(mistakes.end(), wrong.begin(), wrong.end());
      }
    }
    for (std::size_t i = 0; keeps_confusion && i < votes.size(); ++i) {
      const std::size_t label = dataset.labels[static_cast<std::size_t>(begin) + i];
      ++sums[counters + label * classes + votes[i]];
    }
    dataset.check_reads();
  });
  comm.sum(std::span(sums));
  Evaluation result;
  result.mistakes = surest_of_all(comm, std::move(mistakes));
  result.images = dataset.size();
  result.loss = 1e-6 * static_cast<double>(sums[loss_sum]) / static_cast<double>(std::max<std::size_t>(dataset.size(), 1));
  if (sums[endless] != 0) result.loss = std::nan("");
  result.views = static_cast<double>(sums[views]) / static_cast<double>(std::max<std::size_t>(dataset.size(), 1));
  result.correct = static_cast<std::size_t>(sums[correct]);
  result.correct_plain = static_cast<std::size_t>(sums[plain]);
  result.confusion.assign(sums.begin() + static_cast<std::ptrdiff_t>(counters), sums.end());
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace bitloom::layerwise
