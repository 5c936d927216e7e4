#include "train/parallel/gradient_buckets.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "mpi/float_collectives.h"

namespace bitloom::train {

GradientBuckets::GradientBuckets(nn::Engine& engine, mpi::Comm& comm, std::span<nn::Parameter* const> parameters,
                                 std::size_t bucket_bytes)
    : engine_(engine), comm_(comm) {
  std::vector<nn::Parameter*> together;
  std::size_t bytes = 0;
  for (std::size_t i = parameters.size(); i > 0; --i) {
    nn::Parameter* const parameter = parameters[i - 1];
    together.push_back(parameter);
    bytes += parameter->gradient.bytes();
    if (bytes < bucket_bytes) continue;
    add_bucket(std::exchange(together, {}));
    bytes = 0;
  }
  if (!together.empty()) add_bucket(std::move(together));
}

GradientBuckets::~GradientBuckets() = default;

void GradientBuckets::add_bucket(std::vector<nn::Parameter*> parameters) {
  Bucket bucket;
  const DType type = parameters.front()->gradient.dtype();
  std::size_t elements = 0;
  for (nn::Parameter* parameter : parameters) {
    elements += parameter->shape.size();
    parameter->gradient = {};
  }
  bucket.memory = engine_.zeros({elements}, type, nn::Use::gradients);
  std::size_t at = 0;
  for (nn::Parameter* parameter : parameters) {
    const std::size_t size = parameter->shape.size();
    parameter->gradient = bucket.memory.slice(at, at + size).reshaped(parameter->shape);
    at += size;
    bucket_of_[parameter] = buckets_.size();
  }
  bucket.parameters = std::move(parameters);
  buckets_.push_back(std::move(bucket));
}

void GradientBuckets::begin_step() {
  next_ = 0;
  for (Bucket& bucket : buckets_) {
    bucket.announced = 0;
    bucket.is_started = false;
  }
}

void GradientBuckets::announce(nn::Parameter& parameter) {
  if (parameter.is_frozen) return;
  const auto place = bucket_of_.find(&parameter);
  if (place == bucket_of_.end()) fail(ErrorKind::internal, "gradient of '{}', which is in no bucket", parameter.name);
  ++buckets_[place->second].announced;
  while (next_ < buckets_.size()) {
    Bucket& bucket = buckets_[next_];
    if (bucket.announced < bucket.parameters.size()) return;
    start(bucket);
    ++next_;
  }
}

void GradientBuckets::start(Bucket& bucket) {
  nn::settle_gradients(engine_, bucket.parameters);
  engine_.synchronize();
  bucket.is_started = true;
  if (bucket.memory.dtype() == DType::f64) {
    bucket.sum = mpi::start_sum(comm_, bucket.memory.as<double>());
  } else {
    bucket.sum = mpi::start_sum(comm_, bucket.memory.as<float>());
  }
}

void GradientBuckets::finish() {
  for (Bucket& bucket : buckets_) {
    if (!bucket.is_started) start(bucket);
  }
  for (Bucket& bucket : buckets_) bucket.sum.wait();
}

}  // namespace bitloom::train
