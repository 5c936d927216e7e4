// A trained GPT that the processes of a run have together, for commands that use it.
#pragma once

#include <optional>
#include <string>

#include "cli/command.h"
#include "cli/layout_options.h"
#include "cli/options.h"
#include "models/gpt/forward.h"
#include "models/gpt/model_file.h"
#include "mpi/grid.h"
#include "nn/engine.h"

namespace bitloom::cli {

// Options that say how it is used.
struct GptUse {
  std::string values = "f32";
  std::string device = "cpu", backend;
  LayoutSettings layout;

  void declare_engine(Options& options);
};

class PlacedGpt {
 public:
  // Collective; rank 0 has the file. Throws Error(data) for a file that is none, Error(usage) for a grid that the net does not
  // have, with possible ones. samples: that data ranks divide, at least one for each; none: what they divide is enough for all.
  PlacedGpt(Session& session, const GptUse& use, const std::string& file, std::optional<std::size_t> samples = {});
  PlacedGpt(const PlacedGpt&) = delete;
  PlacedGpt& operator=(const PlacedGpt&) = delete;

  models::GptForward& forward() { return *forward_; }
  nn::Engine& engine() { return engine_; }
  const data::Tokenizer& tokenizer() const { return *loaded_.tokenizer; }

 private:
  nn::Engine engine_;
  mpi::Grid grid_;
  models::LoadedGpt loaded_;
  std::optional<models::GptForward> forward_;
};

}  // namespace bitloom::cli
