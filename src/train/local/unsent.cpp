#include "train/local/unsent.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/safetensors.h"
#include "core/text.h"
#include "mpi/sparse_filter.h"

namespace bitloom::train {
namespace {

constexpr const char* worker_key = "worker";
constexpr const char* seconds_key = "round_seconds";
constexpr const char* targets_name = "targets";

std::string name_of_kept(const std::string& parameter) { return "kept." + parameter; }
std::string sent_name(std::size_t number) { return fmt::format("sent.{}", number); }

}  // namespace

Unsent::Unsent(std::vector<Parameter> parameters, std::size_t fragments, std::string worker)
    : parameters_(std::move(parameters)), worker_(std::move(worker)), sent_as_(worker_), targets_(fragments) {
  for (const Parameter& parameter : parameters_) kept_.emplace_back(parameter.size);
}

void Unsent::keep(std::size_t p, std::span<const std::int32_t> learned) {
  std::ranges::transform(kept_[p], learned, kept_[p].begin(), mpi::kept_sum<std::int32_t>);
}

void Unsent::fade(std::size_t p, double share) {
  if (share == 1) return;
  for (std::int32_t& kept : kept_[p]) kept = static_cast<std::int32_t>(std::lrint(share * kept));
}

bool Unsent::is_counted(const mpi::Bundle& message, const std::optional<RoundReply>& reply) const {
  return reply && reply->counts(sent_as_, message.update);
}

// Messages that replies before counted are of the time before this process.
void Unsent::settle(const RoundReply& reply, const std::optional<RoundReply>& last) {
  std::erase_if(messages_, [&](const mpi::Bundle& message) {
    if (is_counted(message, last)) return true;
    if (!is_counted(message, reply)) return false;
    keep_rest(message, reply);
    return true;
  });
}

// The state has what that reply had of a message; what earlier ones had is not known any more, nor what one had whose sum
// cannot be read.
void Unsent::settle_state(const std::optional<RoundReply>& last) {
  std::erase_if(messages_, [&](const mpi::Bundle& message) {
    if (!is_counted(message, last)) return false;
    if (message.update == last->round && !last->sum.vectors.empty()) keep_rest(message, *last);
    return true;
  });
}

void Unsent::keep_rest(const mpi::Bundle& message, const RoundReply& reply) {
  for (std::size_t p = 0; p < message.vectors.size(); ++p) {
    const mpi::SparseVector& own = message.vectors[p];
    const std::vector<std::uint32_t>& there = reply.sum.vectors[p].index;
    std::size_t at = 0;
    for (std::size_t e = 0; e < own.index.size(); ++e) {
      while (at < there.size() && there[at] < own.index[e]) ++at;
      if (at < there.size() && there[at] == own.index[e]) continue;
      std::int32_t& kept = kept_[p][own.index[e]];
      kept = mpi::kept_sum(kept, static_cast<std::int32_t>(own.value[e]));
    }
  }
}

void Unsent::take_back(LocalExchange& exchange, const std::optional<RoundReply>& last, std::uint64_t rounds) {
  const bool is_renamed = sent_as_ != worker_;
  std::erase_if(messages_, [&](const mpi::Bundle& message) {
    if (is_counted(message, last) || (is_renamed && exchange.keeps_messages())) return true;
    // It may have been counted and forgotten; there is a margin, for rounds go on meanwhile.
    if (exchange.keeps_messages() && message.update + forgotten_after / 2 < rounds) return true;
    if (!is_renamed && (message.update <= rounds || exchange.has_message(message.update))) return false;
    RoundReply nothing;
    nothing.sum.vectors.resize(message.vectors.size());
    keep_rest(message, nothing);
    for (std::size_t f = 0; f < targets_.size() && f < message.totals.size(); ++f) {
      targets_[f] += static_cast<std::uint64_t>(message.totals[f]);
    }
    return true;
  });
  sent_as_ = worker_;
}

void Unsent::save(const std::filesystem::path& path) const {
  TensorFile file;
  file.metadata[worker_key] = sent_as_;
  file.metadata[seconds_key] = fmt::format("{}", round_seconds_);
  file.put(targets_name, {targets_.size()}, targets_);
  for (std::size_t p = 0; p < kept_.size(); ++p) file.put(name_of_kept(parameters_[p].name), {kept_[p].size()}, kept_[p]);
  for (std::size_t i = 0; i < messages_.size(); ++i) file.put_raw(sent_name(i), mpi::to_message(messages_[i]));
  file.save(path);
}

void Unsent::restore(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return;
  const TensorFile file = TensorFile::load(path, Checksum::required);
  sent_as_ = file.get_metadata(worker_key);
  if (const auto seconds = file.metadata.find(seconds_key); seconds != file.metadata.end()) {
    round_seconds_ = parse_double(seconds->second).value_or(0);
  }
  const Tensor& targets = file.get(targets_name, DType::u64, {targets_.size()});
  std::ranges::copy(targets.as<std::uint64_t>(), targets_.begin());
  for (std::size_t p = 0; p < kept_.size(); ++p) {
    const Tensor& kept = file.get(name_of_kept(parameters_[p].name), DType::i32, {kept_[p].size()});
    std::ranges::copy(kept.as<std::int32_t>(), kept_[p].begin());
  }
  for (std::size_t i = 0; file.contains(sent_name(i)); ++i) {
    messages_.push_back(mpi::from_message(std::as_bytes(file.get(sent_name(i)).as<std::uint8_t>())));
  }
}

}  // namespace bitloom::train
