#include "plan/cluster.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/random.h"
#include "core/text.h"

namespace bitloom::plan {
namespace {

// 1448 bytes of a TCP segment take 1538 on Ethernet, preamble and gap included.
constexpr double segment = 1448;
constexpr double segment_on_wire = 1538;
constexpr double envelope = 64;  // bytes of Open MPI's header of a message

constexpr std::size_t settling = 8;  // updates before times count
constexpr std::size_t counted = 64;

// Far beyond any link, and far from where sums of such numbers are infinite: bits per second, or seconds.
constexpr double most = 1e15;

// A number followed by one of the units.
double parse_with_unit(const std::string& label, const std::string& text, bool zero,
                       const std::vector<std::pair<const char*, double>>& units, const char* expected) {
  for (const auto& [unit, factor] : units) {
    if (!text.ends_with(unit)) continue;
    const auto number = parse_double(text.substr(0, text.size() - std::string_view(unit).size()));
    if (!number || !(*number > 0 || (zero && *number == 0))) break;
    if (*number * factor <= most) return *number * factor;
    fail(ErrorKind::usage, "{}: '{}' is more than {:g} bits per second, or seconds; expected {}", label, text, most, expected);
  }
  fail(ErrorKind::usage, "{}: '{}'; expected {}", label, text, expected);
}

// By how much a host is slower in an update than on average.
double slowness(const Cluster& cluster, std::uint64_t seed, std::size_t update, std::size_t host) {
  Random random(seed, Stream::cluster, update, host);
  const double factor = std::exp(cluster.jitter * random.normal() - 0.5 * cluster.jitter * cluster.jitter);
  return random.uniform() < cluster.straggler_share ? factor * cluster.straggler_factor : factor;
}

}  // namespace

Link parse_link(const std::string& label, const std::string& text) {
  constexpr const char* expected = "a rate and a latency such as 100Mbit/20ms";
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos) fail(ErrorKind::usage, "{}: '{}'; expected {}", label, text, expected);
  Link link;
  link.bits_per_second =
      parse_with_unit(label, text.substr(0, slash), false, {{"Gbit", 1e9}, {"Mbit", 1e6}, {"kbit", 1e3}}, expected);
  link.latency = parse_with_unit(label, text.substr(slash + 1), true, {{"ms", 1e-3}, {"us", 1e-6}, {"s", 1}}, expected);
  return link;
}

std::string to_string(const Link& link) {
  const auto scaled = [](double value, const std::vector<std::pair<double, const char*>>& units) {
    for (const auto& [factor, unit] : units) {
      if (value >= factor) return fmt::format("{:g}{}", value / factor, unit);
    }
    return fmt::format("{:g}{}", value / units.back().first, units.back().second);
  };
  return fmt::format("{}/{}", scaled(link.bits_per_second, {{1e9, "Gbit"}, {1e6, "Mbit"}, {1e3, "kbit"}}),
                     scaled(link.latency, {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}}));
}

void check(const Cluster& cluster) {
  const auto positive = [](const char* field, double value) {
    if (!(value > 0)) fail_field(ErrorKind::usage, field, "{}; expected a number above 0", value);
  };
  const auto not_negative = [](const char* field, double value) {
    if (!(value >= 0)) fail_field(ErrorKind::usage, field, "{}; expected 0 or more", value);
  };
  if (cluster.hosts == 0) fail_field(ErrorKind::usage, "hosts", "0; expected at least 1");
  positive("compute_scale", cluster.compute_scale);
  positive("checkpoint_seconds", cluster.checkpoint_seconds);
  not_negative("jitter", cluster.jitter);
  not_negative("deaths_per_hour", cluster.deaths_per_hour);
  not_negative("recovery_seconds", cluster.recovery_seconds);
  not_negative("price_per_hour", cluster.price_per_hour);
  if (!(cluster.straggler_share >= 0) || cluster.straggler_share > 1) {
    fail_field(ErrorKind::usage, "stragglers", "{}; expected a share of the hosts, 0 to 1", cluster.straggler_share);
  }
  if (!(cluster.straggler_factor >= 1)) {
    fail_field(ErrorKind::usage, "straggler_factor", "{}; expected at least 1", cluster.straggler_factor);
  }
}

double on_wire(double bytes) {
  const double all = bytes + envelope;
  return all + std::ceil(all / segment) * (segment_on_wire - segment);
}

Timeline run_timeline(const Cluster& cluster, std::size_t workers, int fan_in, std::size_t staleness, const UpdateCosts& costs,
                      std::uint64_t seed) {
  const std::size_t hosts = cluster.hosts;
  const auto fan = static_cast<std::size_t>(fan_in);
  const double byte_seconds = 8 / cluster.link.bits_per_second;
  const auto carried = [&](std::size_t host) { return (host + 1) * workers / hosts - host * workers / hosts; };
  std::vector<std::size_t> below(hosts);  // workers of a host and those below it
  for (std::size_t host = hosts; host-- > 0;) {
    below[host] += carried(host);
    if (host > 0) below[(host - 1) / fan] += below[host];
  }
  std::vector<double> bytes(hosts);  // bytes that a host sends up
  for (std::size_t host = 1; host < hosts; ++host) bytes[host] = on_wire(costs.message_bytes(below[host]));
  const double reply = on_wire(costs.reply_bytes) * byte_seconds;
  const double computing_time = cluster.pace_seconds > 0 ? cluster.pace_seconds : costs.compute * cluster.compute_scale;
  const double each = computing_time * static_cast<double>(hosts) / static_cast<double>(workers);

  const std::size_t updates = settling + counted + staleness;
  std::vector<double> free(hosts, 0);  // when a host can begin its next update
  std::vector<double> done(hosts);     // when it has computed, and merged what came
  std::vector<std::vector<double>> replied(staleness + 1, std::vector<double>(hosts, 0));  // by update, around
  // When the link of a host is free again: with staleness messages of several updates are on their way. Those that go up and
  // the replies that go down are taken to leave a host in the middle of the tree without waiting for one another.
  std::vector<double> receiving(hosts, 0), sending_up(hosts, 0), sending_down(hosts, 0);
  std::vector<double> ends;
  double latency = 0;
  double computing = 0;
  double root_busy = 0;
  std::vector<std::pair<double, double>> arriving;  // a host's messages: when they are sent, and how long they take
  for (std::size_t n = 0; n < updates; ++n) {
    double all_computing = 0;
    std::vector<double> computed(hosts);
    for (std::size_t host = 0; host < hosts; ++host) {
      const double seconds = each * static_cast<double>(carried(host)) * slowness(cluster, seed, n, host);
      all_computing += seconds;
      computed[host] = free[host] + seconds;
    }
    // Up. A host's link takes one message after the other, in the order in which they are sent.
    double busy = 0;
    for (std::size_t host = hosts; host-- > 0;) {
      arriving.clear();
      for (std::size_t child = host * fan + 1; child < std::min(host * fan + 1 + fan, hosts); ++child) {
        const double begins = std::max(done[child], sending_up[child]);
        sending_up[child] = begins + bytes[child] * byte_seconds;
        arriving.emplace_back(begins + cluster.link.latency, bytes[child] * byte_seconds);
      }
      std::sort(arriving.begin(), arriving.end());
      double& link = receiving[host];
      double merging = 0;
      for (const auto& [sent, takes] : arriving) {
        link = std::max(link, sent) + takes;
        merging += takes / byte_seconds * costs.merge_per_byte;
        if (host == 0) busy += takes;
      }
      done[host] = std::max(computed[host], arriving.empty() ? 0 : link) + merging * cluster.compute_scale;
    }
    // Down.
    std::vector<double>& at = replied[n % (staleness + 1)];
    at[0] = done[0] + costs.choose * cluster.compute_scale;
    for (std::size_t host = 0; host < hosts; ++host) {
      // With staleness a host is computing when a reply arrives, and looks for it after each of its workers.
      double& link = sending_down[host];
      link = std::max(link, at[host] + (host > 0 && staleness > 0 ? 0.5 * each : 0));
      for (std::size_t child = host * fan + 1; child < std::min(host * fan + 1 + fan, hosts); ++child) {
        link += reply;
        at[child] = link + cluster.link.latency;
      }
    }
    double end = 0;
    for (std::size_t host = 0; host < hosts; ++host) {
      const double sent = std::max(done[host], host == 0 ? at[0] : 0);
      const bool waits = n >= staleness;
      const double arrived = waits ? replied[(n - staleness) % (staleness + 1)][host] : 0;
      free[host] = std::max(sent, arrived) + costs.apply * cluster.compute_scale;
      end = std::max(end, free[host]);
      if (n >= settling) latency += at[host] - computed[host];
    }
    ends.push_back(end);
    if (n >= settling) {
      computing += all_computing / static_cast<double>(hosts);
      root_busy += busy;
    }
  }
  Timeline timeline;
  const auto measured = static_cast<double>(updates - settling);
  const double whole = ends.back() - ends[settling - 1];
  timeline.update = whole / measured;
  timeline.latency = latency / measured / static_cast<double>(hosts);
  timeline.computing_share = computing / whole;
  timeline.root_link_share = root_busy / whole;
  std::vector<double> lengths;
  for (std::size_t n = settling; n < updates; ++n) lengths.push_back(ends[n] - ends[n - 1]);
  std::sort(lengths.begin(), lengths.end());
  timeline.slowest_tenth = lengths[lengths.size() * 9 / 10];
  return timeline;
}

double dense_update_seconds(const Cluster& cluster, double compute, double bytes, std::uint64_t seed) {
  const auto hosts = static_cast<double>(cluster.hosts);
  const double mean = cluster.pace_seconds > 0 ? cluster.pace_seconds : compute * cluster.compute_scale;
  // All wait for the slowest.
  double computing = 0;
  for (std::size_t n = 0; n < counted; ++n) {
    double slowest = 0;
    for (std::size_t host = 0; host < cluster.hosts; ++host) slowest = std::max(slowest, slowness(cluster, seed, n, host));
    computing += mean * slowest / static_cast<double>(counted);
  }
  if (cluster.hosts == 1) return computing;
  const double byte_seconds = 8 / cluster.link.bits_per_second;
  // Twice round the ring, less one step each, with a host's share in every step; or all of it to one other host after the
  // other.
  const double ring = 2 * (hosts - 1) * (cluster.link.latency + on_wire(bytes / hosts) * byte_seconds);
  const double doubling = std::ceil(std::log2(hosts)) * (cluster.link.latency + on_wire(bytes) * byte_seconds);
  return computing + std::min(ring, doubling);
}

Bill estimate_bill(const Cluster& cluster, double updates, double update_seconds) {
  Bill bill;
  const double useful = updates * update_seconds;
  const double per_second = static_cast<double>(cluster.hosts) * cluster.deaths_per_hour / 3600;
  const double cost_of_death = cluster.recovery_seconds + 0.5 * cluster.checkpoint_seconds;
  // Share of every second that deaths take (first order; deaths while recovering start it again).
  bill.lost_share = std::min(1.0, per_second * cost_of_death);
  if (bill.lost_share < 1) {
    bill.hours = useful / (1 - bill.lost_share) / 3600;
    bill.deaths = bill.hours * 3600 * per_second;
    bill.price = bill.hours * static_cast<double>(cluster.hosts) * cluster.price_per_hour;
  }
  return bill;
}

}  // namespace bitloom::plan
