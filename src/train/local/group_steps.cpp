#include "train/local/group_steps.h"

#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "core/clock.h"
#include "core/error.h"

namespace bitloom::train {
namespace {

// Between the signs that the first process is still at it, which may be longer than the others' patience.
constexpr double sign_seconds = 1;

}  // namespace

void GroupSteps::run(const std::function<void(const SignOfLife&)>& f, const SignOfLife& alive) {
  mpi::Comm& comm = trainer_.comm();
  if (comm.size() == 1) return f(alive);
  const auto tell = [&](bool is_over) {
    std::array<std::int64_t, 1> told = {is_over};
    comm.broadcast(std::span<std::int64_t>(told));
    return told[0] != 0;
  };
  const auto work = [&] {
    Clock::time_point last = Clock::now();
    f([&] {
      alive();
      if (seconds_since(last) < sign_seconds) return;
      last = Clock::now();
      tell(false);
    });
  };
  try {
    comm.together([&] {
      if (local_ == nullptr) {
        while (!tell(false)) alive();
        return;
      }
      try {
        work();
      } catch (...) {
        tell(true);
        throw;
      }
      tell(true);
    });
  } catch (const mpi::GroupError& error) {
    // All workers come to it by themselves.
    if (error.kind() == ErrorKind::interrupted) throw Error(error.kind(), error.what());
    throw;
  }
  share();
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
