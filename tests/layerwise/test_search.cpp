#include "layerwise/search.h"

#include <nlohmann/json.hpp>

#include "tests/layerwise/cases.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

// Two layers, each with a stage of that many epochs.
NetSpec net_of(std::size_t first, std::size_t second) {
  NetSpec net =
      parse_net(R"({"layers": [{"name": "a", "width": 64}, {"name": "b", "inputs": ["a"], "width": 64}]})", "net.json");
  net.stages.at(0).epochs = first;
  net.stages.at(1).epochs = second;
  return net;
}

std::vector<std::string> names_of(const std::vector<Variant>& variants) {
  std::vector<std::string> names;
  for (const Variant& variant : variants) names.push_back(variant.name);
  return names;
}

std::string complaint(const NetSpec& net, const std::vector<std::string>& widths, std::size_t rounds) {
  return message_of(ErrorKind::usage, [&] { check_rounds(make_variants(net, {{"b.width", widths}}), rounds); });
}

}  // namespace

TEST_CASE("the better half of a ranking goes on, in the order in which variants were given") {
  const std::vector<Variant> variants = make_variants(net_of(4, 4), {{"b.width", {"64", "128", "192", "256", "320"}}});
  const auto half = [&](const std::vector<double>& accuracies) {
    return names_of(better_half(variants, rank_variants(variants, accuracies)));
  };
  CHECK(half({0.5, 0.1, 0.7, 0.6, 0.2}) == std::vector<std::string>{"b.width=64", "b.width=192", "b.width=256"});
  // Variants given first win among equals.
  CHECK(half({0.5, 0.5, 0.5, 0.5, 0.6}) == std::vector<std::string>{"b.width=64", "b.width=128", "b.width=320"});
  const std::vector<Variant> one{variants.front()};
  CHECK(names_of(better_half(one, rank_variants(one, {0.3}))) == std::vector<std::string>{"b.width=64"});
}

TEST_CASE("nets with fewer epochs keep one in each stage that trains, and all else") {
  const NetSpec net = net_of(25, 2);
  NetSpec half = with_fewer_epochs(net, 2);
  CHECK(half.stages[0].epochs == 13);
  CHECK(half.stages[1].epochs == 1);
  half.stages[0].epochs = 25;
  half.stages[1].epochs = 2;
  CHECK(to_json(half) == to_json(net));
  CHECK(with_fewer_epochs(net, 8).stages[0].epochs == 3);
  CHECK(with_fewer_epochs(net, 8).stages[1].epochs == 1);
  CHECK(to_json(with_fewer_epochs(net, 1)) == to_json(net));
  CHECK(with_fewer_epochs(net_of(0, 4), 4).stages[0].epochs == 0);
}

TEST_CASE("rounds that would repeat the last net, or begin with less than an epoch, are refused") {
  CHECK(complaint(net_of(4, 8), {"64", "128", "192"}, 3) == "no error");
  CHECK(has(complaint(net_of(4, 8), {"64", "128", "192"}, 4),
            "`search_rounds`: 4 rounds for 3 nets; expected at most 3, since each"));
  CHECK(has(complaint(net_of(4, 8), {"64"}, 2), "2 rounds for 1 net; expected at most 1"));
  CHECK(has(complaint(net_of(1, 3), {"64", "128", "192", "256"}, 3),
            "3 rounds, each half as long as the next, need 4 epochs; no stage of 'b.width=64' has more than 3"));
  CHECK(complaint(net_of(1, 3), {"64", "128", "192", "256"}, 2) == "no error");
  CHECK(has(complaint(net_of(0, 0), {"64"}, 1), "no earlier stage trains"));
  CHECK(has(complaint(net_of(4, 8), {"64"}, 0), "`search_rounds`: 0; expected at least 1"));

  const NetSpec net = net_of(8, 2);
  const std::string stage = net.stages.at(1).name;
  const auto equal = [&](const std::vector<std::string>& epochs) {
    return message_of(ErrorKind::usage, [&] { check_rounds(make_variants(net, {{stage + ".epochs", epochs}}), 2); });
  };
  CHECK(has(equal({"1", "2"}), "are the same net in the first of 2 rounds"));
  CHECK(equal({"2", "4"}) == "no error");
}
