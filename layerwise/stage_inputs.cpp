#include "layerwise/stage_inputs.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/random.h"

namespace bitloom::layerwise {

StageInputs::StageInputs(const simd::Kernels& kernels, const Encoder& encoder, const std::vector<BinaryLayer>& layers,
                         const std::vector<std::size_t>& trained, const data::Dataset& train, const InputOptions& options,
                         std::uint64_t id)
    : encoder_(encoder),
      layers_(layers),
      train_(train),
      options_(options),
      id_(id),
      forward_(kernels, encoder, layers),
      frozen_(layers, trained),
      prefix_(needed_layers(layers, trained)) {
  for (const std::size_t index : trained) prefix_[index] = false;
}

StageInputs::Workspace StageInputs::make_workspace() const {
  return {forward_.make_workspace(prefix_),
          {},
          std::vector<std::uint8_t>(train_.shape.size()),
          std::vector<std::uint64_t>(1 + frozen_.words())};
}

std::size_t StageInputs::copies() const { return options_.augment.none() ? 1 : options_.copies; }

// Each copy once in copies() epochs, starting with another one in every image. The stage's id has no part in it, so that stages
// of other nets on the same frozen layers find the records that they need.
std::size_t StageInputs::copy_of(std::size_t image, std::size_t epoch) const {
  if (copies() <= 1) return 0;
  Random random(options_.seed, Stream::augment_copy, 0, image);
  return (random.below(static_cast<std::uint32_t>(copies())) + epoch) % copies();
}

// The copy that is shown or, where every epoch has its own, the epoch.
std::uint64_t StageInputs::form_of(std::size_t image, std::size_t epoch) const {
  return copies() == 0 ? epoch : copy_of(image, epoch);
}

Random StageInputs::random_of(std::size_t image, std::uint64_t form) const {
  constexpr std::uint64_t fixed = std::uint64_t{1} << 63U;  // apart from the keys of fresh augmentation
  return {options_.seed, Stream::augment, (copies() == 0 ? id_ << 32U : fixed) | form, image};
}

data::Shift StageInputs::shift_of(std::size_t image, std::size_t epoch) const {
  return data::drawn_shift(options_.augment, random_of(image, form_of(image, epoch)));
}

// Augments, encodes and runs the frozen layers.
void StageInputs::compute(std::size_t image, std::size_t epoch, Workspace& space, PhaseTimes& times) const {
  Clock::time_point clock = Clock::now();
  const std::uint64_t form = form_of(image, epoch);
  data::augment(train_.image(image, space.stored), train_.shape, options_.augment, random_of(image, form), space.image.data(),
                data::is_mirrored(options_.seed, image, form));
  lap(clock, times.data);
  forward_.encode(space.image.data(), space.work);
  lap(clock, times.encode);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (prefix_[i]) forward_.run_layer(i, space.work);
  }
  lap(clock, times.prefix);
}

void StageInputs::load(std::size_t image, std::size_t epoch, Workspace& space, PhaseTimes& times) const {
  if (file_ == nullptr) return compute(image, epoch, space, times);
  Clock::time_point clock = Clock::now();
  const std::uint64_t record = record_of(image, epoch);
  const bool found = file_->read(record, space.record);
  lap(clock, times.prefix);
  if (found) return;
  compute(image, epoch, space, times);
  clock = Clock::now();
  frozen_.pack(space.work, space.record.data() + 1);
  // An image that cannot be read would leave a record of none, in this run when it goes on, and in others.
  if (!train_.has_failed_read()) file_->write(record, space.record);
  lap(clock, times.prefix);
}

void StageInputs::gather(std::size_t i, const Workspace& space, std::uint64_t* target) const {
  if (file_ == nullptr) {
    forward_.gather_input(i, space.work, target);
  } else {
    frozen_.gather(i, space.record.data() + 1, space.work, target);
  }
}

void StageInputs::gather_trained(std::size_t i, const Workspace& space, std::uint64_t* target) const {
  frozen_.gather_trained(i, space.work, target);
}

Hash128 StageInputs::records_hash(const std::string& data_hash) const {
  Hasher hasher;
  hasher.update(std::string_view("bitloom inputs 1")).update(std::string_view(data_hash)).update(copies());
  hasher.update(std::string_view(data::to_string(options_.augment)));
  if (!options_.augment.none()) hasher.update(options_.seed);
  return hasher.update(std::string_view(frozen_.hash(encoder_).hex())).finish();
}

FrozenCosts StageInputs::measure(RecordFile& probe, bool from_device) const {
  Workspace space = make_workspace();
  const auto count = std::min<std::size_t>(probe.records(), train_.size());
  PhaseTimes ignored;
  compute(0, 0, space, ignored);  // caches and buffers settle
  std::vector<double> computed(count), written(count), read(count);
  for (std::size_t i = 0; i < count; ++i) {
    Clock::time_point clock = Clock::now();
    compute(i, 0, space, ignored);
    frozen_.pack(space.work, space.record.data() + 1);
    lap(clock, computed[i]);
    probe.write(i, space.record);
    lap(clock, written[i]);
  }
  if (from_device) probe.drop_from_memory();
  for (std::size_t i = 0; i < count; ++i) {
    Clock::time_point clock = Clock::now();
    if (!probe.read(i, space.record)) {
      fail(ErrorKind::io, "what was written for a test cannot be read: {}", std::strerror(probe.error()));
    }
    lap(clock, read[i]);
  }
  // Medians: a thread that loses its core for a moment loses more time than all records take.
  const auto median = [](std::vector<double>& values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
  };
  FrozenCosts costs;
  costs.compute_seconds = median(computed);
  costs.write_seconds = median(written);
  costs.read_seconds = median(read);
  return costs;
}

}  // namespace bitloom::layerwise
