// Local steps: each worker trains by itself for a while, then sends what it has learned, the difference between the parameters
// that all share and its own, as a sparse message with error feedback; the sum of such messages moves the shared parameters,
// from which all go on (Douillard et al. 2023, DiLoCo; in fragments, and used some steps after it was sent: Douillard et al.
// 2025, Streaming DiLoCo; chunked top k, coarsely rounded: Sarfi et al. 2025, SparseLoCo). Workers are runs of their own,
// each with its own optimiser state and its own stream of examples.
//
// Training's steps are common time: round n, that of fragment n mod F of the parameters, follows step (n + 1) H / F; a worker
// that is slower than the others goes on from the step at which they are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/progress.h"
#include "mpi/bundle.h"
#include "mpi/top_filter.h"
#include "train/local/exchange.h"
#include "train/local/outer_step.h"
#include "train/local/unsent.h"
#include "train/run.h"
#include "train/trainer.h"

namespace bitloom::train {

// Elements that a reply has at most, in messages of one worker: with more of them it would be longer than messages, and fewer
// steps between messages learn more for the same bytes (models/RESULTS.md).
inline constexpr std::size_t messages_of_reply = 1;

struct LocalOptions {
  std::uint64_t inner_steps = 10;  // H: of a worker between two messages about the same parameters
  std::size_t fragments = 1;       // F: parts of the parameters, each with messages of its own; a divisor of H
  // Steps that a worker goes on for between sending and the use of the reply; below H / F. 0: it waits.
  std::uint64_t delay = 0;
  OuterOptions outer;
  mpi::TopFilter filter;
  // Part of what a message leaves out that is kept for the next one (SparseLoCo's decay of error feedback). 1: all.
  double kept_share = 1;
  // For which a worker that has sent its message waits for others'; 0: half of the time since its message before, but a second.
  double deadline_seconds = 0;
};

// Throws Error(usage).
void check(const LocalOptions& options);
// Memory beside the trainer's, of this machine, while a round is under way.
std::uint64_t local_bytes(const LocalOptions& options, std::uint64_t parameters);
// Whether it can train in local steps: processes that all have all parameters, in f32. Throws Error(usage).
void require_local_steps(Trainer& trainer);

class LocalSteps {
 public:
  // trainer: as require_local_steps() has it; it outlives this, as does the exchange. steps: of the whole training.
  // tokens: number of targets for which a message has weight 1. file: where this worker keeps what it has not sent. stop:
  // whether the run is asked to stop, which ends waiting. Throws Error(usage).
  LocalSteps(Trainer& trainer, LocalExchange& exchange, const LocalOptions& options, std::uint64_t steps, double tokens,
             std::filesystem::path file, std::function<bool()> stop, ProgressSink& progress);

  // Before the first step of this process: takes over the shared parameters and the step at which the others are. With more
  // `workers` than one the first of all rounds begins when that number is there. Throws Error(busy) where another run is at
  // work under this worker's name.
  void begin(std::size_t workers, const SignOfLife& alive);
  // After every step: sends, waits, takes over. Gives what metrics have besides, an object; null where nothing happened.
  nlohmann::json after_step(std::uint64_t targets, const SignOfLife& alive);
  // When the run stops before its end: what was learned since the last message goes into the next one, whenever that is.
  void leave(const SignOfLife& alive);
  // How often it has moved the trainer's parameters.
  std::uint64_t moves() const { return moves_; }

 private:
  // The last message, until its reply is taken over.
  struct Flight {
    std::uint64_t round = 0;
    std::uint64_t due = 0;  // step before whose end it is waited for
    Clock::time_point since = Clock::now();
    std::map<std::size_t, std::vector<float>> values;  // own ones when it was sent, by parameter
    bool is_told = false;                              // that its reply cannot be read
  };
  std::uint64_t interval() const { return options_.inner_steps / options_.fragments; }
  bool is_over() const { return rounds_ * interval() >= steps_; }  // all rounds of this worker's steps
  std::vector<float> own_values(std::size_t p);
  void set_own_values(std::size_t p, std::span<const float> values);
  double weight_of(std::size_t p) const { return static_cast<double>(learned_from_[fragment_[p]]) / tokens_; }
  std::vector<std::int32_t> learned_since(std::span<const float> before, std::span<const float> own, double weight) const;

  void send(std::uint64_t round, std::uint64_t due);
  void finish(nlohmann::json& line, const SignOfLife& alive);
  bool is_ended(Flight& flight);
  void take_shared();
  double deadline() const;
  void take_replies();
  void apply(const RoundReply& reply);
  bool load_newest_state();
  void take_over(const std::vector<std::vector<float>>& before);
  void go_on_from_round();
  bool wait(const std::function<bool()>& done, const SignOfLife& alive);

  Trainer& trainer_;
  LocalExchange& exchange_;
  LocalOptions options_;
  std::uint64_t steps_;
  double tokens_;
  std::filesystem::path file_;
  std::function<bool()> stop_;
  ProgressSink& progress_;
  std::vector<nn::Parameter*> parameters_;  // frozen ones are a part of what is shared, but of no message
  std::vector<std::size_t> fragment_;       // by parameter
  OuterParameters outer_;
  std::uint64_t rounds_ = 0;  // whose replies outer_ has
  std::optional<RoundReply> last_;
  Unsent unsent_;
  std::vector<std::uint64_t> learned_from_;  // by fragment: targets of own steps since its last message, or since the start
  std::optional<Flight> flight_;
  bool is_joined_ = false;                  // own parameters began with the shared ones
  Clock::time_point since_ = Clock::now();  // the exchange before ended, or training began
  std::uint64_t moves_ = 0;
  std::optional<std::uint64_t> told_of_;  // the last round of which a message said that it has another reply
  std::uint64_t ended_ = 0;               // rounds that this worker had ended when it last took replies
  // Since the last line of metrics.
  std::uint64_t sent_bytes_ = 0, received_bytes_ = 0;
};

}  // namespace bitloom::train
