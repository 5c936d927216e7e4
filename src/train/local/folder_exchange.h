// Rounds of local steps through a folder that workers share, on NFS say: no ports, no launcher, no supervisor, and workers that
// come and go as they like.
//
//   exchange.json                    what all workers have to agree on, by the first of them
//   workers/NAME.json                the first round that a worker will have a message for, whose run it is, and a sign of life
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
#include "train/local/exchange.h"
#include "train/local/presence.h"

namespace bitloom::train {

struct FolderOptions {
  std::filesystem::path folder;   // made if it is not there
  std::string worker;             // letters, digits, '-', '_' and '.'
  std::filesystem::path run;      // folder of the worker's run; without it nobody finds out that two have one name
  const char* field = "through";  // that says which folder it is, for messages
  double quorum = 0.5;            // the share of the messages that a round waits for which is enough after the deadline
  // Elements that a reply has of every chunk of a vector, at most; 0: all that any message has. What is left out, workers keep.
  std::size_t chunk = 4096, reply_count = 0;
  std::uint64_t state_every = 20;  // rounds between states
  // For which a reply that is there but cannot be read is waited for; then its round is ended again. Folders over a network may
  // show a file a minute before what is in it.
  double damaged_seconds = 120;
  double sign_seconds = 10;  // between signs of life, for those that would have the worker's name
};

// Throws Error(usage).
void check(const FolderOptions& options);
// Throws Error(usage) where a worker that has made steps finds no state of what it has shared: a disk that is not mounted, or
// another folder. Its training would begin again.
void require_first(const FolderOptions& options, std::uint64_t steps);
// Leaves the elements that a reply may have.
void limit_reply(mpi::Bundle& sum, const FolderOptions& options);

class FolderExchange final : public LocalExchange {
 public:
  // identity: an object that is the same for all workers but for the fields in `founded`, which all take from the first of
  // them. Throws Error(usage) that names what differs, and Error(io).
  FolderExchange(FolderOptions options, const nlohmann::json& identity, const nlohmann::json& founded,
                 const FieldName& field_name);

  const std::string& worker() const override { return options_.worker; }
  std::string place() const override { return options_.folder.string(); }
  std::uint64_t state_every() const override { return options_.state_every; }
  const nlohmann::json& founded() const override { return founded_; }

  std::optional<State> newest_state() override;
  std::optional<std::uint64_t> newest_rounds() const override;
  void publish_first_state(TensorFile file, std::uint64_t steps) override;
  void publish_state(std::uint64_t rounds, TensorFile file) override;

  bool take_name() override { return presence_.take(); }
  void join(std::uint64_t round) override { presence_.show(round); }
  void leave(Leaving why, const SignOfLife& alive) override;
  std::size_t workers() const override;
  std::uint64_t publish(const mpi::Bundle& bundle) override;
  bool has_message(std::uint64_t round) const override;
  bool keeps_messages() const override { return true; }
  bool has_reply(std::uint64_t round) const override;
  bool try_to_end(std::uint64_t round, const std::optional<RoundReply>& last, double waited_seconds,
                  double deadline_seconds) override;
  std::optional<RoundReply> read_reply(std::uint64_t round) override;
  std::uint64_t ended() const override { return ended_; }
  void clean() override;

  // The file of a reply, for reply_of(); none if it is not there, or damaged. Throws Error(io) where the system does not let it
  // be read just now.
  std::optional<std::vector<std::byte>> reply_file(std::uint64_t round) const;
  // Throws Error(data) and nlohmann::json::exception.
  static RoundReply reply_of(std::uint64_t round, std::span<const std::byte> file);
  // Writes the reply to a round, and gives it its hash; unless there is one, which counts then. Whether this one does.
  bool write_reply(RoundReply& reply);
  // For who has the folder alone: sets replies aside that do not follow on those that can be read.
  void drop_replies_from(std::uint64_t round);

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
  std::filesystem::path aside_path(std::uint64_t round) const;
  std::filesystem::path state_path(std::uint64_t rounds) const;
  std::vector<std::uint64_t> numbers_in(const char* folder) const;
  bool create(const std::filesystem::path& path, std::span<const std::byte> bytes) const;
  bool is_useless(std::uint64_t round, const std::optional<RoundReply>& last, double deadline_seconds);
  void set_aside(std::uint64_t round, const std::optional<RoundReply>& last);
  void clean_halves(std::uint64_t oldest) const;

  FolderOptions options_;
  Presence presence_;
  nlohmann::json founded_;
  std::uint64_t ended_ = 0;
  // Round that is waited for, and the time since which it may end.
  std::uint64_t waiting_for_ = 0;
  std::optional<Clock::time_point> may_end_since_;
  std::optional<Clock::time_point> found_since_;  // its reply
  // Numbers of files in the folder, and since when nothing has come of anybody: while a reply is of no use.
  std::vector<std::uint64_t> seen_;
  Clock::time_point seen_since_;
};

}  // namespace bitloom::train
