// How workers of local steps exchange what they have learned: in rounds, each of which ends with a reply, the sum of messages
// by which all move the shared parameters. A message that comes later counts in a later round.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "mpi/bundle.h"
#include "train/run.h"

namespace bitloom::train {

struct RoundReply {
  std::uint64_t round = 0;
  mpi::Bundle sum;                               // of messages; its totals are theirs
  std::map<std::string, std::uint64_t> counted;  // by worker: the last round of which a message of it was counted
  std::vector<std::string> workers;              // whose messages are in the sum
  std::string hash, previous;                    // of this reply and of the one before, where it may have another end
  std::uint64_t bytes = 0;                       // that came for it

  // Whether no other reply than `last` was before it, as far as is known.
  bool follows(const std::optional<RoundReply>& last) const {
    return !last || last->round + 1 != round || previous == last->hash;
  }
  // Whether the worker's message for that round is counted in this reply or one before.
  bool counts(const std::string& worker, std::uint64_t message_round) const {
    const auto last = counted.find(worker);
    return last != counted.end() && message_round <= last->second;
  }
};

// Why a worker leaves: all rounds are over, or its run is asked to stop.
enum class Leaving : std::uint8_t { done, stopped };

// Bytes that a process has sent along a tree: what it and those below it had for the root, and replies to those below it.
struct TreeTraffic {
  std::uint64_t up = 0, down = 0;
};

class LocalExchange {
 public:
  LocalExchange() = default;
  LocalExchange(const LocalExchange&) = delete;
  LocalExchange& operator=(const LocalExchange&) = delete;
  virtual ~LocalExchange() = default;

  virtual const std::string& worker() const = 0;      // the name of this one
  virtual std::string place() const = 0;              // for messages: "the folder x"
  virtual std::uint64_t state_every() const = 0;      // rounds between states
  virtual const nlohmann::json& founded() const = 0;  // what all take from the first worker

  // --- States: the shared parameters after a number of rounds ---
  struct State {
    std::uint64_t rounds = 0;
    TensorFile file;
  };
  virtual std::optional<State> newest_state() = 0;
  virtual std::optional<std::uint64_t> newest_rounds() const = 0;  // of a state, whether or not it can be read
  // Publishes the state of the start: if others were first, theirs is the one. steps: that this worker has made before, of
  // which there was a state then; with any it throws Error(usage).
  virtual void publish_first_state(TensorFile file, std::uint64_t steps) = 0;
  virtual void publish_state(std::uint64_t rounds, TensorFile file) = 0;

  // --- Rounds ---
  // Before anything else of a round: whether this worker's name is its own; asked again and again while that is not known yet.
  // Throws Error(busy) where another run has it.
  virtual bool take_name() { return true; }
  // From `round` on there will be messages of this worker; or no more, which may take until all others know.
  virtual void join(std::uint64_t round) = 0;
  virtual void leave(Leaving why, const SignOfLife& alive) = 0;
  virtual std::size_t workers() const = 0;  // that are there
  // Whether a worker is asked to stop, upon which all are to.
  virtual bool is_stopping() const { return false; }
  // This worker's message for round bundle.update, whose totals are numbers of tokens. Returns its bytes.
  virtual std::uint64_t publish(const mpi::Bundle& bundle) = 0;
  virtual bool has_message(std::uint64_t round) const = 0;
  // Whether messages stay until they are counted, should their worker be gone.
  virtual bool keeps_messages() const = 0;
  virtual bool has_reply(std::uint64_t round) const = 0;
  // Whether there is a reply to the round, after an attempt to end it by a worker that has sent its own message and waited
  // since; the deadline is that of others' messages. `last`: the reply before, none of round 0.
  virtual bool try_to_end(std::uint64_t round, const std::optional<RoundReply>& last, double waited_seconds,
                          double deadline_seconds) = 0;
  // None if it is not there.
  virtual std::optional<RoundReply> read_reply(std::uint64_t round) = 0;
  // How many rounds this one has ended.
  virtual std::uint64_t ended() const = 0;
  // Since the last call; none where there is no tree.
  virtual std::optional<TreeTraffic> take_traffic() { return std::nullopt; }
  // Removes what nobody needs any more: states but the last two, what came before these.
  virtual void clean() = 0;
};

// A state says which messages it has: those that the reply before it counts, which may be damaged when the state is read.
void note_counted(TensorFile& state, const RoundReply& last);
// That reply as far as later rounds have to know it, without its sum; none where nothing was noted.
std::optional<RoundReply> reply_before(const LocalExchange::State& state);

// Rounds after which a worker that sends nothing is forgotten: nobody knows any more which of its messages were counted, so no
// older one is.
inline constexpr std::uint64_t forgotten_after = 1000;

// Meaning of a quorum in every exchange: a round for which this share of the awaited messages is there ends after the deadline;
// it is ten times as long for fewer.
inline constexpr double patience_without_quorum = 10;

}  // namespace bitloom::train
