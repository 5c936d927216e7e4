#include "train/local/group_steps.h"

#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "core/error.h"
#include "run/folder.h"

namespace bitloom::train {
void GroupSteps::run(const std::function<void(const SignOfLife&)>& f, const SignOfLife& alive) {
  try {
    run::on_root_for_long(trainer_.comm(), f, alive);
  } catch (const mpi::GroupError& error) {
    // All workers come to it by themselves.
    if (error.kind() == ErrorKind::interrupted) throw Error(error.kind(), error.what());
    throw;
  }
  if (trainer_.comm().size() > 1) share();
}

// Steps, and parameters where they were moved.
void GroupSteps::share() {
  mpi::Comm& comm = trainer_.comm();
  std::array<std::uint64_t, 2> told = {trainer_.steps(), local_ == nullptr ? 0 : local_->moves()};
  comm.broadcast(std::span<std::uint64_t>(told));
  trainer_.go_on_from(told[0]);
  if (told[1] == moves_) return;
  moves_ = told[1];
  nn::Engine& engine = trainer_.engine();
  const std::vector<nn::Parameter*>& parameters = trainer_.parameters();
  for (nn::Parameter* parameter : parameters) {
    std::vector<float> values(parameter->shape.size());
    if (local_ != nullptr) values = engine.to_host<float>(parameter->value);
    comm.broadcast(std::span<float>(values));
    if (local_ == nullptr) engine.write(parameter->value, std::as_bytes(std::span(values)));
  }
  if (local_ == nullptr) nn::refresh_copies(engine, parameters);
}

void GroupSteps::begin(std::size_t workers, const SignOfLife& alive) {
  run([&](const SignOfLife& sign) { local_->begin(workers, sign); }, alive);
}

nlohmann::json GroupSteps::after_step(std::uint64_t targets, const SignOfLife& alive) {
  nlohmann::json line;
  run([&](const SignOfLife& sign) { line = local_->after_step(targets, sign); }, alive);
  return line;
}

void GroupSteps::leave(const SignOfLife& alive) {
  run([&](const SignOfLife& sign) { local_->leave(sign); }, alive);
}

}  // namespace bitloom::train
