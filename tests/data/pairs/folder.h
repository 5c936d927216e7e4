// Small sets of images and captions on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/random.h"
#include "data/image.h"
#include "tests/support/files.h"

namespace bitloom::test {

// Every pixel by chance: any two parts of it differ.
inline data::Image noise_image(std::size_t height, std::size_t width, std::uint64_t seed) {
  data::Image image{{height, width, 3}, std::vector<std::uint8_t>(height * width * 3)};
  Random random(seed, Stream::test);
  for (std::uint8_t& pixel : image.pixels) pixel = static_cast<std::uint8_t>(random.below(256));
  return image;
}

inline void write_noise(const std::filesystem::path& file, std::size_t height, std::size_t width, std::uint64_t seed) {
  const data::Image image = noise_image(height, width, seed);
  data::write_png(image.pixels, image.shape, file);
}

inline std::string pair_line(const std::string& image, const std::string& caption) {
  return R"({"image": ")" + image + R"(", "caption": ")" + caption + "\"}\n";
}

// `count` different images in FOLDER/images and one caption each.
inline void write_noise_pairs(const std::filesystem::path& folder, std::size_t count, std::size_t height = 12,
                              std::size_t width = 16) {
  std::filesystem::create_directories(folder / "images");
  std::string lines;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = std::to_string(i) + ".png";
    write_noise(folder / "images" / name, height, width, 100 + i);
    lines += pair_line(name, "picture number " + std::to_string(i));
  }
  write_file(folder / "captions.jsonl", lines);
}

}  // namespace bitloom::test
