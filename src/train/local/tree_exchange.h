// Rounds of local steps between the processes of an MPI job, along the tree that binary training has for its messages
// (mpi/bundle_tree.h): what workers have learned is merged wherever it meets, the root ends rounds and sends the replies down,
// while all of them train. The launcher notices who has vanished, and starts the
// job again.
//
// The root's folder is the exchange's memory: states and every reply, as a FolderExchange has them. A reply lies there before
// it is sent, so that a job that is started again goes on from the last reply, with whichever workers come: nothing is lost
// that was counted, and messages that were not are sent again by whoever still has them.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "core/clock.h"
#include "core/differences.h"
#include "core/patience.h"
#include "mpi/bundle_tree.h"
#include "mpi/comm.h"
#include "train/local/folder_exchange.h"

namespace bitloom::train {

struct TreeExchangeOptions {
  FolderOptions memory;  // the root's; of the others all but the folder counts
  int fan_in = 8;
  // Shortest silence of a worker after which it counts as lost; without it the watchdog's. 0: never.
  std::optional<double> patience_seconds = std::nullopt;
};

class TreeExchange final : public LocalExchange {
 public:
  // Collective. comm: one process of each worker, for this exchange alone. stop: whether this process is asked to stop; called
  // by another thread. identity, founded, field_name: as FolderExchange has them. Throws Error(usage), where MPI has but one
  // thread, say, and what FolderExchange does.
  TreeExchange(mpi::Comm comm, TreeExchangeOptions options, const nlohmann::json& identity, const nlohmann::json& founded,
               const FieldName& field_name, std::function<bool()> stop);
  ~TreeExchange() override;

  const std::string& worker() const override { return options_.memory.worker; }
  std::string place() const override;
  std::uint64_t state_every() const override { return options_.memory.state_every; }
  const nlohmann::json& founded() const override { return founded_; }

  // Given once, upon which this begins to serve others.
  std::optional<State> newest_state() override;
  std::optional<std::uint64_t> newest_rounds() const override { return rounds_of_state_; }
  // Collective, where there is no state: the root's.
  void publish_first_state(TensorFile file, std::uint64_t steps) override;
  void publish_state(std::uint64_t rounds, TensorFile file) override;

  void join(std::uint64_t /*round*/) override {}
  // Waits for all others, which leave after the last round, or when they hear that they are to stop. Throws mpi::PeerLost when
  // that takes far longer than a round has.
  void leave(Leaving why, const SignOfLife& alive) override;
  std::size_t workers() const override { return static_cast<std::size_t>(comm_.size()); }
  bool is_stopping() const override { return is_stopping_; }
  std::uint64_t publish(const mpi::Bundle& bundle) override;
  bool has_message(std::uint64_t round) const override { return round < published_; }
  bool keeps_messages() const override { return false; }
  bool has_reply(std::uint64_t round) const override;
  bool try_to_end(std::uint64_t round, const std::optional<RoundReply>& last, double waited_seconds,
                  double deadline_seconds) override;
  std::optional<RoundReply> read_reply(std::uint64_t round) override;
  std::uint64_t ended() const override { return ended_; }
  std::optional<TreeTraffic> take_traffic() override;
  void clean() override;

 private:
  void share_names();
  void open_memory(const nlohmann::json& identity, const nlohmann::json& founded, const FieldName& field_name);
  void share_memory();
  void start();

  // The thread that serves the tree.
  void serve();
  bool wait_and_look();
  bool is_complete(std::uint64_t round);
  bool serve_round(std::uint64_t round);
  void keep_reply(RoundReply reply, Clock::time_point start);
  RoundReply take_reply(std::uint64_t round, mpi::Bundle bundle);
  double shortest_patience() const { return options_.patience_seconds.value_or(comm_.settings().watchdog_seconds); }
  void check_patience(Patience& waiting, const std::string& who = "a worker") const;
  void ask_for_patience();
  void check_silence();
  void rethrow() const;

  mpi::Comm comm_;
  TreeExchangeOptions options_;
  std::function<bool()> stop_;
  std::vector<std::string> names_;  // of workers, by rank
  nlohmann::json founded_;
  std::optional<FolderExchange> memory_;  // at the root
  std::optional<State> state_;
  std::optional<std::uint64_t> rounds_of_state_;
  std::uint64_t published_ = 0;  // the round after that of this worker's last message

  // The thread's alone, once it has started.
  mpi::BundleTree tree_;
  std::uint64_t next_ = 0;  // round that is to end
  std::map<std::string, std::uint64_t> counted_;
  std::string hash_;                                // of the last reply, at the root
  std::optional<Clock::time_point> present_since_;  // messages for it are here
  double longest_round_ = 0;                        // seconds
  std::uint64_t own_next_ = 0;                      // round after that of this worker's last message
  std::uint64_t signs_ = 0;                         // of the root's life
  Clock::time_point told_ = Clock::now();           // others of it, at the root
  std::vector<Patience> silent_;                    // by rank, at the root: since a message was counted

  mutable std::mutex mutex_;
  std::deque<mpi::Bundle> outgoing_;             // this worker's
  std::map<std::uint64_t, RoundReply> replies_;  // the last ones
  TreeTraffic traffic_;
  std::exception_ptr error_;
  std::atomic<double> deadline_seconds_;
  std::atomic<std::uint64_t> ended_ = 0;
  std::atomic<bool> is_stopping_ = false, is_leaving_ = false, is_left_alone_ = false, is_over_ = false;
  std::atomic<bool> wants_stop_ = false;
  std::thread thread_;
};

}  // namespace bitloom::train
