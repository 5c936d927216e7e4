// Changes that a worker of local steps has learned and others do not have yet: error feedback, and messages that no reply has
// counted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mpi/bundle.h"
#include "train/local/exchange.h"

namespace bitloom::train {

// In a run's folder.
inline constexpr const char* kept_name = "kept.safetensors";

class Unsent {
 public:
  struct Parameter {
    std::string name;
    std::size_t size = 0;
  };
  // fragments: parts of the parameters, for each of which targets are counted.
  Unsent(std::vector<Parameter> parameters, std::size_t fragments, std::string worker);

  // Error feedback of a parameter, in units times weights.
  std::span<std::int32_t> kept(std::size_t p) { return kept_[p]; }
  void keep(std::size_t p, std::span<const std::int32_t> learned);
  // Keeps that share of it alone.
  void fade(std::size_t p, double share);

  // Targets of what is kept from before this process, by fragment: it has their weight already.
  std::span<std::uint64_t> targets() { return targets_; }

  // Seconds that this worker's own steps before its last message took, also of the process before; 0: not known.
  double round_seconds() const { return round_seconds_; }
  void set_round_seconds(double seconds) { round_seconds_ = seconds; }

  // Messages that are sent and not counted yet, the oldest first.
  const std::vector<mpi::Bundle>& messages() const { return messages_; }
  void add(mpi::Bundle message) { messages_.push_back(std::move(message)); }
  bool is_counted(const mpi::Bundle& message, const std::optional<RoundReply>& reply) const;

  // Removes messages that `reply`, the next after `last`, counts, and keeps what it lacks of them.
  void settle(const RoundReply& reply, const std::optional<RoundReply>& last);
  // The same for a state that follows on `last` and takes the place of replies.
  void settle_state(const std::optional<RoundReply>& last);
  // Takes back messages from before this process, as if they had not been sent: those of another name, which nobody would count
  // under this one, and those of rounds after `rounds`, whose replies have been damaged. Removes those that are so old that
  // nobody knows whether they were counted.
  void take_back(LocalExchange& exchange, const std::optional<RoundReply>& last, std::uint64_t rounds);

  void save(const std::filesystem::path& file) const;
  // Nothing without the file. Throws Error(data).
  void restore(const std::filesystem::path& file);

 private:
  void keep_rest(const mpi::Bundle& message, const RoundReply& reply);

  std::vector<Parameter> parameters_;
  std::string worker_;   // of now
  std::string sent_as_;  // this worker's name when it sent the messages
  std::vector<std::vector<std::int32_t>> kept_;
  std::vector<std::uint64_t> targets_;
  double round_seconds_ = 0;
  std::vector<mpi::Bundle> messages_;
};

}  // namespace bitloom::train
