#include "data/pairs/synth_pairs.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "core/field.h"
#include "core/file.h"
#include "core/random.h"
#include "data/pixel_store.h"

namespace bitloom::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t colours = colour_names.size(), shape_count = shape_names.size();

// The built-in set of labelled images (synthetic.cpp) has the purposes 0 and 1 of this stream.
Random random_for(std::uint64_t seed, std::uint64_t i, std::uint64_t purpose) {
  return {mix64(seed), Stream::synthetic_data, i, purpose};
}
constexpr std::uint64_t combinations_purpose = 2, scene_purpose = 3, drawing_purpose = 4;

std::vector<Combination> all_combinations() {
  std::vector<Combination> all;
  for (std::size_t i = 0; i < colours * shape_count; ++i)
    all.emplace_back(static_cast<std::uint8_t>(i / shape_count), static_cast<std::uint8_t>(i % shape_count));
  return all;
}

std::string line_of(const Scene& scene, const std::string& image) {
  nlohmann::ordered_json line;
  if (!image.empty()) line["image"] = image;
  line["caption"] = caption_of(scene);
  line["size"] = name_in(size_names, scene.size);
  line["colour"] = name_in(colour_names, scene.colour);
  line["shape"] = name_in(shape_names, scene.shape);
  line["place"] = name_in(place_names, scene.place);
  return line.dump() + "\n";
}

// All scenes of the combinations.
std::string scene_lines(const std::set<Combination>& combinations) {
  std::string lines;
  for (const auto& [colour, shape] : combinations) {
    for (std::uint8_t size = 0; size < size_names.size(); ++size) {
      for (std::uint8_t place = 0; place < place_names.size(); ++place) lines += line_of({colour, shape, size, place}, "");
    }
  }
  return lines;
}

}  // namespace

std::set<Combination> held_out_combinations(double share, std::uint64_t seed) {
  // With a limit of four of eight, any order comes to 28 combinations at least.
  if (!(share >= 0 && share <= 0.4)) fail_field(ErrorKind::usage, "hold_out", "{}; expected a share from 0 to 0.4", share);
  std::vector<Combination> all = all_combinations();
  shuffle(all.data(), all.size(), random_for(seed, 0, combinations_purpose));
  const auto wanted = static_cast<std::size_t>(std::llround(share * static_cast<double>(all.size())));
  std::set<Combination> held_out;
  std::array<std::size_t, colours> of_colour{};
  std::array<std::size_t, shape_count> of_shape{};
  for (const auto& [colour, shape] : all) {
    if (held_out.size() == wanted) break;
    if (of_colour[colour] == shape_count / 2 || of_shape[shape] == colours / 2) continue;
    ++of_colour[colour];
    ++of_shape[shape];
    held_out.emplace(colour, shape);
  }
  return held_out;
}

Scene synth_scene(const SynthPairs& options, const std::set<Combination>& held_out, std::uint64_t i) {
  std::vector<Combination> drawn_from = all_combinations();
  std::erase_if(drawn_from, [&](const Combination& each) { return held_out.contains(each) != options.held_out; });
  if (drawn_from.empty()) fail_field(ErrorKind::usage, "hold_out", "{}; no combinations are held out", options.hold_out);
  Random random = random_for(options.seed, i, scene_purpose);
  const auto& [colour, shape] = drawn_from[random.below(static_cast<std::uint32_t>(drawn_from.size()))];
  const auto size = static_cast<std::uint8_t>(random.below(size_names.size()));
  const auto place = static_cast<std::uint8_t>(random.below(place_names.size()));
  return {colour, shape, size, place};
}

void write_synth_pairs(const SynthPairs& options, const fs::path& folder, ProgressSink* progress) {
  if (options.count == 0) fail_field(ErrorKind::usage, "count", "0; expected at least 1");
  const std::set<Combination> held_out = held_out_combinations(options.hold_out, options.seed);
  // Impossible options show before anything is written.
  draw_scene(synth_scene(options, held_out, 0), options.side, Random(options.seed, Stream::synthetic_data));
  std::error_code error;
  fs::create_directories(folder / "png", error);
  if (error) fail(ErrorKind::io, "{}: {}", (folder / "png").string(), error.message());
  // Captions of a set that was here before would be of other pictures, should this be stopped.
  fs::remove(folder / "captions.jsonl", error);
  std::string lines;
  // Pictures of the two parts differ, as they may be used together.
  const std::uint64_t first = options.held_out ? std::uint64_t{1} << 32U : 0;
  constexpr std::size_t piece = 1024;
  for (std::size_t begin = 0; begin < options.count; begin += piece) {
    const std::size_t count = std::min(piece, options.count - begin);
    std::vector<std::string> written(count);
    for_all_images(count, [&](std::size_t k) {
      const std::uint64_t i = first + begin + k;
      const Scene scene = synth_scene(options, held_out, i);
      const std::string name = fmt::format("{:06}.png", begin + k);
      const Image image = draw_scene(scene, options.side, random_for(options.seed, i, drawing_purpose));
      write_png(image.pixels, image.shape, folder / "png" / name);
      written[k] = line_of(scene, name);
    });
    for (const std::string& line : written) lines += line;
    if (progress != nullptr) progress->update(fmt::format("{} of {} pictures", begin + count, options.count));
  }
  const fs::path prompts = folder / "held-out.jsonl";
  if (held_out.empty()) {
    fs::remove(prompts, error);  // of a set that was here before
  } else {
    write_atomically(prompts, scene_lines(held_out));
  }
  write_atomically(folder / "captions.jsonl", lines);
}

}  // namespace bitloom::data
