#include "layerwise/bit_counts.h"

#include "tests/layerwise/cases.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

// Maps above 181 x 181 pixels were refused: 16 bits counted them.
TEST_CASE("bits of maps with more pixels than 16 bits can count are counted", "[bit_counts]") {
  for (const MapShape& map : {MapShape{224, 224, 128, 1}, MapShape{3, 32767, 64, 0}, MapShape{33000, 1, 64, 0},
                              MapShape{5, 7, 192, 2}, MapShape{181, 181, 64, 0}}) {
    INFO(map.height << " x " << map.width);
    Buffer<std::uint64_t> bits(map.size());
    // Channel 0 is set everywhere, channel 1 in every third pixel, the last one nowhere; the border must not count.
    std::fill_n(bits.data(), map.size(), ~std::uint64_t{0});
    std::int64_t thirds = 0;
    for (std::size_t p = 0; p < map.height * map.width; ++p) {
      std::uint64_t* pixel = bits.data() + map.interior() + p / map.width * map.pitch() + p % map.width * map.words();
      std::fill_n(pixel, map.words(), p % 3 == 0 ? std::uint64_t{3} : std::uint64_t{1});
      thirds += p % 3 == 0 ? 1 : 0;
    }
    for (const std::string& name : simd::supported_kernels()) {
      std::vector<std::int16_t> scratch;
      std::vector<std::int64_t> sums(map.channels, 10);
      add_bit_counts(simd::kernels(name), map, bits.data(), scratch, sums);
      CHECK(sums[0] == static_cast<std::int64_t>(10 + map.height * map.width));
      CHECK(sums[1] == 10 + thirds);
      CHECK(sums[map.channels - 1] == 10);
    }
  }
}
