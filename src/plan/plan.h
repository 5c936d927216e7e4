// Needs of a run on a cluster, from a few updates on this machine: bytes, time, memory, money, and which exchange and
// tree suit it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "plan/cluster.h"
#include "plan/virtual_run.h"

namespace bitloom::plan {

struct TreeChoice {
  int fan_in = 0;
  int levels = 0;         // below the root
  double root_bytes = 0;  // bytes that the root receives in an update
  Timeline timeline;
};

struct Plan {
  Timeline timeline;              // timeline of sparse messages, as asked for
  Timeline later;                 // timeline with replies that are one update later
  std::vector<TreeChoice> trees;  // other fan-ins, in their order
  double dense_seconds = 0;       // an update by dense sums
  // Rates of links, bits per second, between which sparse messages are faster; the first may begin at 0, the last end at
  // infinity.
  std::vector<std::pair<double, double>> sparse_ranges;
  std::uint64_t host_memory = 0;      // bytes, of the host with the most workers
  std::uint64_t survivor_memory = 0;  // the same with half of the hosts, who carry all workers
  Bill bill;                          // bill for that number of updates
};

struct PlanOptions {
  std::size_t workers = 1;
  int fan_in = 8;
  std::size_t staleness = 0;
  double updates = 0;            // number of updates to pay for
  std::uint64_t data_bytes = 0;  // bytes of all images of the training set
  std::size_t images = 0;        // number of images in it
  std::uint64_t seed = 1;
};

// The costs of an update on hosts like this machine.
UpdateCosts costs_of(const VirtualResult& run, std::size_t workers, std::size_t hosts);

// The length of the merged message of a number of workers, between and beyond measured ones (in logarithms).
double merged_bytes(const std::vector<MergedMessage>& measured, std::size_t workers);

// Throws what check(Cluster) does.
Plan make_plan(const VirtualResult& run, const Cluster& cluster, const PlanOptions& options);

}  // namespace bitloom::plan
