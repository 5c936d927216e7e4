// Rounds of local steps through a folder that workers share, on NFS say: no ports, no launcher, no supervisor, and workers that
// come and go as they like.
//
//   exchange.json                    what all workers have to agree on, by the first of them
//   workers/NAME.json                the first round that a worker will have a message for
//   messages/NAME-ROUND.safetensors  what a worker has learned (a mpi::Bundle)
//   replies/ROUND.safetensors        the sum of messages by which the round moves the shared parameters
//   states/ROUNDS.safetensors        the shared parameters after that number of rounds, for who joins
//
// A round ends when one of the workers that wait for it writes its reply: as soon as the messages of all that were to come are
// there, or after a deadline. Whichever reply has the name first counts, and every reply has the hash of the one before it. A
// message that comes later counts in the next round. Files are whole and checked (safetensors with checksums); damaged ones
// count as not there.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/differences.h"
#include "core/safetensors.h"
#include "mpi/bundle.h"
#include "mpi/top_filter.h"

namespace bitloom::train {

struct FolderOptions {
  std::filesystem::path folder;  // made if it is not there
  std::string worker;            // letters, digits, '-', '_' and '.'
  // The share of the messages that a round waits for which is enough after the deadline; it is ten times as long for fewer.
  double quorum = 0.5;
  // Elements that a reply has of every chunk of a vector, at most; 0: all that any message has. What is left out, workers keep.
  std::size_t chunk = 4096, reply_count = 0;
  std::uint64_t state_every = 20;  // rounds between states
};

// Throws Error(usage).
void check(const FolderOptions& options);

struct RoundReply {
  std::uint64_t round = 0;
  mpi::Bundle sum;                               // of messages; its totals are theirs
  std::map<std::string, std::uint64_t> counted;  // by worker: the last round of which a message of it was counted
  std::vector<std::string> workers;              // whose messages are in the sum
  std::string hash, previous;                    // of this file and of the reply before
  std::uint64_t bytes = 0;                       // of this file
};

class FolderExchange {
 public:
  // identity: an object that is the same for all workers but for the fields in `founded`, which all take from the first of
  // them. Throws Error(usage) that names what differs, and Error(io).
  FolderExchange(FolderOptions options, const nlohmann::json& identity, const nlohmann::json& founded,
                 const FieldName& field_name);

  const FolderOptions& options() const { return options_; }
  const nlohmann::json& founded() const { return founded_; }

  // --- States ---
  struct State {
    std::uint64_t rounds = 0;
    TensorFile file;
  };
  std::optional<State> newest_state() const;
  std::optional<std::uint64_t> newest_rounds() const;  // of a state, whether or not it can be read
  // Of the start: if others were first, theirs is the one.
  void publish_first_state(TensorFile file);
  void publish_state(std::uint64_t rounds, TensorFile file);

  // --- Rounds ---
  // From `round` on there will be messages of this worker; or no more.
  void join(std::uint64_t round);
  void leave() noexcept;
  std::size_t workers() const { return list_workers().size(); }  // that are there
  // This worker's message for round bundle.update. Returns its bytes.
  std::uint64_t publish(const mpi::Bundle& bundle);
  bool has_message(std::uint64_t round) const;
  bool has_reply(std::uint64_t round) const;
  // Whether there is a reply to the round, after an attempt to end it by a worker that has sent its own message and waited
  // since; the deadline is that of others' messages. `last`: the reply before, none of round 0.
  bool try_to_end(std::uint64_t round, const std::optional<RoundReply>& last, double waited_seconds, double deadline_seconds);
  // None if it is not there.
  std::optional<RoundReply> read_reply(std::uint64_t round) const;
  // How many rounds this one has ended.
  std::uint64_t ended() const { return ended_; }

  // Removes what nobody needs any more: states but the last two, what came before these.
  void clean();

 private:
  struct Message {
    std::string worker;
    std::uint64_t round = 0;
    std::filesystem::path path;
  };
  std::vector<Message> list_messages() const;
  std::map<std::string, std::uint64_t> list_workers() const;
  std::filesystem::path message_path(std::uint64_t round) const;
  std::filesystem::path reply_path(std::uint64_t round) const;
  std::filesystem::path state_path(std::uint64_t rounds) const;
  std::vector<std::uint64_t> numbers_in(const char* folder) const;
  bool create(const std::filesystem::path& path, std::span<const std::byte> bytes) const;
  std::filesystem::path presence_path() const;

  FolderOptions options_;
  nlohmann::json founded_;
  std::uint64_t ended_ = 0;
  // Of the round that is waited for.
  std::uint64_t waiting_for_ = 0;
  std::optional<Clock::time_point> may_end_since_;
};

}  // namespace bitloom::train
