// A worker of local steps that several data-parallel processes are: the first of them exchanges messages with other workers,
// and gives the others its parameters where an exchange has moved them.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "train/local/local_steps.h"
#include "train/run.h"
#include "train/trainer.h"

namespace bitloom::train {

class GroupSteps {
 public:
  // local: of the first process of the trainer's, null elsewhere. Both outlive this.
  GroupSteps(Trainer& trainer, LocalSteps* local) : trainer_(trainer), local_(local) {}

  // Collective, as those of LocalSteps; what one throws all processes throw.
  void begin(std::size_t workers, const SignOfLife& alive);
  nlohmann::json after_step(std::uint64_t targets, const SignOfLife& alive);
  void leave(const SignOfLife& alive);

 private:
  void run(const std::function<void(const SignOfLife&)>& f, const SignOfLife& alive);
  void share();

  Trainer& trainer_;
  LocalSteps* local_;
  std::uint64_t moves_ = 0;  // that all processes have
};

}  // namespace bitloom::train
