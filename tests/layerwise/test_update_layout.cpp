#include "layerwise/update_layout.h"

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using layerwise::UpdateLayout;

TEST_CASE("an update's vectors and statistics each have a place of their own, without gaps", "[layerwise][update_layout]") {
  for (const std::size_t layers : {1U, 3U}) {
    for (const std::size_t heads : {1U, 2U}) {
      CAPTURE(layers, heads);
      const UpdateLayout layout(layers, heads);
      std::vector<std::size_t> feedback, statistics;
      for (std::size_t t = 0; t < layers; ++t) {
        feedback.insert(feedback.end(), {layout.weights(t), layout.values(t)});
        statistics.push_back(layout.of_layer(t));
        CHECK(layout.part(layout.weights(t)) == std::string("weights"));
        CHECK(layout.part(layout.values(t)) == std::string("thresholds"));
      }
      for (std::size_t h = 0; h < heads; ++h) {
        for (std::size_t k = 0; k < UpdateLayout::head_parts; ++k) {
          feedback.push_back(layout.head(h, k));
          CHECK(layout.part(layout.head(h, k)) == std::string("heads"));
        }
        statistics.insert(statistics.end(), {layout.counts(h), layout.counts_squared(h)});
      }
      statistics.push_back(layout.images());
      // In ascending order, as the exchange lists them (stage_sparse.cpp).
      for (std::size_t v = 0; v < feedback.size(); ++v) CHECK(feedback[v] == v);
      CHECK(layout.feedback() == feedback.size());
      for (std::size_t s = 0; s < statistics.size(); ++s) {
        CHECK(statistics[s] == s);
        CHECK(layout.place(s) == feedback.size() + s);
        CHECK(layout.part(layout.place(s)) == std::string("statistics"));
      }
    }
  }
}

TEST_CASE("values of a sparse vector: clamped, zeros elsewhere and where there is none", "[layerwise][update_layout]") {
  std::vector<std::int32_t> narrow(4, 77);
  const std::vector<std::int64_t> large = {-(std::int64_t{1} << 40U), 5, std::int64_t{1} << 40U};
  mpi::SparseVector vector;
  vector.size = 4;
  vector.index = {0, 1, 3};
  vector.value = large;
  layerwise::fill_from(std::span(narrow), vector);
  using Limits = std::numeric_limits<std::int32_t>;
  CHECK(narrow == std::vector<std::int32_t>{Limits::min(), 5, 0, Limits::max()});
  std::vector<std::int64_t> wide(4, 77);
  layerwise::fill_from(std::span(wide), vector);
  CHECK(wide == std::vector<std::int64_t>{large[0], 5, 0, large[2]});
  layerwise::fill_from(std::span(wide), mpi::SparseVector{});
  CHECK(wide == std::vector<std::int64_t>(4, 0));
  wide.resize(3);
  CHECK(test::message_of(ErrorKind::data, [&] { layerwise::fill_from(std::span(wide), vector); }) ==
        "exchange: a vector of 4 elements; expected 3");
}

TEST_CASE("the number of images comes with an update's statistics", "[layerwise][update_layout]") {
  const UpdateLayout layout(2, 1);
  mpi::Bundle bundle;
  bundle.vectors.resize(layout.place(layout.images()) + 1);
  CHECK(layout.images_observed(bundle) == 0);  // in an update without statistics
  bundle.vectors.back().size = 1;
  bundle.vectors.back().index = {0};
  bundle.vectors.back().value = {300};
  CHECK(layout.images_observed(bundle) == 300);
}

TEST_CASE("a head's parts are all of its sums but the counts, each once", "[layerwise][update_layout]") {
  layerwise::Head::Sums sums;
  std::int64_t number = 0;
  for (std::vector<std::int64_t>* part : layerwise::parts_of(sums)) part->push_back(++number);
  CHECK(sums.linear == std::vector<std::int64_t>{1});
  CHECK(sums.linear_bias == std::vector<std::int64_t>{2});
  CHECK(sums.hidden == std::vector<std::int64_t>{3});
  CHECK(sums.hidden_bias == std::vector<std::int64_t>{4});
  CHECK(sums.output == std::vector<std::int64_t>{5});
  CHECK(sums.count.empty());
}
