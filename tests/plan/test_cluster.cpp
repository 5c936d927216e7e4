// Times of updates on clusters so simple that they can be told without a simulation.
#include "plan/cluster.h"

#include <cmath>

#include "core/error.h"
#include "plan/plan.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::plan;
using bitloom::test::message_of;

namespace {

// Equal hosts that compute for 0.1 s, on links on which short messages take no time.
Cluster even(std::size_t hosts, double latency) {
  Cluster cluster;
  cluster.hosts = hosts;
  cluster.link = {1e15, latency};
  cluster.jitter = 0;
  return cluster;
}

UpdateCosts costs_with(double bytes, double reply) {
  UpdateCosts costs;
  costs.compute = 0.1;
  costs.message_bytes = [bytes](std::size_t workers) { return bytes * static_cast<double>(workers); };
  costs.reply_bytes = reply;
  return costs;
}

}  // namespace

TEST_CASE("one host computes and applies", "[cluster]") {
  UpdateCosts costs = costs_with(1000, 1000);
  costs.choose = 0.02;
  costs.apply = 0.03;
  const Timeline timeline = run_timeline(even(1, 1), 4, 8, 0, costs, 1);
  CHECK(timeline.update == Approx(0.15));
  CHECK(timeline.computing_share == Approx(0.1 / 0.15));
  Cluster slow = even(1, 1);
  slow.compute_scale = 2;
  CHECK(run_timeline(slow, 4, 8, 0, costs, 1).update == Approx(0.3));
}

TEST_CASE("every level of a tree adds its latency twice, unless staleness hides it", "[cluster]") {
  const UpdateCosts costs = costs_with(100, 100);
  CHECK(run_timeline(even(5, 0.02), 5, 4, 0, costs, 1).update == Approx(0.1 + 2 * 0.02).epsilon(1e-3));
  CHECK(run_timeline(even(7, 0.02), 7, 2, 0, costs, 1).update == Approx(0.1 + 4 * 0.02).epsilon(1e-3));
  CHECK(run_timeline(even(7, 0.02), 7, 6, 0, costs, 1).update == Approx(0.1 + 2 * 0.02).epsilon(1e-3));
  // The way to the root and back is shorter than an update: a reply that may be one update late is never waited for.
  CHECK(run_timeline(even(5, 0.02), 5, 4, 1, costs, 1).update == Approx(0.1).epsilon(0.02));
  // Here it takes three of them.
  CHECK(run_timeline(even(5, 0.15), 5, 4, 1, costs, 1).update == Approx(0.5 * (0.1 + 2 * 0.15)).epsilon(0.05));
  CHECK(run_timeline(even(5, 0.15), 5, 4, 4, costs, 1).update == Approx(0.1).epsilon(0.02));
}

TEST_CASE("messages queue on the root's link, in both directions", "[cluster]") {
  Cluster cluster = even(5, 0);
  cluster.link.bits_per_second = 8e5;  // 100,000 bytes a second
  const UpdateCosts costs = costs_with(10000, 5000);
  const double up = 4 * on_wire(10000) / 1e5;
  const double down = 4 * on_wire(5000) / 1e5;
  const Timeline timeline = run_timeline(cluster, 5, 4, 0, costs, 1);
  // The first host that has its reply begins again while the root still sends to the others.
  CHECK(timeline.update > 0.1 + up);
  CHECK(timeline.update < 0.1 + up + down + 1e-6);
  CHECK(timeline.root_link_share == Approx(up / timeline.update).epsilon(1e-6));
  // No staleness lets it carry more: messages of several updates take their turns.
  for (const std::size_t staleness : {1, 4}) {
    const Timeline later = run_timeline(cluster, 5, 4, staleness, costs, 1);
    CHECK(later.update == Approx(up).epsilon(0.05));
    CHECK(later.root_link_share == Approx(1).epsilon(0.05));
  }
  CHECK(on_wire(10000) > 10000 * 1538.0 / 1448);
  CHECK(on_wire(10000) < 11000);
}

TEST_CASE("an update takes as long as the slowest host", "[cluster]") {
  Cluster cluster = even(100, 0);
  cluster.straggler_share = 0.5;
  cluster.straggler_factor = 4;
  CHECK(run_timeline(cluster, 100, 99, 0, costs_with(10, 10), 1).update == Approx(0.4).epsilon(1e-3));
  cluster.straggler_share = 0;
  cluster.jitter = 0.2;
  const Timeline timeline = run_timeline(cluster, 100, 99, 0, costs_with(10, 10), 1);
  CHECK(timeline.update > 0.13);
  CHECK(timeline.update < 0.2);
  CHECK(timeline.slowest_tenth > timeline.update);
}

TEST_CASE("dense sums go twice round the ring", "[cluster]") {
  Cluster cluster = even(4, 0.01);
  cluster.link.bits_per_second = 8e6;
  CHECK(dense_update_seconds(cluster, 0.1, 4e6, 1) == Approx(0.1 + 6 * 0.01 + 6 * on_wire(1e6) / 1e6));
  CHECK(dense_update_seconds(even(1, 1), 0.1, 4e6, 1) == Approx(0.1));
  // With many hosts and short messages, doubling takes fewer steps.
  CHECK(dense_update_seconds(even(64, 0.01), 0.1, 100, 1) == Approx(0.1 + 6 * 0.01).epsilon(1e-6));
  Cluster slow = even(64, 0);
  slow.straggler_share = 0.5;
  CHECK(dense_update_seconds(slow, 0.1, 100, 1) == Approx(0.3).epsilon(1e-3));
  slow.pace_seconds = 0.2;
  CHECK(dense_update_seconds(slow, 0.1, 100, 1) == Approx(0.6).epsilon(1e-3));
}

TEST_CASE("deaths cost time and money, until nothing is left for training", "[cluster]") {
  Cluster cluster = even(100, 0);
  cluster.price_per_hour = 0.04;
  Bill bill = estimate_bill(cluster, 36000, 0.1);
  CHECK(bill.hours == Approx(1));
  CHECK(bill.price == Approx(4));
  CHECK(bill.deaths == 0);
  cluster.deaths_per_hour = 0.36;  // one in 100 s
  cluster.recovery_seconds = 5;
  cluster.checkpoint_seconds = 10;
  bill = estimate_bill(cluster, 36000, 0.1);
  CHECK(bill.lost_share == Approx(0.1));
  CHECK(bill.hours == Approx(1 / 0.9));
  CHECK(bill.deaths == Approx(36 / 0.9));
  cluster.hosts = 2000;
  CHECK(estimate_bill(cluster, 36000, 0.1).lost_share == 1);
}

TEST_CASE("the length of merged messages is read between measured ones", "[cluster]") {
  const std::vector<MergedMessage> measured = {{2, 100}, {4, 180}, {8, 300}};
  CHECK(merged_bytes(measured, 2) == Approx(100));
  CHECK(merged_bytes(measured, 4) == Approx(180));
  CHECK(merged_bytes(measured, 8) == Approx(300));
  CHECK(merged_bytes(measured, 6) > 180);
  CHECK(merged_bytes(measured, 6) < 300);
  CHECK(merged_bytes(measured, 16) == Approx(500));
  CHECK(merged_bytes(measured, 1) == Approx(100 / 1.8));
  CHECK(merged_bytes({{1, 50}}, 3) == Approx(150));
}

TEST_CASE("links are read and written", "[cluster]") {
  const Link link = parse_link("--link", "10Mbit/20ms");
  CHECK(link.bits_per_second == Approx(1e7));
  CHECK(link.latency == Approx(0.02));
  CHECK(to_string(link) == "10Mbit/20ms");
  CHECK(to_string(parse_link("--link", "2.5Gbit/50us")) == "2.5Gbit/50us");
  CHECK(parse_link("--link", "500kbit/0us").bits_per_second == Approx(5e5));
  for (const char* wrong : {"", "10", "Mbit", "500kbit", "10Mbit", "-1Mbit", "0Mbit/1ms", "10Mbit/", "10Mbit/5", "10MB/1ms",
                            "nanMbit", "1e308Gbit/1ms", "10Mbit/1e20s"}) {
    CAPTURE(wrong);
    CHECK(message_of(ErrorKind::usage, [&] {
            parse_link("--link", wrong);
          }).ends_with("expected a rate and a latency such as 100Mbit/20ms"));
  }
}

TEST_CASE("links beyond any are called that", "[cluster]") {
  CHECK(test::has(message_of(ErrorKind::usage, [] { parse_link("--link", "1e308Gbit/1ms"); }),
                  "'1e308Gbit' is more than 1e+15 bits per second, or seconds"));
}

TEST_CASE("clusters that cannot be are refused", "[cluster]") {
  Cluster cluster;
  cluster.hosts = 0;
  CHECK(message_of(ErrorKind::usage, [&] { check(cluster); }) == "`hosts`: 0; expected at least 1");
  cluster = {};
  cluster.straggler_factor = 0.5;
  CHECK(message_of(ErrorKind::usage, [&] { check(cluster); }) == "`straggler_factor`: 0.5; expected at least 1");
  cluster = {};
  cluster.jitter = std::nan("");
  CHECK(message_of(ErrorKind::usage, [&] { check(cluster); }) == "`jitter`: nan; expected 0 or more");
}
