#include "layerwise/bit_map.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/suggest.h"

namespace bitloom::layerwise {
namespace {

constexpr std::array<std::pair<const char*, Downsample>, 5> downsample_names = {
    {{"none", Downsample::none},
     {"or", Downsample::any},
     {"and", Downsample::all},
     {"majority", Downsample::majority},
     {"space_to_depth", Downsample::space_to_depth}}};

// The bits of a number from 0 to 15, lowest first, as 0.0 and 1.0.
constexpr std::array<std::array<float, 4>, 16> bits_as_floats = [] {
  std::array<std::array<float, 4>, 16> table{};
  for (unsigned i = 0; i < 16; ++i) {
    for (unsigned k = 0; k < 4; ++k) table[i][k] = (i >> k) & 1U ? 1.0F : 0.0F;
  }
  return table;
}();

// How many of the factor x factor bits of channel bit `bit` in word `w` are set.
unsigned count_cell(const std::uint64_t* cell, std::size_t pitch, std::size_t words, std::size_t factor, std::size_t w,
                    std::size_t bit) {
  unsigned count = 0;
  for (std::size_t y = 0; y < factor; ++y) {
    for (std::size_t x = 0; x < factor; ++x) count += (cell[y * pitch + x * words + w] >> bit) & 1U;
  }
  return count;
}

std::uint64_t reduce_word(const std::uint64_t* cell, std::size_t pitch, std::size_t words, std::size_t factor, std::size_t w,
                          Downsample kind) {
  if (kind == Downsample::majority) {
    std::uint64_t result = 0;
    for (std::size_t bit = 0; bit < word_bits; ++bit) {
      const bool most = 2 * count_cell(cell, pitch, words, factor, w, bit) > factor * factor;
      result |= std::uint64_t{most} << bit;
    }
    return result;
  }
  std::uint64_t result = kind == Downsample::all ? ~std::uint64_t{0} : 0;
  for (std::size_t y = 0; y < factor; ++y) {
    for (std::size_t x = 0; x < factor; ++x) {
      const std::uint64_t word = cell[y * pitch + x * words + w];
      result = kind == Downsample::all ? result & word : result | word;
    }
  }
  return result;
}

// Does flipping one bit (now `bit`) of a cell with `count` set bits out of `n` change the result?
bool decides(Downsample kind, unsigned count, unsigned n, bool bit) {
  const unsigned others = count - (bit ? 1U : 0U);
  switch (kind) {
    case Downsample::any: return others == 0;
    case Downsample::all: return others == n - 1;
    case Downsample::majority: return 2 * others <= n && 2 * (others + 1) > n;
    default: return true;
  }
}

}  // namespace

Downsample parse_downsample(const std::string& name) {
  std::array<std::string, downsample_names.size()> known;
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (name == downsample_names[i].first) return downsample_names[i].second;
    known[i] = downsample_names[i].first;
  }
  fail(ErrorKind::usage, "pool: '{}' is not a way to down-sample{}", name, did_you_mean(name, known));
}

std::string to_string(Downsample kind) {
  for (const auto& [name, value] : downsample_names) {
    if (value == kind) return name;
  }
  return "none";
}

std::size_t downsampled_channels(std::size_t words, Downsample kind, std::size_t factor) {
  return words * word_bits * (kind == Downsample::space_to_depth ? factor * factor : 1);
}

void place(const std::uint64_t* source, const MapShape& source_shape, Downsample kind, std::size_t factor,
           std::uint64_t* target, const MapShape& target_shape, std::size_t word) {
  assert(source_shape.border == 0 && source_shape.height == target_shape.height * factor);
  const std::size_t words = source_shape.words();
  const std::size_t pitch = source_shape.pitch();
  for (std::size_t i = 0; i < target_shape.height; ++i) {
    std::uint64_t* out = target + target_shape.interior() + i * target_shape.pitch() + word;
    const std::uint64_t* row = source + i * factor * pitch;
    for (std::size_t j = 0; j < target_shape.width; ++j, out += target_shape.words()) {
      const std::uint64_t* cell = row + j * factor * words;
      if (factor == 1) {
        for (std::size_t w = 0; w < words; ++w) out[w] = cell[w];
      } else if (kind == Downsample::space_to_depth) {
        for (std::size_t y = 0; y < factor; ++y) {
          for (std::size_t x = 0; x < factor; ++x) {
            for (std::size_t w = 0; w < words; ++w) out[(y * factor + x) * words + w] = cell[y * pitch + x * words + w];
          }
        }
      } else if (factor == 2 && kind == Downsample::any) {
        for (std::size_t w = 0; w < words; ++w) {
          out[w] = cell[w] | cell[words + w] | cell[pitch + w] | cell[pitch + words + w];
        }
      } else {
        for (std::size_t w = 0; w < words; ++w) out[w] = reduce_word(cell, pitch, words, factor, w, kind);
      }
    }
  }
}

void clear_undecided(const std::uint64_t* source, const MapShape& source_shape, std::size_t factor, std::uint64_t* mask) {
  if (factor == 1) return;
  const std::size_t words = source_shape.words();
  const std::size_t pitch = source_shape.pitch();
  for (std::size_t i = 0; i < source_shape.height; i += factor) {
    for (std::size_t j = 0; j < source_shape.width; j += factor) {
      for (std::size_t w = 0; w < words; ++w) {
        const std::size_t cell = i * pitch + j * words + w;
        // Bits set in one pixel at least, and in two at least.
        std::uint64_t once = 0;
        std::uint64_t twice = 0;
        for (std::size_t y = 0; y < factor; ++y) {
          for (std::size_t x = 0; x < factor; ++x) {
            const std::uint64_t bits = source[cell + y * pitch + x * words];
            twice |= once & bits;
            once |= bits;
          }
        }
        // A pixel's bit decides if no bit of the cell is set, or its own alone.
        for (std::size_t y = 0; y < factor; ++y) {
          for (std::size_t x = 0; x < factor; ++x) {
            const std::size_t k = cell + y * pitch + x * words;
            mask[k] &= ~twice & (~once | source[k]);
          }
        }
      }
    }
  }
}

void place_backward(const std::uint64_t* source, const MapShape& source_shape, Downsample kind, std::size_t factor,
                    const float* target_gradient, const MapShape& target_shape, std::size_t word, float* source_gradient) {
  const std::size_t words = source_shape.words();
  const std::size_t channels = words * word_bits;
  const std::size_t target_channels = target_shape.words() * word_bits;
  const auto n = static_cast<unsigned>(factor * factor);
  const bool as_or = kind == Downsample::any || kind == Downsample::none;
  thread_local std::vector<std::uint64_t> deciding;
  if (as_or && factor > 1) {
    deciding.assign(source_shape.size(), ~std::uint64_t{0});
    clear_undecided(source, source_shape, factor, deciding.data());
  }
  for (std::size_t i = 0; i < source_shape.height; ++i) {
    for (std::size_t j = 0; j < source_shape.width; ++j) {
      const std::size_t target_pixel = i / factor * target_shape.width + j / factor;
      const std::size_t cell_word = (i / factor * factor * source_shape.width + j / factor * factor) * words;
      float* gradient = source_gradient + (i * source_shape.width + j) * channels;
      const std::uint64_t* pixel = source + (i * source_shape.width + j) * words;
      const bool depth = kind == Downsample::space_to_depth && factor > 1;
      const std::size_t slot = depth ? (i % factor * factor + j % factor) * words : 0;
      const float* incoming = target_gradient + target_pixel * target_channels + (word + slot) * word_bits;
      if (factor == 1 || depth) {
        for (std::size_t c = 0; c < channels; ++c) gradient[c] += incoming[c];
        continue;
      }
      for (std::size_t w = 0; w < words; ++w) {
        std::uint64_t passes = 0;
        if (as_or) {
          passes = deciding[(i * source_shape.width + j) * words + w];
        } else {
          for (std::size_t bit = 0; bit < word_bits; ++bit) {
            const unsigned count = count_cell(source + cell_word, source_shape.pitch(), words, factor, w, bit);
            passes |= std::uint64_t{decides(kind, count, n, (pixel[w] >> bit) & 1U)} << bit;
          }
        }
        // Four bits at a time through a table: which bits are set is random, and branches on them are mispredicted.
        for (std::size_t bit = 0; bit < word_bits; bit += 4) {
          const std::array<float, 4>& keep = bits_as_floats[(passes >> bit) & 15U];
          float* const to = gradient + w * word_bits + bit;
          const float* const from = incoming + w * word_bits + bit;
          std::array<float, 4> sum{};  // all four before the first is stored, so that compilers take them at once
          for (std::size_t k = 0; k < 4; ++k) sum[k] = to[k] + keep[k] * from[k];
          std::copy_n(sum.begin(), 4, to);
        }
      }
    }
  }
}

}  // namespace bitloom::layerwise
