// Options of local steps: workers that train by themselves and exchange what they learn, through a shared folder or, as
// processes of one job, along a tree.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "cli/options.h"
#include "mpi/comm.h"
#include "train/local/folder_exchange.h"
#include "train/local/local_steps.h"
#include "train/local/tree_exchange.h"

namespace bitloom::cli {

struct LocalSettings {
  std::string exchange = "dense";
  std::string through;
  std::string worker;
  std::size_t workers = 1;
  std::size_t inner_steps = train::LocalOptions().inner_steps, fragments = 1, delay = 0;
  double outer_rate = train::OuterOptions().rate, outer_momentum = train::OuterOptions().momentum;
  double sent_share = mpi::TopFilter().share();
  double kept_share = train::LocalOptions().kept_share;  // by default; nets differ in it
  std::string value_bits = std::to_string(mpi::TopFilter().value_bits);
  double deadline = 0, quorum = 0.5;
  std::size_t fan_in = 8;
  std::size_t ranks_per_worker = 1;

  void declare(Options& options);
  bool is_local() const { return exchange == "local"; }
  // Whether workers are the processes of a job (mpirun).
  bool is_job() const { return is_local() && through.empty(); }
  // Collective. Gives the worker a name if it has none, and the folder an absolute path. Throws Error(usage).
  void settle(mpi::Comm& comm);
  // Collective, in a job: the processes of this one's worker, whose errors are not those of others.
  mpi::Comm make_worker(mpi::Comm& comm) const;
  // The learning rate of own steps, where none is given: that of one process with a worker's batches times the root of the
  // number of workers, up to `most`, for own steps have to stay stable however many others there are. What workers learn is
  // averaged, so that its noise shrinks as that of larger batches does (models/RESULTS.md, "Local steps instead of gradients").
  // As it is without local steps.
  double choose_rate(double of_one, double most);
  // Number of this worker in a job, and whether this process is the one that speaks for it.
  int number() const { return is_job() ? rank_ / static_cast<int>(ranks_per_worker) : 0; }
  bool is_first() const { return is_job() ? rank_ % static_cast<int>(ranks_per_worker) == 0 : rank_ == 0; }
  // The run folder of this worker, where `out` is the job's, and rank 0's.
  std::string own_folder(const std::string& out) const;
  // Seed of the worker's own stream of examples.
  std::uint64_t stream_seed(std::uint64_t seed) const;
  train::LocalOptions make_options() const;
  // With the job's run folder.
  train::FolderOptions make_folder_options(const std::string& out) const;
  // "local steps: worker a sends 1.56% of what it learns in 100 steps, ...", and, where the learning rate has been chosen, a
  // line of it: "learning rate 0.0085: 2.83 times that of one process with such batches, for 8 workers".
  std::string described(std::uint64_t parameters) const;
  // Settings that all workers have to agree on.
  nlohmann::json identity() const;

 private:
  // That are known before they train.
  std::size_t expected_workers() const { return is_job() ? job_workers_ : workers; }
  std::string described_rate() const;

  std::string job_name_;  // of this worker among those of the job: its machine's, and which of this machine's it is
  int rank_ = 0;
  std::size_t job_workers_ = 1;
  std::optional<double> chosen_rate_;
  double rate_factor_ = 1;
  double most_factor_ = 1;  // by which more workers than these would raise it
};

}  // namespace bitloom::cli
