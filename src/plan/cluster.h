// A cluster that is to be rented, and what an update costs its hosts: one process per host, all cores in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace bitloom::plan {

struct Link {
  double bits_per_second = 1e9;  // each way
  double latency = 0.001;        // seconds, one way, between any two hosts
};

// "100Mbit/20ms", "10Gbit/50us". Throws Error(usage) that begins with `label`.
Link parse_link(const std::string& label, const std::string& text);
std::string to_string(const Link& link);

struct Cluster {
  std::size_t hosts = 1;
  Link link;
  double compute_scale = 1;     // seconds of a host's computing for one of this machine's
  double pace_seconds = 0;      // if not 0: what computing for an update takes a host instead of what was measured
  double jitter = 0.05;         // standard deviation of the logarithm of a host's time for an update
  double straggler_share = 0;   // share of the hosts in an update
  double straggler_factor = 3;  // factor by which these take longer
  double deaths_per_hour = 0;   // deaths of one host
  double recovery_seconds = 3;  // from a death to the next update, without what is computed again
  double checkpoint_seconds = 5;
  double price_per_hour = 0;  // price of one host
};

// Throws Error(usage) that names the option.
void check(const Cluster& cluster);

// Costs of an update.
struct UpdateCosts {
  double compute = 0;                                        // seconds of a host, for its workers, messages included
  double choose = 0;                                         // seconds of the root between the last message and its reply
  double apply = 0;                                          // seconds of every host for the reply
  double merge_per_byte = 0;                                 // seconds of a rank above others
  std::function<double(std::size_t workers)> message_bytes;  // bytes of the merged message of that number of workers
  double reply_bytes = 0;
};

// Bytes on the wire for a message's: Ethernet, IP and TCP headers, and MPI's.
double on_wire(double bytes);

struct Timeline {
  double update = 0;           // mean seconds from one update to the next
  double latency = 0;          // mean seconds from the end of a host's computing to the reply's arrival
  double slowest_tenth = 0;    // seconds that one update in ten takes at least
  double computing_share = 0;  // share of the hosts' time
  double root_link_share = 0;  // share of the time in which the root's incoming link is busy
};

// The course of updates on a tree of hosts, event by event. `workers` are spread over the hosts; staleness as in
// mpi::ExchangeOptions. Times of hosts are drawn (seed).
Timeline run_timeline(const Cluster& cluster, std::size_t workers, int fan_in, std::size_t staleness, const UpdateCosts& costs,
                      std::uint64_t seed);

// The time of an update by dense sums, in a ring of all hosts (Patarasuk, Yuan 2009) or by recursive doubling, whichever is
// faster. compute: seconds of a host for its images.
double dense_update_seconds(const Cluster& cluster, double compute, double bytes, std::uint64_t seed);

struct Bill {
  double hours = 0;       // expected, losses included
  double lost_share = 0;  // share of that for recovering and computing what was lost; 1: it never ends
  double price = 0;
  double deaths = 0;
};

// A run of a number of updates, of which every death costs a recovery and, on average, half of what is computed between
// checkpoints.
Bill estimate_bill(const Cluster& cluster, double updates, double update_seconds);

}  // namespace bitloom::plan
