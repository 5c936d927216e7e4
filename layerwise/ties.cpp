#include "layerwise/ties.h"

#include <algorithm>
#include <numeric>

#include "core/bits.h"

namespace bitloom::layerwise {

Ties::Ties(const LayerSpec& spec, const LayerGeometry& geometry)
    : rows_(spec.width),
      tied_rows_(spec.thresholds > 1),
      patch_words_(geometry.patch_words),
      valid_(geometry.patch_words, 0),
      first_(geometry.patch_words, 0) {
  const std::size_t pixel_words = geometry.input.words();
  for (std::size_t tap = 0; tap < spec.kernel * spec.kernel; ++tap) {
    for (const LayerGeometry::Source& source : geometry.sources) {
      const std::size_t copies = spec.pool == Downsample::space_to_depth ? source.factor * source.factor : 1;
      for (std::size_t copy = 0; copy < copies; ++copy) {
        const std::size_t word = tap * pixel_words + source.word + copy * source.shape.words();
        groups_.push_back({word * word_bits, source.shape.channels / source.planes, source.planes});
      }
    }
  }
  std::vector<std::size_t> first(pixel_words);  // by word of a pixel: the one with the same weights
  std::iota(first.begin(), first.end(), std::size_t{0});
  for (const Group& group : groups_) {
    const std::size_t begin = group.begin / word_bits, words = group.channels / word_bits;
    if (begin >= pixel_words || group.channels % word_bits != 0) continue;
    for (std::size_t w = 0; w < group.planes * words; ++w) first[begin + w] = begin + w % words;
  }
  std::vector<std::size_t>& stored = pixel_words_.stored;
  for (std::size_t w = 0; w < pixel_words; ++w) {
    if (first[w] == w) stored.push_back(w);
    pixel_words_.place.push_back(static_cast<std::size_t>(std::find(stored.begin(), stored.end(), first[w]) - stored.begin()));
  }
  for (const Group& group : groups_) {
    file_words_ += words_for(group.channels);
    weights_ += group.channels;
    for (std::size_t c = 0; c < group.planes * group.channels; ++c) {
      set_bit(valid_.data(), group.begin + c, true);
      set_bit(first_.data(), group.begin + c, c < group.channels);
      if (c < group.channels) continue;
      tied_.push_back(
          {static_cast<std::uint32_t>(group.begin + c), static_cast<std::uint32_t>(group.begin + c % group.channels)});
    }
  }
}

void Ties::sum(std::span<float> values) const {
  for (const Tied& tied : tied_) values[tied.first] += values[tied.bit];
  for (const Tied& tied : tied_) values[tied.bit] = values[tied.first];
}

void Ties::spread(std::span<std::int16_t> values) const {
  for (const Tied& tied : tied_) values[tied.bit] = values[tied.first];
}

void Ties::spread(std::uint64_t* row) const {
  for (const Tied& tied : tied_) set_bit(row, tied.bit, get_bit(row, tied.first));
}

void Ties::to_file(const std::uint64_t* row, std::uint64_t* file) const {
  for (const Group& group : groups_) {
    const std::size_t words = words_for(group.channels);
    std::copy_n(row + group.begin / word_bits, words, file);
    file[words - 1] &= tail_mask(group.channels);
    file += words;
  }
}

void Ties::from_file(const std::uint64_t* file, std::uint64_t* row) const {
  std::fill_n(row, patch_words_, 0);
  for (const Group& group : groups_) {
    const std::size_t words = words_for(group.channels);
    std::copy_n(file, words, row + group.begin / word_bits);
    file += words;
  }
  spread(row);
}

}  // namespace bitloom::layerwise
