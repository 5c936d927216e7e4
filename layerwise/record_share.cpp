#include "layerwise/record_share.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "core/clock.h"
#include "core/hash.h"

namespace bitloom::layerwise {
namespace {

// A round of messages has as many bytes as a host gets in this time: so much that latency hardly shows, and so little that a
// wrong beginning costs little.
constexpr double round_seconds = 0.5;
constexpr double first_round = 0x1p16, largest_round = 0x1p23;  // bytes
// The first messages are small, and connections are slow at first: a rate counts only when it has stopped growing by more than
// `settled`, unless it would have to be `hopeless` times as high.
constexpr double settled = 1.25, hopeless = 50;

// A bit per rank and record.
class BitTable {
 public:
  BitTable(std::size_t rows, std::uint64_t columns) : words_((columns + 63) / 64), bits_(rows * words_) {}
  static std::uint64_t bytes(std::size_t rows, std::uint64_t columns) { return rows * ((columns + 63) / 64) * 8; }
  void set(std::size_t row, std::uint64_t column) { bits_[row * words_ + column / 64] |= std::int64_t{1} << (column % 64); }
  bool get(std::size_t row, std::uint64_t column) const {
    return (static_cast<std::uint64_t>(bits_[row * words_ + column / 64]) >> (column % 64) & 1U) != 0;
  }
  void add_row(std::size_t to, std::size_t from) {
    for (std::size_t w = 0; w < words_; ++w) bits_[to * words_ + w] |= bits_[from * words_ + w];
  }
  // Collective: every rank has filled rows of its own.
  void sum(mpi::Comm& comm) { comm.sum(std::span(bits_)); }

 private:
  std::size_t words_;
  std::vector<std::int64_t> bits_;
};

// Collective: everybody's number, by rank.
std::vector<std::int64_t> all_of(mpi::Comm& comm, std::int64_t mine) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()));
  all[static_cast<std::size_t>(comm.rank())] = mine;
  comm.sum(std::span(all));
  return all;
}

// Who sends what to whom, as all ranks work it out alike.
struct Way {
  std::size_t from, to;
  std::vector<std::uint64_t> records;
  std::size_t done = 0;
  bool waits = false;  // in this round: its question is to come, or its records
};

constexpr const char* subject = "outputs of frozen layers";
// In the main one a stop mark of the stage before may still come: with TreeOptions::quorum below 1 ranks do not wait for it.
constexpr mpi::Channel records_channel = mpi::Channel::records;

class Sharing {
 public:
  Sharing(mpi::Comm& comm, const RecordNeeds& needs)
      : comm_(comm),
        needs_(needs),
        ranks_(static_cast<std::size_t>(comm.size())),
        own_(static_cast<std::size_t>(comm.rank())) {}

  std::vector<RecordShare> run() {
    if (ranks_ == 1 || !find_files() || !find_ways()) return {};
    estimate_computing();
    round_.assign(ranks_, 0);
    ways_to_.assign(ranks_, 0);
    for (const Way& way : ways_) {
      round_[way.to] = static_cast<std::int64_t>(first_round);
      ++ways_to_[way.to];
    }
    while (std::any_of(round_.begin(), round_.end(), [](std::int64_t bytes) { return bytes != 0; })) {
      pass_messages();
      go_on();
      if (needs_.alive) needs_.alive();
    }
    return rows();
  }

 private:
  // keeper_[r]: the first rank that has the same file open as rank r; r itself if that has none. False if there are no two.
  bool find_files() {
    std::int64_t id = 0;
    if (needs_.file != nullptr) {
      const Hash128 hash = Hasher().update(std::string_view(mpi::host_name())).update(needs_.file->identity()).finish();
      id = static_cast<std::int64_t>(hash.low | 1U);
    }
    const std::vector<std::int64_t> ids = all_of(comm_, id);
    std::size_t files = 0;
    for (std::size_t r = 0; r < ranks_; ++r) {
      const auto first = ids[r] == 0 ? ids.begin() + static_cast<std::ptrdiff_t>(r) : std::find(ids.begin(), ids.end(), ids[r]);
      keeper_.push_back(static_cast<std::size_t>(first - ids.begin()));
      if (ids[r] != 0 && keeper_[r] == r) ++files;
      if (ids[r] != 0) sharers_[keeper_[r]] += 1;
    }
    return files > 1;
  }

  // Collective: the number of records, the same in all files; words_ follows. Throws Error(data) if a rank says what cannot be.
  std::uint64_t find_sizes() {
    const bool has_file = needs_.file != nullptr;
    const auto counts = all_of(comm_, has_file ? static_cast<std::int64_t>(needs_.file->records()) : 0);
    const auto words = all_of(comm_, has_file ? static_cast<std::int64_t>(needs_.file->words()) : 0);
    std::uint64_t count = 0;
    for (std::size_t r = 0; r < ranks_; ++r) {
      if (counts[r] == 0) continue;
      if (count == 0) {
        count = static_cast<std::uint64_t>(counts[r]);
        words_ = static_cast<std::uint64_t>(words[r]);
      }
      if (counts[r] < 0 || words[r] < 0 || static_cast<std::uint64_t>(counts[r]) != count ||
          static_cast<std::uint64_t>(words[r]) != words_) {
        fail(ErrorKind::data, "{}: rank {} has {} records of {} words; expected {} of {}, as the others have", subject, r,
             counts[r], words[r], count, words_);
      }
      comm_.require_length(subject, static_cast<int>(r), count);
      comm_.require_length(subject, static_cast<int>(r), BitTable::bytes(ranks_, count));
    }
    return count;
  }

  bool find_ways() {
    const std::uint64_t count = find_sizes();
    std::vector<std::uint64_t> missing;
    std::vector<bool> there(count);
    if (needs_.file != nullptr) {
      for (std::uint64_t i = 0; i < count; ++i) there[i] = needs_.file->seems_there(i);
      for (const std::uint64_t i : needs_.reads) {
        if (!there[i]) missing.push_back(i);
      }
    }
    std::array<std::int64_t, 2> sums{static_cast<std::int64_t>(missing.size()),
                                     static_cast<std::int64_t>(std::count(there.begin(), there.end(), true))};
    comm_.sum(std::span(sums));
    // To find out who has what must cost less than it can save.
    const std::uint64_t worth = static_cast<std::uint64_t>(sums[0]) * record_bytes();
    if (sums[0] == 0 || sums[1] == 0 || 2 * BitTable::bytes(ranks_, count) > worth) return false;
    BitTable has(ranks_, count), lacks(ranks_, count);
    for (std::uint64_t i = 0; i < count; ++i) {
      if (there[i] && keeper_[own_] == own_) has.set(own_, i);
    }
    for (const std::uint64_t i : missing) lacks.set(own_, i);
    has.sum(comm_);
    lacks.sum(comm_);
    for (std::size_t r = 0; r < ranks_; ++r) {
      if (keeper_[r] != r) lacks.add_row(keeper_[r], r);
    }
    choose_ways(has, lacks, count);
    return !ways_.empty();
  }

  // Those who have a record send it in turn.
  void choose_ways(const BitTable& has, const BitTable& lacks, std::uint64_t count) {
    rows_.resize(ranks_);
    std::vector<std::optional<std::size_t>> way_of(ranks_ * ranks_);
    std::vector<std::size_t> holders;
    for (std::uint64_t i = 0; i < count; ++i) {
      holders.clear();
      for (std::size_t r = 0; r < ranks_; ++r) {
        if (has.get(r, i)) holders.push_back(r);
      }
      for (std::size_t to = 0; to < ranks_; ++to) {
        // A rank on its host may have looked before another run wrote the record to their file.
        if (keeper_[to] != to || !lacks.get(to, i) || has.get(to, i)) continue;
        ++rows_[to].missing;
        if (holders.empty()) continue;
        ++rows_[to].elsewhere;
        const std::size_t from = holders[(i + to) % holders.size()];
        auto& way = way_of[from * ranks_ + to];
        if (!way) {
          way = ways_.size();
          ways_.push_back({from, to, {}});
        }
        ways_[*way].records.push_back(i);
      }
    }
  }

  void estimate_computing() {
    if (rows_[own_].elsewhere == 0) return;
    rows_[own_].compute_seconds = static_cast<double>(rows_[own_].elsewhere) * needs_.compute_seconds() / sharers_[own_];
  }

  // A message along each way that is in use. They are asked for, so that who gets them knows how long they take.
  void pass_messages() {
    const Clock::time_point start = Clock::now();
    round_bytes_ = 0;
    std::size_t asked = 0, to_send = 0;
    for (Way& way : ways_) {
      way.waits = message(way) != 0;
      if (!way.waits) continue;
      if (way.from == own_) ++to_send;
      if (way.to != own_) continue;
      ++asked;
      comm_.send(static_cast<int>(way.from), {std::byte{0}}, records_channel);
    }
    const auto look = [&] {
      for (const Way& way : ways_) {
        if (way.from != own_ && way.to != own_) continue;
        const std::size_t other = way.from == own_ ? way.to : way.from;
        const auto bytes = comm_.try_receive(static_cast<int>(other), most_from(other), records_channel);
        if (!bytes) continue;
        const bool is_question = bytes->size() == 1;
        Way& meant = is_question ? way_between(own_, other) : way_between(other, own_);
        if (is_question) {
          send(meant);
        } else {
          receive(meant, *bytes);
        }
        meant.waits = false;
        --(is_question ? to_send : asked);
        if (!is_question && asked == 0) round_took_ = seconds_since(start);
      }
      return asked == 0 && to_send == 0 && comm_.sends_finished(records_channel);
    };
    comm_.wait_until(look, subject);
    for (Way& way : ways_) way.done += message(way);
  }

  // That waits for something. Throws Error(data) if there is none: it is the other rank that said so.
  Way& way_between(std::size_t from, std::size_t to) {
    const auto found =
        std::find_if(ways_.begin(), ways_.end(), [&](const Way& way) { return way.from == from && way.to == to && way.waits; });
    if (found != ways_.end()) return *found;
    fail(ErrorKind::data, "{}: rank {} {}, which rank {} does not expect", subject, from == own_ ? to : from,
         from == own_ ? "asks for records" : "sends records", own_);
  }
  // Bytes that a rank may send next.
  std::uint64_t most_from(std::size_t other) const {
    std::uint64_t most = 1;
    for (const Way& way : ways_) {
      if (way.from == other && way.to == own_) most = std::max(most, message(way) * record_bytes());
    }
    return most;
  }
  std::uint64_t record_bytes() const { return 8 * (1 + words_); }
  // The records of the next one.
  std::size_t message(const Way& way) const {
    if (round_[way.to] == 0) return 0;
    const auto most = static_cast<std::uint64_t>(round_[way.to]) / ways_to_[way.to] / record_bytes();
    return std::min<std::size_t>(way.records.size() - way.done, std::max<std::uint64_t>(1, most));
  }

  void send(const Way& way) {
    const std::size_t count = message(way);
    std::vector<std::uint64_t> records(count * (1 + words_));
    for (std::size_t k = 0; k < count; ++k) {
      const auto record = std::span(records).subspan(k * (1 + words_), 1 + words_);
      if (!needs_.file->read(way.records[way.done + k], record)) record[0] = 0;
    }
    std::vector<std::byte> bytes(records.size() * sizeof records[0]);
    std::memcpy(bytes.data(), records.data(), bytes.size());
    comm_.send(static_cast<int>(way.to), std::move(bytes), records_channel);
  }

  void receive(const Way& way, const std::vector<std::byte>& bytes) {
    const std::size_t count = message(way);
    if (bytes.size() != count * record_bytes()) {
      fail(ErrorKind::data, "{}: rank {} sends {} bytes; expected {} records of {}", subject, way.from, bytes.size(), count,
           record_bytes());
    }
    round_bytes_ += bytes.size();
    std::vector<std::uint64_t> record(1 + words_);
    const std::size_t size = record.size() * sizeof record[0];
    for (std::size_t k = 0; k < count; ++k) {
      std::memcpy(record.data(), bytes.data() + k * size, size);
      if (needs_.file->accept(way.records[way.done + k], record)) ++rows_[own_].received;
    }
  }

  // Collective: each file's rank decides whether the rest is to be sent, or computed.
  void go_on() {
    std::uint64_t left = 0;
    for (const Way& way : ways_) {
      if (way.to == own_) left += way.records.size() - way.done;
    }
    const std::int64_t next = round_[own_] != 0 ? next_round(left) : 0;
    round_ = all_of(comm_, next);
  }

  // Its bytes; 0 for none.
  std::int64_t next_round(std::uint64_t left) {
    RecordShare& row = rows_[own_];
    row.seconds += round_took_;
    const double rate = static_cast<double>(round_bytes_) / std::max(round_took_, 1e-9);
    const double before = row.bytes_per_second;
    // The last round may have too few records left to tell.
    if (left > 0 || before == 0) row.bytes_per_second = rate;
    const auto all = static_cast<double>(row.elsewhere);
    row.send_seconds = all * static_cast<double>(record_bytes()) / row.bytes_per_second;
    const bool final = rate <= settled * before || hopeless * row.compute_seconds <= row.send_seconds;
    if (left == 0 || (final && row.compute_seconds <= row.send_seconds)) return 0;
    return static_cast<std::int64_t>(std::clamp(round_seconds * rate, first_round, largest_round));
  }

  // Collective: what concerns each file's rank, on all.
  std::vector<RecordShare> rows() {
    const auto micro = [](double value) { return static_cast<std::int64_t>(1e6 * std::min(value, 1e12)); };
    const RecordShare& mine = rows_[own_];
    const auto received = all_of(comm_, static_cast<std::int64_t>(mine.received));
    const auto seconds = all_of(comm_, micro(mine.seconds));
    const auto rate = all_of(comm_, static_cast<std::int64_t>(mine.bytes_per_second));
    const auto sending = all_of(comm_, micro(mine.send_seconds));
    const auto computing = all_of(comm_, micro(mine.compute_seconds));
    std::vector<RecordShare> result;
    for (std::size_t r = 0; r < ranks_; ++r) {
      if (rows_[r].elsewhere == 0) continue;
      RecordShare row = rows_[r];
      row.rank = static_cast<int>(r);
      row.received = static_cast<std::uint64_t>(received[r]);
      row.seconds = 1e-6 * static_cast<double>(seconds[r]);
      row.bytes_per_second = static_cast<double>(rate[r]);
      row.send_seconds = 1e-6 * static_cast<double>(sending[r]);
      row.compute_seconds = 1e-6 * static_cast<double>(computing[r]);
      result.push_back(row);
    }
    return result;
  }

  mpi::Comm& comm_;
  const RecordNeeds& needs_;
  std::size_t ranks_, own_;
  std::vector<std::size_t> keeper_;
  std::map<std::size_t, int> sharers_;  // how many ranks have a keeper's file open
  std::uint64_t words_ = 0;
  std::vector<Way> ways_;
  std::vector<RecordShare> rows_;    // by rank; what a rank measures is in its own
  std::vector<std::int64_t> round_;  // bytes that each rank gets in the next round; 0: none
  std::vector<std::uint64_t> ways_to_;
  std::uint64_t round_bytes_ = 0;  // received in this round,
  double round_took_ = 0;          // in this number of seconds
};

}  // namespace

std::vector<RecordShare> share_records(mpi::Comm& comm, const RecordNeeds& needs) { return Sharing(comm, needs).run(); }

}  // namespace bitloom::layerwise
