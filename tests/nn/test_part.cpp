// Parts of tensors: which elements of the whole they have, and that initial values follow from these.
#include "nn/part.h"

#include <vector>

#include "nn/layer.h"
#include "nn/parameter.h"
#include "tests/support/catch.h"
#include "tests/support/parts.h"

namespace bitloom::nn {
namespace {

// The numbers of a part's elements, by looking at every element of the whole.
std::vector<std::size_t> numbers_of(const Part& part) {
  std::vector<std::size_t> numbers;
  const std::size_t block = part.full[part.axis] / part.blocks;
  for (std::size_t number = 0; number < part.full.size(); ++number) {
    std::size_t index = number;
    for (std::size_t axis = part.full.axes() - 1; axis > part.axis; --axis) index /= part.full[axis];
    index %= block;
    if (index >= part.begin && index < part.end) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

TEST_CASE("a part has the elements of its range of every block", "[nn][part]") {
  const std::vector<Part> parts = {{{7}, 0, 1, 2, 5},       {{7, 4}, 0, 1, 0, 3},  {{7, 4}, 1, 1, 3, 4},
                                   {{5, 12}, 1, 3, 1, 3},   {{12, 5}, 0, 3, 2, 4}, {{3, 6, 5}, 1, 2, 0, 2},
                                   {{3, 6, 5}, 2, 1, 1, 4}, {{4, 4}, 1, 1, 0, 4},  {{4, 4}, 0, 1, 2, 2}};
  for (const Part& part : parts) {
    INFO(part.begin << " to " << part.end << " of axis " << part.axis << " of " << to_text(part.full));
    std::vector<std::size_t> is;
    for (std::size_t i = 0; i < part.shape().size(); ++i) is.push_back(part.numbers()(i));
    CHECK(is == numbers_of(part));
    std::vector<std::size_t> by_runs;
    for (std::size_t begin = 0; begin < is.size(); begin += 4) {
      part.numbers().for_runs(begin, std::min(begin + 4, is.size()), [&](std::size_t i, std::size_t number, std::size_t count) {
        CHECK(i == by_runs.size());
        for (std::size_t k = 0; k < count; ++k) by_runs.push_back(number + k);
      });
    }
    CHECK(by_runs == is);
    for (std::size_t begin = 0; begin <= is.size(); begin += 3) {  // a share of the part
      ElementNumbers rest = part.numbers();
      rest.begin = begin;
      std::vector<std::size_t> numbers;
      rest.for_runs(0, is.size() - begin, [&](std::size_t, std::size_t number, std::size_t count) {
        for (std::size_t k = 0; k < count; ++k) numbers.push_back(number + k);
      });
      CHECK(numbers == std::vector<std::size_t>(is.begin() + static_cast<std::ptrdiff_t>(begin), is.end()));
    }
  }
  CHECK(ElementNumbers{}(17) == 17);
  CHECK(ElementNumbers{.begin = 5}(17) == 22);
}

TEST_CASE("initial values of parts are those of the whole", "[nn][part]") {
  for (const MasterWeights masters : {MasterWeights::f32, MasterWeights::none}) {
    const DType values = masters == MasterWeights::f32 ? DType::f32 : DType::bf16;
    Engine engine;
    Parameter whole;
    whole.name = "weight";
    whole.shape = {10, 24};
    whole.deviation = 0.5;
    Parameter* all = &whole;
    initialise(engine, std::span(&all, 1), values, 3, masters);
    const auto numbers = [&](const Parameter& parameter) {
      std::vector<float> floats(parameter.shape.size());
      if (parameter.value.dtype() == DType::f32) return engine.to_host<float>(parameter.value);
      const std::vector<bf16> halves = engine.to_host<bf16>(parameter.value);
      for (std::size_t i = 0; i < floats.size(); ++i) floats[i] = to_float(halves[i]);
      return floats;
    };
    std::vector<float> gathered(whole.shape.size());
    for (const auto& [begin, end] : {std::pair(0U, 3U), {3U, 4U}, {4U, 8U}}) {
      Parameter mine = whole;
      mine.part = Part{whole.shape, 1, 3, begin, end};
      mine.shape = mine.part->shape();
      Parameter* one = &mine;
      initialise(engine, std::span(&one, 1), values, 3, masters);
      test::put_part(*mine.part, numbers(mine), gathered);
    }
    CHECK(gathered == numbers(whole));
  }
}

}  // namespace bitloom::nn
