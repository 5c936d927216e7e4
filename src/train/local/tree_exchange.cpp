#include "train/local/tree_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/hash.h"

namespace bitloom::train {
namespace {

using Json = nlohmann::json;

// Between looks for messages, which MPI moves meanwhile.
constexpr auto pause = std::chrono::milliseconds(1);
// Rounds differ in time, and a worker may be slower than the others: how often the longest one is waited for until somebody
// counts as lost, if that is longer than the watchdog has.
constexpr double patient_rounds = 10;

mpi::TreeOptions tree_options(const TreeExchangeOptions& options) {
  mpi::TreeOptions tree;
  tree.fan_in = options.fan_in;
  tree.quorum = std::max(options.memory.quorum, std::numeric_limits<double>::min());
  tree.late_counts = true;
  return tree;
}

}  // namespace

TreeExchange::TreeExchange(mpi::Comm comm, TreeExchangeOptions options, const Json& identity, const Json& founded,
                           const FieldName& field_name, std::function<bool()> stop)
    : comm_(std::move(comm)),
      options_(std::move(options)),
      stop_(std::move(stop)),
      tree_(comm_, tree_options(options_), 1, std::numeric_limits<std::size_t>::max()),
      deadline_seconds_(std::numeric_limits<double>::infinity()) {
  if (comm_.flag_any(!comm_.use_from_thread())) {
    fail_field(ErrorKind::usage, "exchange", "local between processes, but this MPI library lets one thread alone call it");
  }
  options_.memory.field = "out";
  share_names();
  open_memory(identity, founded, field_name);
  share_memory();
}

TreeExchange::~TreeExchange() {
  is_left_alone_ = true;
  if (thread_.joinable()) thread_.join();
}

std::string TreeExchange::place() const { return fmt::format("the {} workers of this job", comm_.size()); }

void TreeExchange::share_names() {
  const std::string& own = options_.memory.worker;
  const std::vector<std::vector<std::byte>> all = comm_.gather_bytes(std::as_bytes(std::span(own)));
  for (const std::vector<std::byte>& name : all) names_.emplace_back(reinterpret_cast<const char*>(name.data()), name.size());
  names_ = Json::parse(comm_.broadcast_text(Json(names_).dump())).get<std::vector<std::string>>();
  for (const std::string& name : names_) {
    if (std::ranges::count(names_, name) == 1) continue;
    fail_field(ErrorKind::usage, "worker", "'{}' in two processes; expected names of their own", name);
  }
}

void TreeExchange::open_memory(const Json& identity, const Json& founded, const FieldName& field_name) {
  comm_.together([&] {
    if (comm_.is_root()) memory_.emplace(options_.memory, identity, founded, field_name);
  });
  const std::vector<FieldDifference> differences =
      find_differences(Json::parse(comm_.broadcast_text(identity.dump())), identity);
  std::string error;
  if (!differences.empty())
    error = "trains otherwise (given) than rank 0 (stored):" + describe_differences(differences, field_name);
  comm_.check(error, ErrorKind::usage);
  founded_ = Json::parse(comm_.broadcast_text(memory_ ? memory_->founded().dump() : ""));
}

// The newest state of the root's, and the replies since; and the one before, which says which messages the state has.
void TreeExchange::share_memory() {
  std::vector<std::vector<std::byte>> files;
  std::vector<std::byte> state;
  std::uint64_t first = 0;
  comm_.together([&] {
    if (!memory_) return;
    state_ = memory_->newest_state();
    if (!state_) {
      if (!memory_->newest_rounds() && !memory_->has_reply(0)) return;
      fail(ErrorKind::data, "{}: no state of the shared parameters in it can be read", options_.memory.folder.string());
    }
    state = state_->file.serialize();
    first = state_->rounds;
    if (first > 0) {
      if (auto before = memory_->reply_file(first - 1)) files.push_back(std::move(*before));
      first -= files.size();
    }
    while (auto file = memory_->reply_file(first + files.size())) files.push_back(std::move(*file));
  });
  Json shared = Json::parse(comm_.broadcast_text(
      Json{{"rounds", state_ ? Json(state_->rounds) : Json()}, {"first", first}, {"replies", files.size()}}.dump()));
  if (shared["rounds"].is_null()) return;
  rounds_of_state_ = next_ = shared["rounds"].get<std::uint64_t>();
  state = comm_.broadcast_bytes(std::move(state));
  if (!memory_) state_ = State{*rounds_of_state_, TensorFile::parse(state, "the state of rank 0", Checksum::required)};
  first = shared["first"].get<std::uint64_t>();
  files.resize(shared["replies"].get<std::size_t>());
  if (const auto before = reply_before(*state_)) counted_ = before->counted;
  for (std::size_t i = 0; i < files.size(); ++i) {
    RoundReply reply = FolderExchange::reply_of(first + i, comm_.broadcast_bytes(std::move(files[i])));
    next_ = std::max(next_, reply.round + 1);
    counted_ = reply.counted;
    hash_ = std::exchange(reply.hash, {});
    reply.previous.clear();  // there is but one
    replies_.emplace(first + i, std::move(reply));
  }
  if (const auto own = counted_.find(worker()); own != counted_.end()) published_ = own->second + 1;
}

std::optional<LocalExchange::State> TreeExchange::newest_state() {
  if (state_ && !thread_.joinable()) start();
  return std::exchange(state_, std::nullopt);
}

// Initial values follow from a seed: most often there is nothing to send.
void TreeExchange::publish_first_state(TensorFile file, std::uint64_t steps) {
  comm_.together([&] { require_first(options_.memory, steps); });
  std::vector<std::byte> bytes = file.serialize();
  const std::string hash = hash_bytes(bytes).hex();
  const bool is_same = comm_.broadcast_text(hash) == hash;
  if (comm_.flag_any(!is_same)) bytes = comm_.broadcast_bytes(std::move(bytes));
  comm_.together([&] {
    if (memory_) memory_->publish_first_state(std::move(file), 0);
  });
  state_ = State{0, TensorFile::parse(bytes, "the first state of rank 0", Checksum::required)};
  rounds_of_state_ = 0;
}

void TreeExchange::publish_state(std::uint64_t rounds, TensorFile file) {
  rounds_of_state_ = rounds;
  if (memory_) memory_->publish_state(rounds, std::move(file));
}

void TreeExchange::clean() {
  if (memory_) memory_->clean();
}

// By now this job has the run's folder for itself.
void TreeExchange::start() {
  if (memory_) memory_->drop_replies_from(next_);
  tree_.begin_at(next_);
  thread_ = std::thread([this] { serve(); });
}

void TreeExchange::leave(Leaving why, const SignOfLife& alive) {
  if (!thread_.joinable()) return;
  if (why == Leaving::stopped) wants_stop_ = true;
  is_leaving_ = true;
  while (!is_over_) {
    alive();
    std::this_thread::sleep_for(5 * pause);
  }
  thread_.join();
  rethrow();
}

// A process that died ends the job by itself; this is for one that hangs.
void TreeExchange::check_patience(Patience& waiting, const std::string& who) const {
  const double shortest = shortest_patience();
  if (shortest == 0 || longest_round_ == 0) return;
  double patience = std::max(shortest, patient_rounds * longest_round_);
  if (const double deadline = deadline_seconds_; std::isfinite(deadline)) {
    patience = std::max(patience, 2 * patience_without_quorum * deadline);
  }
  if (waiting.waited(Clock::now()) > patience) {
    throw mpi::PeerLost(fmt::format("{} has not been heard of for {:.0f} s", who, patience));
  }
}

// At the root, whose own worker is in the middle of something, an evaluation perhaps: others wait for nothing else.
void TreeExchange::ask_for_patience() {
  silent_.assign(workers(), Patience(Clock::now()));
  if (shortest_patience() == 0 || seconds_since(told_) < shortest_patience() / 10) return;
  told_ = Clock::now();
  tree_.tell_alive();
}

// With a quorum rounds go on without a worker that hangs.
void TreeExchange::check_silence() {
  if (!tree_.is_root() || tree_.is_signalled()) return;
  for (std::size_t w = 0; w < workers(); ++w) {
    if (w != static_cast<std::size_t>(comm_.rank())) check_patience(silent_[w], fmt::format("worker {}", names_[w]));
  }
}

void TreeExchange::rethrow() const {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

// After its totals a message has one for each worker: how many rounds further than the one before it is. In the order in which
// a worker's messages are counted these add up to the round after that of the last one.
std::uint64_t TreeExchange::publish(const mpi::Bundle& bundle) {
  rethrow();
  mpi::Bundle message = bundle;
  message.totals.resize(bundle.totals.size() + workers());
  const std::uint64_t next = bundle.update + 1;
  message.totals[bundle.totals.size() + static_cast<std::size_t>(comm_.rank())] = static_cast<std::int64_t>(next - published_);
  published_ = next;
  const std::uint64_t bytes = mpi::to_message(message).size();
  const std::lock_guard lock(mutex_);
  outgoing_.push_back(std::move(message));
  return bytes;
}

bool TreeExchange::has_reply(std::uint64_t round) const {
  rethrow();
  const std::lock_guard lock(mutex_);
  return !replies_.empty() && replies_.rbegin()->first >= round;
}

bool TreeExchange::try_to_end(std::uint64_t round, const std::optional<RoundReply>& /*last*/, double /*waited_seconds*/,
                              double deadline_seconds) {
  deadline_seconds_ = deadline_seconds;
  return has_reply(round);
}

std::optional<RoundReply> TreeExchange::read_reply(std::uint64_t round) {
  rethrow();
  const std::lock_guard lock(mutex_);
  // Those before are asked for no more.
  if (round > 0) replies_.erase(replies_.begin(), replies_.lower_bound(round - 1));
  const auto found = replies_.find(round);
  return found == replies_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<TreeTraffic> TreeExchange::take_traffic() {
  const std::lock_guard lock(mutex_);
  return std::exchange(traffic_, {});
}

void TreeExchange::serve() {
  try {
    silent_.assign(workers(), Patience(Clock::now()));
    for (; serve_round(next_); ++next_) {
    }
    if (wants_stop_) tree_.signal();
    for (Patience waiting(Clock::now()); !is_left_alone_ && !tree_.has_ended(); check_patience(waiting)) {
      std::this_thread::sleep_for(pause);
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
  }
  is_over_ = true;
}

// Lets messages go on, after a while. False once this worker has left.
bool TreeExchange::wait_and_look() {
  std::this_thread::sleep_for(pause);
  if (stop_ && stop_()) tree_.signal();
  tree_.poll();
  is_stopping_ = tree_.is_signalled();
  std::deque<mpi::Bundle> outgoing;
  {
    const std::lock_guard lock(mutex_);
    outgoing.swap(outgoing_);
  }
  for (mpi::Bundle& bundle : outgoing) {
    own_next_ = bundle.update + 1;
    tree_.put(std::move(bundle));
  }
  return !is_leaving_ && !is_left_alone_;
}

// Whether all messages for a round are here, or enough of them after the deadline; this worker's own may be missing.
bool TreeExchange::is_complete(std::uint64_t round) {
  const std::size_t present = tree_.present(round);
  if (present >= tree_.workers()) return true;
  if (present > 0 && !present_since_) present_since_ = Clock::now();
  if (options_.memory.quorum >= 1) return false;
  if (!tree_.is_root() && tree_.has_reply(round)) return true;
  if (present == 0) return false;
  double patience = tree_.share_of_deadline(deadline_seconds_);
  const auto all = static_cast<double>(tree_.workers());
  if (tree_.is_root() && static_cast<double>(present) < options_.memory.quorum * all) patience *= patience_without_quorum;
  return seconds_since(*present_since_) >= patience;
}

// False if this worker has left before it was over.
bool TreeExchange::serve_round(std::uint64_t round) {
  const Clock::time_point start = Clock::now();
  present_since_.reset();
  std::optional<Patience> for_messages;
  do {
    if (!wait_and_look()) return false;
    if (tree_.is_root() && options_.memory.quorum >= 1 && own_next_ <= round) {
      for_messages.reset();
      present_since_.reset();
      ask_for_patience();
      continue;
    }
    if (present_since_ && !for_messages) for_messages.emplace(*present_since_);
    if (for_messages) check_patience(*for_messages);
    check_silence();
  } while (tree_.is_signalled() || !is_complete(round));
  std::optional<mpi::Bundle> sum = tree_.gather(round, std::nullopt);
  if (sum) {
    limit_reply(*sum, options_.memory);
    std::vector<std::byte> message = encode(*sum);
    RoundReply reply = take_reply(round, *std::move(sum));
    reply.bytes = message.size();
    reply.previous = hash_;
    if (!memory_->write_reply(reply)) {
      fail(ErrorKind::io, "{}: has a reply to round {} of another job's", options_.memory.folder.string(), round);
    }
    hash_ = std::exchange(reply.hash, {});
    reply.previous.clear();
    tree_.spread(std::move(message));
    (void)tree_.next_reply();  // this one
    ++ended_;                  // before the reply can be seen
    keep_reply(std::move(reply), start);
    return true;
  }
  for (Patience for_reply(Clock::now()); !tree_.has_reply(round); check_patience(for_reply)) {
    if (!wait_and_look()) return false;
    if (std::exchange(signs_, tree_.signs_of_life()) != tree_.signs_of_life()) for_reply = Patience(Clock::now());
  }
  mpi::Bundle bundle = tree_.next_reply();
  const std::uint64_t bytes = encode(bundle).size();
  RoundReply reply = take_reply(round, std::move(bundle));
  reply.bytes = bytes;
  keep_reply(std::move(reply), start);
  return true;
}

void TreeExchange::keep_reply(RoundReply reply, Clock::time_point start) {
  longest_round_ = std::max(longest_round_, seconds_since(start));
  const mpi::TreeCounts counts = tree_.take_counts();
  const std::lock_guard lock(mutex_);
  traffic_.up += counts.sent_up;
  traffic_.down += counts.sent_down;
  const std::uint64_t round = reply.round;
  replies_.emplace(round, std::move(reply));
}

// Takes off what was sent besides tokens.
RoundReply TreeExchange::take_reply(std::uint64_t round, mpi::Bundle bundle) {
  if (bundle.totals.size() < workers()) fail(ErrorKind::data, "the reply to round {} counts too few workers", round);
  const std::size_t own = bundle.totals.size() - workers();
  RoundReply reply;
  reply.round = round;
  for (std::size_t w = 0; w < workers(); ++w) {
    const auto further = static_cast<std::uint64_t>(bundle.totals[own + w]);
    if (further == 0) continue;
    reply.workers.push_back(names_[w]);
    silent_[w] = Patience(Clock::now());
    const auto before = counted_.find(reply.workers.back());
    counted_[reply.workers.back()] = (before == counted_.end() ? 0 : before->second + 1) + further - 1;
  }
  bundle.totals.resize(own);
  reply.counted = counted_;
  reply.sum = std::move(bundle);
  return reply;
}

}  // namespace bitloom::train
