#include "models/dvae/task.h"

#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "models/dvae/pixels.h"
#include "nn/floats.h"
#include "optim/schedule.h"

namespace bitloom::models {

double DvaeSchedule::temperature_at(std::uint64_t step) const {
  return cosine_between(first_temperature, temperature, step, temperature_steps);
}

double DvaeSchedule::kl_weight_at(std::uint64_t step) const { return cosine_between(0, kl_weight, step, kl_steps); }

DvaeCourse DvaeSchedule::course() const {
  return {[schedule = *this](std::uint64_t step) { return schedule.temperature_at(step); },
          [schedule = *this](std::uint64_t step) { return schedule.kl_weight_at(step); }};
}

void check(const DvaeSchedule& schedule) {
  const auto positive = [](const char* field, double value) {
    if (!(value > 0) || !std::isfinite(value)) fail_field(ErrorKind::usage, field, "{}; expected more than 0", value);
  };
  positive("temperature", schedule.temperature);
  positive("learning_rate", schedule.rate);
  if (!(schedule.kl_weight >= 0) || !std::isfinite(schedule.kl_weight)) {
    fail_field(ErrorKind::usage, "kl_weight", "{}; expected 0 or more", schedule.kl_weight);
  }
  if (!(schedule.last_rate >= 0 && schedule.last_rate <= schedule.rate)) {
    fail_field(ErrorKind::usage, "last_rate", "{}; expected 0 to the learning rate, {}", schedule.last_rate, schedule.rate);
  }
}

DvaeTask::DvaeTask(nn::Engine& engine, Dvae& net, DType values, std::size_t images, double least_log_b, Source source)
    : engine_(engine), net_(net), values_(values), images_(images), least_log_b_(least_log_b), source_(std::move(source)) {}

std::vector<float> DvaeTask::fetch(const nn::Pass& pass) const {
  const std::vector<std::uint8_t> pixels = source_(pass.step, pass.micro_batch);
  if (pixels.size() != images_ * net_.config.values()) {
    fail(ErrorKind::internal, "dvae: a micro-batch of {} bytes; expected {} images of {}", pixels.size(), images_,
         net_.config.values());
  }
  std::vector<float> numbers(pixels.size());
  to_unit_interval(pixels, numbers);
  return numbers;
}

nn::Tensor DvaeTask::input(nn::Pass& pass) {
  std::vector<float> pixels = fetch(pass);
  nn::Tensor x = nn::from_floats(engine_, pixels, net_.input(images_), values_, nn::Use::data);
  pixels_.put(pass, std::move(pixels));
  return x;
}

train::PartLoss DvaeTask::loss(nn::Pass& pass, nn::Tensor maps, double scale, nn::Tensor* dy) {
  std::optional<std::vector<float>> pixels = pixels_.take(pass);
  if (!pixels) pixels = fetch(pass);
  const DType type = nn::parameter_type(values_);
  const nn::Tensor targets = nn::from_floats(engine_, *pixels, net_.input(images_), type, nn::Use::data);
  nn::Tensor losses = engine_.empty({maps.shape().rows()}, type, nn::Use::activations);
  const double share = 1 / static_cast<double>(net_.config.values());
  // The gradient takes the place of the maps, which nobody needs any more.
  nn::logit_laplace(engine_, {least_log_b_}, maps, targets, scale * share, losses, dy == nullptr ? nullptr : &maps);
  nn::scale_add(engine_, share, losses, 0, losses);
  if (dy != nullptr) *dy = std::move(maps);
  return {losses, images_};
}

}  // namespace bitloom::models
