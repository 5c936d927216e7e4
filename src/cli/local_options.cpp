#include "cli/local_options.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>
#include <vector>

#include "cli/run_folder.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/progress.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

// Name of a machine, as part of a worker's name.
std::string plain_name(std::string host) {
  host = host.substr(0, host.find('.'));
  std::erase_if(host, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_'; });
  return host.empty() ? "worker" : host;
}

// "node7-3fa21c": of this machine, and unlike those of other runs on it.
std::string new_worker_name() {
  return fmt::format("{}-{:06x}", plain_name(mpi::host_name()), std::random_device()() & 0xFFFFFFU);
}

// "node7-2": of the third worker on that machine; the same when a job is started again with other machines.
std::string name_in_job(mpi::Comm& comm, std::size_t ranks_per_worker) {
  const std::string shared = comm.broadcast_text(nlohmann::json(mpi::host_names(comm)).dump());
  std::vector<std::string> names = nlohmann::json::parse(shared).get<std::vector<std::string>>();
  std::ranges::transform(names, names.begin(), plain_name);
  const std::size_t own = static_cast<std::size_t>(comm.rank()) / ranks_per_worker * ranks_per_worker;
  std::size_t before = 0;
  for (std::size_t first = 0; first < own; first += ranks_per_worker) before += names[first] == names[own] ? 1 : 0;
  return fmt::format("{}-{}", names[own], before);
}

}  // namespace

void LocalSettings::declare(Options& options) {
  options.group("Local steps");
  options.choice(
      "exchange", exchange, {"dense", "local"},
      "Exchange between workers: dense (gradients in every step, between the processes of a run) or local (each trains "
      "by itself and sends, every --inner-steps, what it has learned: processes of a run to one another, runs of their "
      "own through the folder --through)");
  options.text("through", through, "FOLDER",
               "Folder that the workers share, on NFS say, for their messages; they come and go as they like");
  options.text("worker", worker, "NAME",
               "Name of this worker, which no other at work in the folder has; without it: the machine's, and a number");
  options.count("workers", workers, 1, 1000000,
                "Number of workers that the first round waits for, and the default learning rate is for");
  options.count("inner-steps", inner_steps, 1, any_count,
                "Steps of a worker by itself between two messages about the same parameters");
  options.count("fragments", fragments, 1, 100000,
                "Number of parts of the parameters, each with messages of its own at other steps; a divisor of --inner-steps");
  options.count("delay", delay, 0, any_count,
                "Steps for which training goes on while a message is under way; 0: it waits for the reply");
  options.number("outer-rate", outer_rate, 0, 100, "Learning rate of the shared parameters, by the mean of the differences",
                 true);
  options.number("outer-momentum", outer_momentum, 0, 1, "Nesterov momentum of the shared parameters; 0 disables it");
  options.number(
      "sent-share", sent_share, 0, 1,
      "Share of the differences that a message has, the largest of every 4096; the rest waits for later ones (--kept-share)",
      true);
  options.number("kept-share", kept_share, 0, 1,
                 "Share of what a message has left out that is kept for the next one, so that what is old fades; 1: all of it");
  options.choice("value-bits", value_bits, {"1", "2", "4", "8", "16", "all"},
                 "Bits of a difference in a message, sign included: 1, 2, 4, 8, 16 or all");
  options.number(
      "deadline", deadline, 0, 1e9,
      "Seconds that a worker waits for others' messages, which count in the next round then; 0: half of what its own "
      "steps took");
  options.number("quorum", quorum, 0, 1, "Share of the workers' messages that is enough after the deadline");
  options.count("fan-in", fan_in, 1, 1000000, "Largest number of processes right below one in the tree that messages go along");
  options.count("ranks-per-worker", ranks_per_worker, 1, 1000000,
                "Number of processes of the job, neighbours by rank, that are one worker and share its batch");
  std::vector<Options::Need> needs;
  for (const char* option :
       {"through", "worker", "workers", "inner-steps", "fragments", "delay", "outer-rate", "outer-momentum", "sent-share",
        "kept-share", "value-bits", "deadline", "quorum", "fan-in", "ranks-per-worker"}) {
    needs.push_back({option, "exchange", {"local"}});
  }
  needs.push_back({"fan-in", "through", {""}});
  options.needs(needs);
}

void LocalSettings::settle(mpi::Comm& comm) {
  if (!is_local()) return;
  rank_ = comm.rank();
  if (is_job()) {
    if (!mpi::launched_by_mpi()) {
      fail(ErrorKind::usage,
           "--through: missing; expected the folder that workers share, or with --exchange local several processes "
           "(mpirun, `bitloom launch`)");
    }
    for (const auto& [option, is_given] : {std::pair("worker", !worker.empty()), std::pair("workers", workers != 1)}) {
      if (is_given)
        fail(ErrorKind::usage, "--{}: given; expected with --through alone: here workers are the job's processes", option);
    }
    if (comm.size() % static_cast<int>(ranks_per_worker) != 0) {
      fail(ErrorKind::usage, "--ranks-per-worker: {}; expected a divisor of the {} processes", ranks_per_worker, comm.size());
    }
    job_name_ = name_in_job(comm, ranks_per_worker);
    job_workers_ = static_cast<std::size_t>(comm.size()) / ranks_per_worker;
    return;
  }
  if (ranks_per_worker != 1) {
    fail(ErrorKind::usage,
         "--ranks-per-worker: {} with --through, where all processes of a run are one worker; expected it without",
         ranks_per_worker);
  }
  through = kept_path(through);
  if (worker.empty()) worker = new_worker_name();
  worker = comm.broadcast_text(worker);
}

mpi::Comm LocalSettings::make_worker(mpi::Comm& comm) const { return comm.split(number(), comm.rank(), "worker"); }

std::string LocalSettings::own_folder(const std::string& out) const {
  return is_job() && number() > 0 ? (fs::path(out) / "workers" / job_name_).string() : out;
}

double LocalSettings::choose_rate(double of_one, double most) {
  if (!is_local()) return of_one;
  most_factor_ = most;
  rate_factor_ = std::min(std::sqrt(static_cast<double>(expected_workers())), most);
  chosen_rate_ = of_one * rate_factor_;
  return *chosen_rate_;
}

std::string LocalSettings::described_rate() const {
  if (!chosen_rate_) return "";
  if (rate_factor_ == 1) {
    const bool may_be_more = expected_workers() == 1 && !is_job() && most_factor_ > 1;
    return fmt::format("\nlearning rate {:.3g}, as for one worker{}", *chosen_rate_,
                       may_be_more ? "; with --workers N it is for N of them" : "");
  }
  return fmt::format(
      "\nlearning rate {:.3g}: {:.3g} times that of one process with such batches, for {} workers (--learning-rate)",
      *chosen_rate_, rate_factor_, expected_workers());
}

std::uint64_t LocalSettings::stream_seed(std::uint64_t seed) const {
  if (!is_local()) return seed;
  return Hasher().update(seed).update(std::string_view(is_job() ? fmt::format("{}", number()) : worker)).finish().low;
}

train::LocalOptions LocalSettings::make_options() const {
  train::LocalOptions options;
  options.inner_steps = inner_steps;
  options.fragments = fragments;
  options.delay = delay;
  options.outer = {outer_rate, outer_momentum};
  const std::size_t chunk = options.filter.chunk;
  const double count = sent_share * static_cast<double>(chunk);
  options.filter.count = std::clamp<std::size_t>(static_cast<std::size_t>(std::lround(count)), 1, chunk);
  options.filter.value_bits = value_bits == "all" ? 0 : static_cast<unsigned>(std::stoul(value_bits));
  options.kept_share = kept_share;
  options.deadline_seconds = deadline;
  train::check(options);
  return options;
}

train::FolderOptions LocalSettings::make_folder_options(const std::string& out) const {
  train::FolderOptions options;
  options.folder = is_job() ? fs::path(out) / "exchange" : fs::path(through);
  options.worker = is_job() ? job_name_ : worker;
  if (!is_job()) options.run = out;
  options.quorum = quorum;
  const mpi::TopFilter filter = make_options().filter;
  options.chunk = filter.chunk;
  options.reply_count = std::min(filter.chunk, train::messages_of_reply * filter.count);
  return options;
}

std::string LocalSettings::described(std::uint64_t parameters) const {
  return fmt::format(
      "local steps: worker {} sends {:.3g}% of what it learns in {} steps, {}; {} besides for what is shared and what is "
      "kept{}",
      is_job() ? job_name_ : worker, 100 * sent_share, inner_steps,
      is_job() ? "along the tree of this job's processes" : "through " + through,
      format_bytes(train::local_bytes(make_options(), parameters)), described_rate());
}

nlohmann::json LocalSettings::identity() const {
  return {{"inner_steps", inner_steps},       {"fragments", fragments},   {"outer_rate", outer_rate},
          {"outer_momentum", outer_momentum}, {"sent_share", sent_share}, {"value_bits", value_bits}};
}

}  // namespace bitloom::cli
