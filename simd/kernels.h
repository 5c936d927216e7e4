// The bit-packed kernels: one table of functions per instruction set, all bit-identical, chosen at run time.
// This is the only public header of simd/. The convention of bits is core/bits.h. Arguments are validated by the caller
// (layerwise/ and the tests); kernels only assert.
//
// Letters: H, W output rows and columns; C input channels; O output channels; K bits of a patch = kernel rows x kernel
// columns x 64 * words per pixel, in memory order (row, column, channel); d a count of disagreements, 0..K.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bitloom::simd {

// Channels per block of packed convolution weights, and what widths are rounded up to inside them.
inline constexpr std::size_t weight_lanes = 16;

// Where the patches of one image lie. The input is a map with its border (padding) in memory, so a patch is
// `patch_rows` runs of `run_words` consecutive words, `pitch` words apart; the patch of output pixel (i, j) starts at
// word i * row_step + j * column_step. Any kernel size, stride and padding has this form.
struct ConvShape {
  std::size_t out_height = 0;    // H
  std::size_t out_width = 0;     // W
  std::size_t out_channels = 0;  // O
  std::size_t patch_rows = 0;    // kernel height
  std::size_t run_words = 0;     // kernel width x words per input pixel
  std::size_t pitch = 0;         // words between two rows of the padded input
  std::size_t row_step = 0;      // words between vertically neighbouring patches: stride x pitch
  std::size_t column_step = 0;   // words between horizontally neighbouring patches: stride x words per input pixel
  // How often the rows of weights repeat: channels o and o + (O / planes) have the same row, under thresholds of their own, and
  // O / planes is a multiple of 64, or planes is 1. Kernels may count such a row once; results are those of planes = 1.
  std::size_t planes = 1;
  // By word of an input pixel (`pixel_words` of them): the other one of a pair of words that meet the same weights at every tap
  // of every row, so that twin[twin[w]] == w, or the word itself. Null if there are no pairs. run_words, pitch and steps are
  // multiples of pixel_words then. Kernels may count a pair at once.
  const std::uint16_t* twin = nullptr;
  std::size_t pixel_words = 0;  // read only where there are twins

  std::size_t patch_words() const { return patch_rows * run_words; }
};

// Weights as the convolution reads them: 32-bit halves of the patch words, 16 output channels side by side,
//   packed[(o / 16) * 2 * patch_words * 16 + half * 16 + o % 16],
// rows beyond O are 0. `nonzero` is null for binary weights; for ternary ones it has the same layout (core/bits.h).
struct ConvWeights {
  const std::uint32_t* sign = nullptr;
  const std::uint32_t* nonzero = nullptr;
};

// Per channel, each padded to a multiple of 16 entries (pad thresholds with -1 and windows with an empty one).
//   output bit  y = 1 iff d <= threshold
//   window bit  m = 1 iff low <= d <= high   (read only if ConvOutput::window is set)
struct ConvThresholds {
  const std::int32_t* threshold = nullptr;
  const std::int32_t* low = nullptr;
  const std::int32_t* high = nullptr;
};

// Outputs of a convolution of one image. Maps are H rows of W pixels of words_for(O) words; `pitch` and `bits` let the
// caller write straight into the interior of a padded map. Only the H x W pixels are written, all of their words,
// tail bits 0.
struct ConvOutput {
  std::uint64_t* bits = nullptr;    // required; first output pixel
  std::size_t bits_pitch = 0;       // words between output rows
  std::uint64_t* window = nullptr;  // optional: H x W x words_for(O), no border
  // Optional, both or neither, padded to a multiple of 16: sums over the H x W pixels, added to what is there, of
  // e = d - 32 * patch_words (half of K) and of e * e.
  std::int64_t* sum = nullptr;
  std::int64_t* sum_of_squares = nullptr;
};

// Rows of bits to be counted column by column, grouped in lists: for accumulate_rows.
struct RowLists {
  const std::uint64_t* base = nullptr;     // the words that offsets count from
  const std::uint32_t* offsets = nullptr;  // word offset of the first run of each row
  const std::uint32_t* begin = nullptr;  // lists x scales + 1 positions in `offsets`; list l with scale s is at l * scales + s
  std::size_t lists = 0;                 // usually one list per output channel
  std::size_t scales = 0;                // how many scales each list has
  const std::int32_t* scale = nullptr;   // `scales` factors, e.g. 1, 2, 4, 8, -1, -2, -4, -8
  std::size_t runs = 0;                  // runs per row (1 for rows of weights, kernel height for patches)
  std::size_t run_words = 0;             // words per run
  std::size_t pitch = 0;                 // words between runs
};

struct Kernels {
  const char* name;  // ref, avx2, avx512, avx512_vpopcntdq, neon

  // Binary or ternary convolution of one image with threshold compare, bit packing, window mask and statistics fused.
  void (*conv)(const ConvShape& shape, const std::uint64_t* input, const ConvWeights& weights, const ConvThresholds& thresholds,
               const ConvOutput& output);

  // The same convolution's raw counts, for the trainer's first look at a layer and for tests:
  // counts[(i * W + j) * round_up(O, 16) + o] = d; entries beyond O are unspecified. Planes are not used.
  void (*conv_counts)(const ConvShape& shape, const std::uint64_t* input, const ConvWeights& weights, std::int32_t* counts);

  // The sparse weight gradient and, with rows of weights, the backward convolution: for every list l,
  //   sums[l * row_bits + k] += sum_s scale[s] * #{rows in list (l, s) whose bit k is set},   row_bits = runs * run_words * 64,
  // modulo 2^32.
  // Carry-save counters hold up to 64 rows at a time in bit planes; nothing is unpacked per row.
  void (*accumulate_rows)(const RowLists& rows, std::int32_t* sums);

  // Counts set bits per channel over each cell of a grid: cell (a, b) covers rows a*H/G .. (a+1)*H/G - 1 and columns
  // in the same way (integer division). bits: H x W x words, rows `pitch` words apart; counts[(a * grid + b) * words * 64 + c].
  void (*pool_counts)(const std::uint64_t* bits, std::size_t height, std::size_t width, std::size_t words, std::size_t pitch,
                      std::size_t grid, std::int16_t* counts);

  // Exact integer matrix product, C(M,N) += A(M,K) B(K,N): A row-major int16 with row pitch `a_pitch`; B in pairs of rows,
  // b[(k / 2) * 2 * N + 2 * n + k % 2], N a multiple of 16 and K even (pad with zeros); C row-major int32 with row pitch
  // `c_pitch`, wrapping modulo 2^32. Products of two -32768 in one pair are not allowed (they overflow the pair sum).
  void (*gemm_s16)(std::size_t m, std::size_t n, std::size_t k, const std::int16_t* a, std::size_t a_pitch,
                   const std::int16_t* b_pairs, std::int32_t* c, std::size_t c_pitch);

  // Input encoding: bits[p * words_for(2 * features) ...]: bit 2f is values(p,f) >= thresholds[2f], bit 2f+1 is
  // values(p,f) <= thresholds[2f+1]; values row-major int32 with row pitch `features` (a multiple of 16).
  void (*threshold_pack)(const std::int32_t* values, std::size_t pixels, std::size_t features, const std::int32_t* thresholds,
                         std::uint64_t* bits);

  // Values gradients are rounded to (layerwise/gradient.h, Rounding): with the size m = min(|gradient[i] * slope[i % period]
  // * inverse_unit|, 128), bits 0..3 are the level l of m (0 below 1, else 1 + floor(log2 m)), bit 8 is the sign, bits 16..31
  // are how far m is from level l to level l + 1, in 1/65536. n a multiple of period.
  void (*prepare_rounding)(const float* gradient, const float* slope, std::size_t n, std::size_t period, float inverse_unit,
                           std::uint32_t* out);

  // gradient[k] = total * density[k] - sums[k], k < n, n a multiple of 8. Returns the sum of squares: eight partial sums, of
  // k % 8, added pairwise.
  double (*centre_gradient)(const std::int32_t* sums, const float* density, std::size_t n, float total, float* gradient);

  // state[k] = clamp(state[k] - rate * gradient[k], -limit, limit), rounded half away from zero. limit <= 32767.
  void (*descend)(std::int16_t* state, const float* gradient, std::size_t n, float rate, float limit);

  // out[k] = factor * values[k] + share * sums[k], rounded half away from zero and limited to -32768 .. 32767; out may be
  // values.
  void (*combine_s16)(const std::int16_t* values, const std::int32_t* sums, std::size_t n, float factor, float share,
                      std::int16_t* out);

  // A step of Adam with the gradient sums[k] * factor. rate: the learning rate over the bias correction of the mean;
  // bias_correction: that of the variance, inverted; decay_factor: 1 - learning rate * weight decay.
  // value = value * decay_factor - rate * mean / (sqrt(variance * bias_correction) + 1e-8)
  void (*adam)(const std::int64_t* sums, std::size_t n, float factor, float rate, float bias_correction, float decay_factor,
               float* value, float* mean, float* variance);

  // For measure_peak: the instruction mix of this table's binary conv (xor, popcount, carry-save where it has one, add) on
  // registers alone, independent chains enough to fill the ports; runs `iterations` rounds and returns the bit-MACs done
  // (one bit-MAC is one weight bit met by one input bit).
  std::uint64_t (*peak_loop)(std::uint64_t iterations);
};

// Rows of weight bits (O x patch_words words, patch order) into the layout of ConvWeights; packed has
// round_up(O, 16) * 2 * patch_words entries.
void pack_conv_weights(const std::uint64_t* rows, std::size_t out_channels, std::size_t patch_words, std::uint32_t* packed);
// Row o of the above alone, after a few flips.
void pack_conv_weight_row(const std::uint64_t* row, std::size_t o, std::size_t patch_words, std::uint32_t* packed);
constexpr std::size_t packed_conv_weights_size(std::size_t out_channels, std::size_t patch_words) {
  return (out_channels + weight_lanes - 1) / weight_lanes * weight_lanes * 2 * patch_words;
}

// The table in use: the best that this CPU supports, or the one named by BITLOOM_ISA (an unknown or unsupported name
// throws a usage error). Decided at the first call.
const Kernels& kernels();
// The table of that name; throws a usage error if it is unknown, not compiled in or not supported by this CPU.
const Kernels& kernels(const std::string& name);
// Names compiled in, and those of them that this CPU supports, best first. `ref` is always there.
std::vector<std::string> compiled_kernels();
std::vector<std::string> supported_kernels();

// The peak of xor + popcount + add on one core in bit-MAC/s, by the same instructions as conv of that table, on registers
// only; runs for about `seconds`.
double measure_peak(const Kernels& table, double seconds);

}  // namespace bitloom::simd
