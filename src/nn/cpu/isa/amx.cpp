// Attention of bf16 for CPUs with AMX (Sapphire Rapids and later): products of 16 x 32 by 32 x 16 numbers per instruction,
// whose operands are the tiles that AVX-512 BF16 takes, too. All else is of avx512_bf16.cpp.
#include <immintrin.h>

#include "nn/cpu/isa/avx512_pairs.h"

#include "nn/cpu/generic/attention.h"
#include "nn/cpu/generic/attention_backward.h"
#include "nn/cpu/kernel_tables.h"

namespace bitloom::nn {
namespace {

constexpr std::size_t tile_side = 16;  // rows; and elements, of 32 bits, of a row

// g++ 12's intrinsics that load do not tell the compiler which memory they read: all that `known` leads to.
BITLOOM_INLINE void memory_changes(const void* known) { __asm__ volatile("" ::"r"(known) : "memory"); }

// A thread's tile registers while it is here: all eight have 16 rows of 64 bytes (Intel's manual, volume 1, chapter 18).
class TileRegisters {
 public:
  TileRegisters() {
    struct {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t bytes_per_row[16] = {};
      std::uint8_t rows[16] = {};
    } settings;
    static_assert(sizeof settings == 64);
    for (std::size_t i = 0; i < 8; ++i) {
      settings.bytes_per_row[i] = tile_side * sizeof(std::uint32_t);
      settings.rows[i] = tile_side;
    }
    memory_changes(&settings);
    _tile_loadconfig(&settings);
  }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
  ~TileRegisters() { _tile_release(); }
};

struct TileProduct : PairProduct {
  static constexpr bool has_tiles = true;

  // C of as much of `depth` as fills tiles; returns that much.
  static std::size_t multiply_tiles(std::size_t m, std::size_t vectors, std::size_t depth, const Element* a,
                                    std::size_t a_pitch, const Element* b, std::size_t b_pitch, float* c, std::size_t c_pitch,
                                    bool accumulate) {
    const std::size_t whole = depth / tile_side * tile_side;
    if (whole == 0) return 0;
    memory_changes(a);
    for (std::size_t r = 0; r < m; r += 2 * tile_side) {
      const Element* rows = a + r * a_pitch;
      for (std::size_t v = 0; v < vectors; v += 2) {
        const Element* columns = b + v * tile_side;
        float* to = c + r * c_pitch + v * tile_side;
        const bool two_rows = r + tile_side < m, two_vectors = v + 1 < vectors;
        if (two_rows && two_vectors) multiply<true, true>(whole, rows, a_pitch, columns, b_pitch, to, c_pitch, accumulate);
        if (two_rows && !two_vectors) multiply<true, false>(whole, rows, a_pitch, columns, b_pitch, to, c_pitch, accumulate);
        if (!two_rows && two_vectors) multiply<false, true>(whole, rows, a_pitch, columns, b_pitch, to, c_pitch, accumulate);
        if (!two_rows && !two_vectors) multiply<false, false>(whole, rows, a_pitch, columns, b_pitch, to, c_pitch, accumulate);
      }
    }
    memory_changes(c);
    return whole;
  }

 private:
  // C of one or two tiles by one or two: C in tiles 0 to 3, A in 4 and 5, B in 6 and 7.
  template <bool kTwoRows, bool kTwoVectors>
  static BITLOOM_INLINE void multiply(std::size_t depth, const Element* a, std::size_t a_pitch, const Element* b,
                                      std::size_t b_pitch, float* c, std::size_t c_pitch, bool accumulate) {
    const std::size_t a_stride = a_pitch * sizeof *a, b_stride = b_pitch * sizeof *b, c_stride = c_pitch * sizeof *c;
    float* below = c + tile_side * c_pitch;
    if (accumulate) {
      _tile_loadd(0, c, c_stride);
      if constexpr (kTwoVectors) _tile_loadd(1, c + tile_side, c_stride);
      if constexpr (kTwoRows) _tile_loadd(2, below, c_stride);
      if constexpr (kTwoRows && kTwoVectors) _tile_loadd(3, below + tile_side, c_stride);
    } else {
      _tile_zero(0);
      if constexpr (kTwoVectors) _tile_zero(1);
      if constexpr (kTwoRows) _tile_zero(2);
      if constexpr (kTwoRows && kTwoVectors) _tile_zero(3);
    }
    for (std::size_t k = 0; k < depth; k += tile_side) {
      _tile_loadd(4, a + k, a_stride);
      _tile_loadd(6, b + k * b_pitch, b_stride);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (kTwoVectors) {
        _tile_loadd(7, b + k * b_pitch + tile_side, b_stride);
        _tile_dpbf16ps(1, 4, 7);
      }
      if constexpr (kTwoRows) {
        _tile_loadd(5, a + tile_side * a_pitch + k, a_stride);
        _tile_dpbf16ps(2, 5, 6);
      }
      if constexpr (kTwoRows && kTwoVectors) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_stride);
    if constexpr (kTwoVectors) _tile_stored(1, c + tile_side, c_stride);
    if constexpr (kTwoRows) _tile_stored(2, below, c_stride);
    if constexpr (kTwoRows && kTwoVectors) _tile_stored(3, below + tile_side, c_stride);
  }
};

struct Isa : Avx512<NarrowNatively> {
  template <typename V>
  using Product = TileProduct;
};

template <>
struct Packing<Isa, TileProduct> : PairPacking<Isa> {
  static constexpr Stored left = Stored::by_rows;
};

void attention_by_tiles(const AttentionForward<bf16>& task) {
  const TileRegisters registers;
  attention<Isa>(task);
}

void attention_backward_by_tiles(const AttentionBackward<bf16>& task) {
  const TileRegisters registers;
  attention_backward<Isa>(task);
}

}  // namespace

constinit const TileAttention amx_attention = {&attention_by_tiles, &attention_backward_by_tiles};

}  // namespace bitloom::nn
