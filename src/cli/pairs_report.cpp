#include "cli/pairs_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "cli/dvae_evaluation.h"
#include "cli/image_sampling.h"
#include "cli/model_source.h"
#include "cli/options.h"
#include "cli/pair_options.h"
#include "cli/step_samples.h"
#include "core/error.h"
#include "core/progress.h"
#include "core/safetensors.h"
#include "data/pairs/pair_batches.h"
#include "models/clip/model_file.h"
#include "models/clip/scores.h"
#include "models/dalle/model_file.h"
#include "models/model_kind.h"
#include "train/run.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t most_rows = 10;      // of samples
constexpr std::size_t largest_side = 128;  // pixels of an image in the page
constexpr std::size_t most_shown = 24;     // reconstructions
constexpr std::size_t most_pairs = 12;     // in the map of cosines
constexpr std::size_t most_measured = 2000;
constexpr double most_operations = 2e12;  // that discrete VAEs may take

// f(), whose trouble with files is no reason not to write the page: then what there is not, and why, is said.
template <typename F>
void try_to(report::ReportInput& input, const char* what, F&& f) {
  try {
    f();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data && error.kind() != ErrorKind::io && error.kind() != ErrorKind::usage) throw;
    input.missing.push_back(fmt::format("{} ({}).", what, error.what()));
  }
}

// image (side,side,3)
report::PageImage page_image(std::span<const std::uint8_t> pixels, std::size_t side) {
  data::Image image = data::to_image(pixels, side);
  if (side > largest_side) image = data::resize(image, largest_side, largest_side);
  return {image.shape.height, image.shape.width, 3, std::move(image.pixels)};
}

report::Samples::Row row_of(const ImageSheet& sheet, std::string name, std::size_t cells, std::size_t place = 0) {
  report::Samples::Row row{std::move(name), {}};
  for (std::size_t i = 0; i < cells; ++i) row.images.push_back(page_image(sheet.get(i, place), sheet.side()));
  return row;
}

std::vector<std::string> captions_of_line(const Json& line) {
  std::vector<std::string> captions;
  if (const auto found = line.find("captions"); found != line.end() && found->is_array()) {
    for (const Json& caption : *found) captions.push_back(caption.is_string() ? caption.get<std::string>() : "");
  }
  return captions;
}

// Steps of which the run has pictures of the captions of its last ones.
std::vector<std::uint64_t> sampled_steps(const std::vector<Json>& metrics, std::vector<std::string>& captions) {
  std::vector<std::uint64_t> steps;
  for (const Json& line : metrics) {
    const auto step = line.find("step");
    if (line.value("event", Json()) != "samples" || step == line.end() || !step->is_number_unsigned()) continue;
    if (!line.contains("file")) continue;  // the model made none then
    if (std::vector<std::string> those = captions_of_line(line); those != captions) {
      captions = std::move(those);
      steps.clear();
    }
    steps.push_back(step->get<std::uint64_t>());
  }
  return captions.empty() ? std::vector<std::uint64_t>() : steps;
}

// Some of them, with the last.
std::vector<std::uint64_t> shown_steps(const std::vector<std::uint64_t>& steps) {
  std::vector<std::uint64_t> shown;
  for (const std::size_t i : spread(most_rows, steps.size())) shown.push_back(steps[steps.size() - 1 - i]);
  std::ranges::reverse(shown);
  return shown;
}

void add_samples(report::ReportInput& input, const fs::path& run) {
  report::Samples samples;
  const std::vector<std::uint64_t> steps = sampled_steps(input.metrics, samples.captions);
  if (steps.empty()) {
    input.missing.push_back("images by step: the run's metrics name no pictures (--sample-every).");
    return;
  }
  const std::size_t cells = samples.captions.size();
  for (const std::uint64_t step : shown_steps(steps)) {
    try_to(input, "images by step: a picture cannot be used",
           [&] { samples.rows.push_back(row_of(StepSamples::read(run, step, cells), fmt::format("step {}", step), cells)); });
  }
  samples.left_out = steps.size() - std::min(steps.size(), most_rows);
  const bool has_prompts = input.config.is_object() && input.config.contains("sample-prompt");
  const bool of_transformer = input.kind == models::dalle_kind;
  if (!of_transformer || !has_prompts) {
    try_to(input, "images by step: the original images cannot be used", [&] {
      const ImageSheet sheet = StepSamples::read_originals(run, cells, of_transformer ? 2 : 1);
      if (of_transformer) samples.rows.push_back(row_of(sheet, "original as its codes hold it", cells, 1));
      samples.rows.push_back(row_of(sheet, "original", cells));
    });
  }
  input.samples = std::move(samples);
}

// Held-out pairs of the run's data; none, and said so, where it holds none back.
std::optional<data::Pairs> held_out(report::ReportInput& input, const fs::path& run, Terminal& terminal) {
  PairOptions pairs;
  Options options("", "");
  pairs.declare(options);
  read_pair_options(options, pairs, run.string(), "");
  data::PairSplits splits = load_pairs(pairs, terminal);
  if (splits.validation.size() != 0) return std::move(splits.validation);
  input.missing.push_back("what the model makes of held-out images: the run holds none back (--validation).");
  return std::nullopt;
}

// The model's file, which the page says the model by.
fs::path model_of(report::ReportInput& input, const fs::path& run) {
  const fs::path file = find_model(run.string());
  if (const auto step = train::step_of_checkpoint(TensorMapping::open(file).metadata)) {
    input.model = fmt::format("the checkpoint after step {}", *step);
  }
  return file;
}

double psnr(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double distance = (static_cast<double>(a[i]) - static_cast<double>(b[i])) / 255;
    sum += distance * distance;
  }
  return -10 * std::log10(std::max(sum / static_cast<double>(a.size()), 1e-10));
}

void add_dvae(report::ReportInput& input, const fs::path& run, Terminal& terminal) {
  OpenDvae dvae(model_of(input, run), "f32", "cpu", "");
  const std::optional<data::Pairs> pairs = held_out(input, run, terminal);
  if (!pairs) return;
  const std::size_t side = dvae.config().side;
  const std::size_t size = dvae.config().values();
  const auto affordable = static_cast<std::size_t>(most_operations / dvae.model().net->cost());
  const std::vector<std::size_t> shown = spread(std::clamp<std::size_t>(affordable, 4, most_shown), pairs->size());
  const std::vector<std::uint8_t> originals = data::centre_batch(*pairs, shown, side).images;
  const std::vector<std::uint8_t> again = dvae.coder().decode(dvae.coder().encode(originals));
  std::vector<report::Reconstruction> reconstructions;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const auto before = std::span(originals).subspan(i * size, size);
    const auto after = std::span(again).subspan(i * size, size);
    reconstructions.push_back(
        {(*pairs)[shown[i]].caption, page_image(before, side), page_image(after, side), psnr(before, after)});
  }
  report::CodeUse use;
  use.counts.assign(dvae.config().codes, 0);
  const std::vector<std::size_t> measured = spread(std::clamp(affordable, shown.size(), most_measured), pairs->size());
  constexpr std::size_t at_once = 32;
  data::for_centre_batches(*pairs, measured, side, at_once, [&](const data::PairBatch& batch, std::size_t done) {
    for (const std::int32_t code : dvae.coder().encode(batch.images)) ++use.counts[static_cast<std::size_t>(code)];
    terminal.update(fmt::format("images become codes: {} of {}", done, measured.size()));
  });
  use.images = measured.size();
  input.reconstructions = std::move(reconstructions);
  input.codes = std::move(use);
}

// Whether there still is what makes images of the model's codes.
void check_codebook(const fs::path& run) {
  nn::Engine engine;
  const models::LoadedDalle loaded = models::load_dalle(engine, find_model(run.string()));
  (void)open_dvae_of(engine, "", run.string(), loaded.dvae);
}

void add_clip(report::ReportInput& input, const fs::path& run, Terminal& terminal) {
  nn::Engine engine;
  const models::LoadedClip loaded = models::load_clip(engine, model_of(input, run));
  const std::optional<data::Pairs> pairs = held_out(input, run, terminal);
  if (!pairs) return;
  models::ClipEncoder encoder(engine, *loaded.net, *loaded.tokenizer, DType::f32);
  const std::size_t side = loaded.net->config().image.image.height;
  const std::vector<std::size_t> measured = spread(most_measured, pairs->size());
  const std::vector<std::string> captions = captions_of(*pairs, measured);
  std::vector<double> images;
  constexpr std::size_t at_once = 64;
  data::for_centre_batches(*pairs, measured, side, at_once, [&](const data::PairBatch& batch, std::size_t done) {
    const std::vector<double> directions = encoder.images(batch.images);
    images.insert(images.end(), directions.begin(), directions.end());
    terminal.update(fmt::format("{} of {} images", done, measured.size()));
  });
  const std::vector<double> texts = encoder.texts(captions);
  const auto cosine = [&](std::size_t text, std::size_t image) {
    const auto begin = [&](std::size_t i) { return static_cast<std::ptrdiff_t>(i * encoder.embedding()); };
    return std::inner_product(texts.begin() + begin(text), texts.begin() + begin(text + 1), images.begin() + begin(image), 0.0);
  };
  report::Similarities found;
  found.pairs = measured.size();
  const models::Ranks ranks = models::ranks(images, texts, encoder.embedding(), equal_parts(*pairs, measured));
  const std::vector<std::size_t> shown = spread(most_pairs, measured.size());
  for (const std::size_t i : shown) {
    const std::vector<std::size_t> index{measured[i]};
    found.captions.push_back(captions[i]);
    found.images.push_back(page_image(data::centre_batch(*pairs, index, side).images, side));
    std::vector<double> row;
    for (const std::size_t j : shown) row.push_back(cosine(i, j));
    found.cosines.push_back(std::move(row));
    found.caption_ranks.push_back(ranks.text[i]);
    found.image_ranks.push_back(ranks.image[i]);
  }
  input.similarities = std::move(found);
}

}  // namespace

void add_pairs(report::ReportInput& input, const fs::path& run, Terminal& terminal) {
  if (input.kind == models::dvae_kind) {
    add_samples(input, run);
    try_to(input, "reconstructions and the use of codes: the run's model or its images cannot be used",
           [&] { add_dvae(input, run, terminal); });
  } else if (input.kind == models::dalle_kind) {
    add_samples(input, run);
    try_to(input,
           "images of new captions: `bitloom sample` cannot draw them, since the model or its discrete VAE cannot be used",
           [&] { check_codebook(run); });
  } else if (input.kind == models::clip_kind) {
    try_to(input, "cosines of captions and images: the run's model or its images cannot be used",
           [&] { add_clip(input, run, terminal); });
  }
}

}  // namespace bitloom::cli
