// Pictures that a training makes now and then of the same few examples: `samples/step-N.png` in its run folder after N steps,
// and `samples/originals.png`, to compare them with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "cli/image_sheet.h"
#include "cli/options.h"

namespace bitloom::cli {

struct SampleOptions {
  std::string every = "auto";
  std::vector<std::string> prompts;

  void declare(Options& options);
  void declare_prompts(Options& options);
  // Steps between pictures; 0: none. auto: eight pictures, or fewer where they would take more than 3% of the run. cost: of a
  // picture, in steps. Throws Error(usage).
  std::uint64_t steps_between(std::uint64_t steps, double cost) const;
  // Throws Error(usage) where pictures are asked for, and there are no `examples` to show.
  void require(std::size_t examples) const;
};

inline constexpr std::size_t sample_count = 8;

// Numbers of `count` of `all` examples, or of all if there are fewer, from everywhere among them.
std::vector<std::size_t> spread(std::size_t count, std::size_t all);

// Rank 0 alone writes.
class StepSamples {
 public:
  StepSamples(const std::filesystem::path& run, std::vector<std::string> captions, std::size_t side);
  const std::vector<std::string>& captions() const { return captions_; }

  // Removes the originals, and pictures of steps after this one, which the run is to make again. Throws Error(io).
  void begin(std::uint64_t step) const;
  // images (N,side,side,3) of the captions, each beside another one, if there are such. Throws Error(io), as does what follows.
  void write_originals(std::span<const std::uint8_t> images, std::span<const std::uint8_t> others = {}) const;
  // Gives what the line of metrics has of it.
  nlohmann::json write(std::uint64_t step, std::span<const std::uint8_t> images) const;

  // Pictures of `cells` examples in the folder of a run, with as many images for each as were written. Throw Error(data).
  static ImageSheet read(const std::filesystem::path& run, std::uint64_t step, std::size_t cells);
  static ImageSheet read_originals(const std::filesystem::path& run, std::size_t cells, std::size_t images);

 private:
  std::filesystem::path folder_;
  std::vector<std::string> captions_;
  std::size_t side_;
};

}  // namespace bitloom::cli
