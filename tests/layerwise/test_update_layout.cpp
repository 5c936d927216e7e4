#include "layerwise/update_layout.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

using bitloom::layerwise::UpdateLayout;

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
      // In ascending order, because Stage::make_exchange lists them so.
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
