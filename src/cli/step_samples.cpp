#include "cli/step_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "core/error.h"
#include "core/file_state.h"
#include "core/text.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* folder_name = "samples";
constexpr const char* originals_name = "originals.png";
constexpr std::size_t sheet_columns = sample_count;  // of a picture
constexpr double largest_share = 0.03;               // of a run, for --sample-every auto

std::string name_of(std::uint64_t step) { return fmt::format("step-{}.png", step); }

// N of "step-N.png".
std::optional<std::uint64_t> step_of(const std::string& name) {
  constexpr std::string_view before = "step-", after = ".png";
  if (!name.starts_with(before) || !name.ends_with(after) || name.size() <= before.size() + after.size()) return std::nullopt;
  const auto step = parse_int(name.substr(before.size(), name.size() - before.size() - after.size()));
  if (!step || *step < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*step);
}

}  // namespace

void SampleOptions::declare(Options& options) {
  options.text(
      "sample-every", every, "N",
      "Steps between pictures in the run's folder samples, for `bitloom report`; 0: none; auto: an eighth of the run, or "
      "more where they would take more than 3% of it");
}

void SampleOptions::declare_prompts(Options& options) {
  static const std::vector<Options::Need> needs{{"sample-prompt", "sample-every", {"!0"}}};
  options.needs(needs);
  options.list("sample-prompt", prompts, "TEXT",
               fmt::format("Caption for which each picture in samples has an image; without it: {} captions of validation",
                           sample_count));
}

std::uint64_t SampleOptions::steps_between(std::uint64_t steps, double cost) const {
  if (every != "auto") {
    const auto number = parse_int(every);
    if (!number || *number < 0) fail(ErrorKind::usage, "--sample-every: '{}'; expected auto or a number of steps", every);
    return static_cast<std::uint64_t>(*number);
  }
  const auto affordable = static_cast<std::uint64_t>(std::ceil(cost / largest_share));
  return std::clamp<std::uint64_t>(std::max((steps + 7) / 8, affordable), 1, std::max<std::uint64_t>(steps, 1));
}

void SampleOptions::require(std::size_t examples) const {
  if (examples != 0 || every == "auto" || every == "0") return;
  fail(ErrorKind::usage,
       "--sample-every: {} has no effect; there is nothing to show without images that --validation holds back", every);
}

std::vector<std::size_t> spread(std::size_t count, std::size_t all) {
  std::vector<std::size_t> numbers(std::min(count, all));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i * all / numbers.size();
  return numbers;
}

StepSamples::StepSamples(const fs::path& run, std::vector<std::string> captions, std::size_t side)
    : folder_(run / folder_name), captions_(std::move(captions)), side_(side) {}

void StepSamples::begin(std::uint64_t step) const {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) fail(ErrorKind::io, "{} cannot be created: {}", folder_.string(), error.message());
  remove_abandoned_temporaries(folder_);
  std::vector<fs::path> later;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
    const std::optional<std::uint64_t> of = step_of(entry.path().filename().string());
    const bool is_original = entry.path().filename() == originals_name;
    if (is_original || (of && *of > step)) later.push_back(entry.path());
  }
  for (const fs::path& path : later) {
    if (!error) fs::remove(path, error);
  }
  if (error) fail(ErrorKind::io, "{}: pictures of an earlier run cannot be removed: {}", folder_.string(), error.message());
}

void StepSamples::write_originals(std::span<const std::uint8_t> images, std::span<const std::uint8_t> others) const {
  const std::size_t size = 3 * side_ * side_;
  ImageSheet sheet(captions_.size(), sheet_columns, side_, others.empty() ? 1 : 2);
  for (std::size_t i = 0; i < captions_.size(); ++i) {
    sheet.put(i, images.subspan(i * size, size));
    if (!others.empty()) sheet.put(i, others.subspan(i * size, size), 1);
  }
  sheet.write(folder_ / originals_name);
}

nlohmann::json StepSamples::write(std::uint64_t step, std::span<const std::uint8_t> images) const {
  const std::size_t size = 3 * side_ * side_;
  ImageSheet sheet(captions_.size(), sheet_columns, side_);
  for (std::size_t i = 0; i < captions_.size(); ++i) sheet.put(i, images.subspan(i * size, size));
  sheet.write(folder_ / name_of(step));
  return {{"file", fmt::format("{}/{}", folder_name, name_of(step))}, {"captions", captions_}};
}

ImageSheet StepSamples::read(const fs::path& run, std::uint64_t step, std::size_t cells) {
  return ImageSheet::read(run / folder_name / name_of(step), cells, sheet_columns, 1);
}

ImageSheet StepSamples::read_originals(const fs::path& run, std::size_t cells, std::size_t images) {
  return ImageSheet::read(run / folder_name / originals_name, cells, sheet_columns, images);
}

}  // namespace bitloom::cli
