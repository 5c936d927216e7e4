#include "train/local/folder_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <set>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/file.h"
#include "core/file_state.h"
#include "core/hash.h"
#include "core/text.h"

namespace bitloom::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* extension = ".safetensors";
constexpr const char* bundle_name = "bundle";
// Seconds between the first worker that may end a round and the next that tries, should the first be gone.
constexpr double turn_seconds = 1;
constexpr std::size_t kept_states = 2;
// Others are taken to be gone when nothing has come of them for so many times what a damaged reply is waited for, and what a
// worker waits for their messages at most.
constexpr double still_times = 10;
constexpr double still_deadlines = 2 * patience_without_quorum;

bool is_forgotten(std::uint64_t message_round, std::uint64_t round) { return message_round + forgotten_after < round; }

// Whether a message does not count in `round` or later, `last` being a reply before.
bool is_settled(const std::string& worker, std::uint64_t message_round, const std::optional<RoundReply>& last,
                std::uint64_t round) {
  return is_forgotten(message_round, round) || (last && last->counts(worker, message_round));
}

std::string file_name(std::uint64_t number) { return fmt::format("{:08}{}", number, extension); }

// Where the system cannot say just now it is not there yet: file servers that hiccup end no worker.
bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Paths in a folder, as far as it can be read just now.
std::vector<fs::path> list(const fs::path& folder, std::error_code& error) {
  std::vector<fs::path> paths;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    paths.push_back(entry->path());
  }
  std::ranges::sort(paths);
  return paths;
}

std::vector<fs::path> list(const fs::path& folder) {
  std::error_code passed_over;
  return list(folder, passed_over);
}

TensorFile file_of(const mpi::Bundle& bundle) {
  TensorFile file;
  file.put_raw(bundle_name, mpi::to_message(bundle));
  return file;
}

mpi::Bundle bundle_of(const TensorFile& file) {
  const Tensor& tensor = file.get(bundle_name);
  return mpi::from_message(std::as_bytes(tensor.as<std::uint8_t>()));
}

// Result of f(), which reads files; none if one is missing, or not whole yet where file systems are slow.
template <typename F>
auto if_whole(F&& f) -> std::optional<std::invoke_result_t<F>> {
  try {
    return f();
  } catch (const Error&) {
    return std::nullopt;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

TensorFile load(const fs::path& path) { return TensorFile::load(path, Checksum::required); }

void make_folder(const fs::path& folder, const char* field) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail_field(ErrorKind::io, field, "{}: cannot be made: {}", folder.string(), error.message());
}

// Which of the workers that may end a round is the first to try: others in other rounds.
std::uint64_t turn_of(const std::string& worker, std::uint64_t round) {
  return Hasher().update(std::string_view(worker)).update(round).finish().low;
}

}  // namespace

void check(const FolderOptions& options) {
  const auto is_plain = [](char c) {
    return (std::isalnum(static_cast<unsigned char>(c)) != 0) || c == '-' || c == '_' || c == '.';
  };
  if (options.worker.empty() || options.worker.starts_with('.') || !std::ranges::all_of(options.worker, is_plain)) {
    fail_field(ErrorKind::usage, "worker", "'{}'; expected letters, digits, '-', '_' and '.', which is not the first",
               options.worker);
  }
  if (!(options.quorum >= 0 && options.quorum <= 1)) {
    fail_field(ErrorKind::usage, "quorum", "{}; expected 0 to 1", options.quorum);
  }
  if (options.state_every == 0) fail(ErrorKind::usage, "state_every: 0; expected at least 1");
}

void require_first(const FolderOptions& options, std::uint64_t steps) {
  if (steps == 0) return;
  fail_field(ErrorKind::usage, options.field,
             "{}: has no state of shared parameters, but this run has made {} steps; expected the folder that it shared them "
             "through",
             options.folder.string(), steps);
}

void limit_reply(mpi::Bundle& sum, const FolderOptions& options) {
  if (options.reply_count == 0) return;
  for (mpi::SparseVector& vector : sum.vectors) {
    if (vector.size != 0) vector = mpi::largest_of(vector, options.chunk, options.reply_count);
  }
}

FolderExchange::FolderExchange(FolderOptions options, const Json& identity, const Json& founded, const FieldName& field_name)
    : options_(std::move(options)),
      presence_(options_.folder / "workers" / (options_.worker + ".json"), options_.run, options_.sign_seconds) {
  check(options_);
  for (const char* folder : {"workers", "messages", "replies", "states"}) make_folder(options_.folder / folder, options_.field);
  const fs::path path = options_.folder / "exchange.json";
  const std::string text = Json{{"identity", identity}, {"founded", founded}}.dump(2) + "\n";
  create(path, std::as_bytes(std::span(text)));
  const Json stored = Json::parse(read_text(path), nullptr, false);
  if (!stored.is_object() || !stored.contains("identity") || !stored.contains("founded")) {
    fail(ErrorKind::data, "{}: not a description of an exchange", path.string());
  }
  const std::vector<FieldDifference> differences = find_differences(stored["identity"], identity);
  if (!differences.empty()) {
    fail_field(ErrorKind::usage, options_.field, "{}: workers there train otherwise; expected the same:{}",
               options_.folder.string(), describe_differences(differences, field_name));
  }
  founded_ = stored["founded"];
}

fs::path FolderExchange::message_path(std::uint64_t round) const {
  return options_.folder / "messages" / fmt::format("{}-{}", options_.worker, file_name(round));
}

fs::path FolderExchange::reply_path(std::uint64_t round) const { return options_.folder / "replies" / file_name(round); }

fs::path FolderExchange::aside_path(std::uint64_t round) const { return reply_path(round).string() + ".damaged"; }

fs::path FolderExchange::state_path(std::uint64_t rounds) const { return options_.folder / "states" / file_name(rounds); }

// Whether this made the file, which nobody had made before. By a hard link, which fails where the name is there; file systems
// that have none may let two workers believe that they were the first, which the hashes of replies bring to light.
bool FolderExchange::create(const fs::path& path, std::span<const std::byte> bytes) const {
  if (is_there(path)) return false;
  const fs::path own = path.parent_path() / fmt::format(".{}.{}", path.filename().string(), options_.worker);
  write_atomically(own, bytes);
  std::error_code error, unknown;
  fs::create_hard_link(own, path, error);
  const bool is_first = !error;
  if (error && !fs::exists(path, unknown) && !unknown) {
    if (!is_there(own)) return false;  // clean() took it, of a worker that slept until the round was long over
    fs::rename(own, path, error);
    if (error) fail(ErrorKind::io, "{}: cannot be written: {}", path.string(), error.message());
    return true;
  }
  fs::remove(own, error);
  return is_first;
}

std::vector<std::uint64_t> FolderExchange::numbers_in(const char* folder) const {
  std::vector<std::uint64_t> numbers;
  for (const fs::path& path : list(options_.folder / folder)) {
    if (path.extension() != extension) continue;
    const auto number = parse_int(path.stem().string());
    if (number && *number >= 0) numbers.push_back(static_cast<std::uint64_t>(*number));
  }
  return numbers;
}

std::optional<LocalExchange::State> FolderExchange::newest_state() {
  std::vector<std::uint64_t> numbers = numbers_in("states");
  for (; !numbers.empty(); numbers.pop_back()) {
    if (auto file = if_whole([&] { return load(state_path(numbers.back())); })) return State{numbers.back(), std::move(*file)};
  }
  return std::nullopt;
}

std::optional<std::uint64_t> FolderExchange::newest_rounds() const {
  const std::vector<std::uint64_t> numbers = numbers_in("states");
  return numbers.empty() ? std::nullopt : std::optional(numbers.back());
}

void FolderExchange::publish_first_state(TensorFile file, std::uint64_t steps) {
  if (steps > 0) presence_.leave();
  // A folder that cannot be listed just now is none without states.
  std::error_code error;
  const fs::path states = options_.folder / "states";
  list(states, error);
  if (error) fail(ErrorKind::io, "{}: {}", states.string(), error.message());
  require_first(options_, steps);
  create(state_path(0), file.serialize());
}

void FolderExchange::publish_state(std::uint64_t rounds, TensorFile file) { file.save(state_path(rounds)); }

void FolderExchange::leave(Leaving /*why*/, const SignOfLife& /*alive*/) { presence_.leave(); }

std::size_t FolderExchange::workers() const {
  presence_.require();
  return list_workers().size();
}

std::uint64_t FolderExchange::publish(const mpi::Bundle& bundle) {
  presence_.require();
  const std::vector<std::byte> bytes = file_of(bundle).serialize();
  write_atomically(message_path(bundle.update), bytes);
  return bytes.size();
}

bool FolderExchange::has_message(std::uint64_t round) const { return is_there(message_path(round)); }

bool FolderExchange::has_reply(std::uint64_t round) const { return is_there(reply_path(round)); }

std::vector<FolderExchange::Message> FolderExchange::list_messages() const {
  std::vector<Message> messages;
  for (const fs::path& path : list(options_.folder / "messages")) {
    const std::string stem = path.stem().string();
    const std::size_t dash = stem.rfind('-');
    if (path.extension() != extension || dash == std::string::npos || stem.starts_with('.')) continue;
    const auto round = parse_int(std::string_view(stem).substr(dash + 1));
    if (round && *round >= 0) messages.push_back({stem.substr(0, dash), static_cast<std::uint64_t>(*round), path});
  }
  return messages;
}

std::map<std::string, std::uint64_t> FolderExchange::list_workers() const {
  std::map<std::string, std::uint64_t> workers;
  for (const fs::path& path : list(options_.folder / "workers")) {
    if (path.extension() != ".json" || path.stem().string().starts_with('.')) continue;
    // One may have just left.
    const auto next = if_whole([&] { return Json::parse(read_text(path)).at("next").get<std::uint64_t>(); });
    if (next) workers[path.stem().string()] = *next;
  }
  return workers;
}

// Whether the reply, which is there, has been of no use for long: it cannot be read, or does not follow on `last`. That the
// system does not open it here says nothing.
bool FolderExchange::is_useless(std::uint64_t round, const std::optional<RoundReply>& last, double deadline_seconds) {
  if (!found_since_) found_since_ = Clock::now();
  if (seconds_since(*found_since_) < options_.damaged_seconds || opening_error(reply_path(round)) != 0) return false;
  const auto reply = read_reply(round);
  if (reply && reply->follows(last)) return false;
  if (!reply && !has_reply(round + 1)) return true;
  // Others have read it, or have another one before it: a state of theirs will help, unless there is nobody any more.
  std::vector<std::uint64_t> seen;
  for (const char* folder : {"replies", "states"}) {
    std::ranges::copy(numbers_in(folder), std::back_inserter(seen));
  }
  for (const Message& message : list_messages()) seen.push_back(message.round);
  if (seen != seen_) {
    seen_ = std::move(seen);
    seen_since_ = Clock::now();
  }
  return seconds_since(seen_since_) >= std::max(still_times * options_.damaged_seconds, still_deadlines * deadline_seconds);
}

// With all later ones, which do not follow on another one. Unless somebody else has done so, and the round has another reply by
// now, which goes back to its name.
void FolderExchange::set_aside(std::uint64_t round, const std::optional<RoundReply>& last) {
  std::error_code error;
  std::vector<std::uint64_t> numbers = numbers_in("replies");
  for (; !numbers.empty() && numbers.back() > round; numbers.pop_back()) {
    fs::rename(reply_path(numbers.back()), aside_path(numbers.back()), error);
  }
  const fs::path path = reply_path(round), aside = aside_path(round);
  fs::rename(path, aside, error);
  const auto reply = error ? std::nullopt : if_whole([&] { return reply_of(round, read_bytes(aside)); });
  if (reply && reply->follows(last)) fs::create_hard_link(aside, path, error);
  found_since_.reset();
}

bool FolderExchange::try_to_end(std::uint64_t round, const std::optional<RoundReply>& last, double waited_seconds,
                                double deadline_seconds) {
  presence_.require();
  if (round != waiting_for_) {
    may_end_since_.reset();
    found_since_.reset();
  }
  waiting_for_ = round;
  if (has_reply(round)) {
    if (!is_useless(round, last, deadline_seconds)) return true;
    // Whoever has read it before its damage has another one than the others then, which the hashes bring to light.
    set_aside(round, last);
    if (has_reply(round)) return true;
  }
  std::vector<Message> messages = list_messages();
  std::erase_if(messages, [&](const Message& message) {
    return message.round > round || is_settled(message.worker, message.round, last, round);
  });
  std::set<std::string> present, awaited;
  for (const Message& message : messages) {
    if (message.round == round) present.insert(message.worker);
  }
  for (const auto& [worker, next] : list_workers()) {
    // Or in time for the round before: it may not yet know how that ended.
    if (next == round || (round > 0 && last && last->counts(worker, round - 1))) awaited.insert(worker);
  }
  awaited.insert(present.begin(), present.end());
  const auto enough = static_cast<double>(awaited.size()) * options_.quorum;
  const double patience =
      static_cast<double>(present.size()) >= enough ? deadline_seconds : patience_without_quorum * deadline_seconds;
  if (present.size() < awaited.size() && waited_seconds < patience) return false;
  if (!may_end_since_) may_end_since_ = Clock::now();
  std::vector<std::pair<std::uint64_t, std::string>> turns;
  for (const std::string& worker : present) turns.emplace_back(turn_of(worker, round), worker);
  std::ranges::sort(turns);
  const auto own = std::ranges::find(turns, options_.worker, &std::pair<std::uint64_t, std::string>::second);
  const auto before = static_cast<double>(own - turns.begin());
  if (seconds_since(*may_end_since_) < before * turn_seconds) return false;

  RoundReply reply;
  reply.round = round;
  if (last) {
    reply.counted = last->counted;
    reply.previous = last->hash;
  }
  std::erase_if(reply.counted, [&](const auto& each) { return is_forgotten(each.second, round); });
  std::vector<mpi::Bundle> bundles;
  for (const Message& message : messages) {
    auto bundle = if_whole([&] { return bundle_of(load(message.path)); });
    if (!bundle) continue;
    bundles.push_back(std::move(*bundle));
    bundles.back().update = round;
    std::uint64_t& counted = reply.counted[message.worker];
    counted = std::max(counted, message.round);
    if (std::ranges::find(reply.workers, message.worker) == reply.workers.end()) reply.workers.push_back(message.worker);
  }
  if (bundles.empty()) return false;
  reply.sum = mpi::merge(std::move(bundles));
  limit_reply(reply.sum, options_);
  write_reply(reply);
  return true;
}

bool FolderExchange::write_reply(RoundReply& reply) {
  TensorFile file = file_of(reply.sum);
  file.metadata["exchange"] = Json{{"counted", reply.counted}, {"workers", reply.workers}, {"previous", reply.previous}}.dump();
  const std::vector<std::byte> bytes = file.serialize();
  reply.hash = hash_bytes(bytes).hex();
  const bool is_first = create(reply_path(reply.round), bytes);
  ended_ += is_first ? 1 : 0;
  return is_first;
}

RoundReply FolderExchange::reply_of(std::uint64_t round, std::span<const std::byte> bytes) {
  const TensorFile file = TensorFile::parse(bytes, fmt::format("the reply to round {}", round), Checksum::required);
  RoundReply reply;
  reply.round = round;
  reply.sum = bundle_of(file);
  const Json json = Json::parse(file.get_metadata("exchange"));
  json.at("counted").get_to(reply.counted);
  json.at("workers").get_to(reply.workers);
  json.at("previous").get_to(reply.previous);
  reply.hash = hash_bytes(bytes).hex();
  reply.bytes = bytes.size();
  return reply;
}

std::optional<RoundReply> FolderExchange::read_reply(std::uint64_t round) {
  return if_whole([&] { return reply_of(round, read_bytes(reply_path(round))); });
}

std::optional<std::vector<std::byte>> FolderExchange::reply_file(std::uint64_t round) const {
  const fs::path path = reply_path(round);
  const int error = opening_error(path);
  if (error == ENOENT) return std::nullopt;
  if (error != 0) fail(ErrorKind::io, "cannot read '{}': {}", path.string(), std::strerror(error));
  std::vector<std::byte> bytes;
  try {
    bytes = read_bytes(path);
  } catch (const Error& failed) {
    throw Error(ErrorKind::io, failed.what());
  }
  if (!if_whole([&] { return reply_of(round, bytes); })) return std::nullopt;
  return bytes;
}

void FolderExchange::drop_replies_from(std::uint64_t round) {
  for (const std::uint64_t each : numbers_in("replies")) {
    if (each >= round) fs::rename(reply_path(each), aside_path(each));
  }
}

// Files that their workers were about to give the name of a reply or state when they were killed, and damaged replies.
void FolderExchange::clean_halves(std::uint64_t oldest) const {
  for (const char* folder : {"replies", "states"}) {
    for (const fs::path& path : list(options_.folder / folder)) {
      const std::string name = path.filename().string();
      const std::size_t begin = name.starts_with('.') ? 1 : 0;
      const auto number = parse_int(std::string_view(name).substr(begin, name.find('.', begin) - begin));
      if (path.extension() == extension || !number || static_cast<std::uint64_t>(*number) + 1 >= oldest) continue;
      std::error_code error;
      fs::remove(path, error);
    }
  }
}

void FolderExchange::clean() {
  const std::vector<std::uint64_t> states = numbers_in("states");
  if (states.size() < kept_states) return;
  const std::uint64_t oldest = states[states.size() - kept_states];
  std::error_code error;
  for (const std::uint64_t rounds : states) {
    if (rounds < oldest) fs::remove(state_path(rounds), error);
  }
  for (const std::uint64_t round : numbers_in("replies")) {
    if (round + 1 < oldest) fs::remove(reply_path(round), error);
  }
  const std::optional<RoundReply> reply = oldest == 0 ? std::nullopt : read_reply(oldest - 1);
  for (const Message& message : list_messages()) {
    if (is_settled(message.worker, message.round, reply, oldest)) fs::remove(message.path, error);
  }
  clean_halves(oldest);
  for (const char* folder : {"workers", "messages", "replies", "states"}) {
    remove_abandoned_temporaries(options_.folder / folder);
  }
}

}  // namespace bitloom::train
