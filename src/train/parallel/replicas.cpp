#include "train/parallel/replicas.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/hash.h"

namespace bitloom::train {
namespace {

std::int64_t hash_of(nn::Engine& engine, const nn::Tensor& tensor) {
  if (engine.device().kind == nn::Device::Kind::cpu) {
    return static_cast<std::int64_t>(hash_bytes({static_cast<const std::byte*>(tensor.data()), tensor.bytes()}).low);
  }
  std::vector<std::byte> bytes(tensor.bytes());
  engine.read(tensor, tensor.dtype(), bytes);
  return static_cast<std::int64_t>(hash_bytes(bytes).low);
}

std::string named(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

using Hash = std::optional<std::int64_t>;  // none of a tensor that a process has not

// Collective over the group: its first rank says which ranks have another one.
std::string describe(mpi::Comm& group, const std::string& name, const Hash& hash) {
  const std::vector<std::int64_t> own = hash ? std::vector{*hash} : std::vector<std::int64_t>();
  const std::vector<std::vector<std::byte>> all = group.gather_bytes(std::as_bytes(std::span(own)));
  if (!group.is_root()) return "";
  std::map<std::int64_t, std::vector<int>> ranks;  // of the run, by what they have
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    std::int64_t theirs = 0;
    std::memcpy(&theirs, all[r].data(), sizeof theirs);
    ranks[theirs].push_back(group.world_rank(static_cast<int>(r)));
  }
  // Ties go to those with the first rank.
  const auto is_more = [](const auto& a, const auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() > b.second.size() : a.second.front() < b.second.front();
  };
  const std::int64_t most = std::min_element(ranks.begin(), ranks.end(), is_more)->first;
  std::vector<int> others;
  for (const auto& [theirs, who] : ranks) {
    if (theirs != most) others.insert(others.end(), who.begin(), who.end());
  }
  std::ranges::sort(others);
  return fmt::format("'{}' of {} is not that of {}, to the bit; expected the same, as on machines that compute alike", name,
                     named(others), named(ranks[most]));
}

// Collective over the group: "", or what is not the same.
std::string find_difference(mpi::Comm& group, std::span<const Replica* const> replicas, std::span<const Hash> hashes) {
  if (group.size() == 1 || replicas.empty()) return "";
  std::vector<std::int64_t> largest;  // of each, and of its complement, which is that of the smallest
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
  for (const Hash& hash : hashes) largest.insert(largest.end(), {hash.value_or(least), hash ? ~*hash : least});
  group.max(largest);
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    if (largest[2 * i] != ~largest[2 * i + 1]) return describe(group, replicas[i]->name, hashes[i]);
  }
  return "";
}

}  // namespace

void require_same(nn::Engine& engine, mpi::Comm& world, std::span<const Replica> replicas, const std::string& when) {
  struct Group {
    mpi::Comm* comm = nullptr;
    std::vector<const Replica*> replicas;
    std::vector<Hash> hashes;
  };
  std::vector<Group> groups;  // in the order of their first replicas, which all of a stage have alike
  engine.synchronize();
  for (const Replica& replica : replicas) {
    Hash hash;
    for (mpi::Comm* comm : replica.groups) {
      if (comm->size() == 1) continue;
      if (!hash && replica.tensor != nullptr) hash = hash_of(engine, *replica.tensor);
      auto group = std::ranges::find(groups, comm, &Group::comm);
      if (group == groups.end()) group = groups.insert(group, Group{comm, {}, {}});
      group->replicas.push_back(&replica);
      group->hashes.push_back(hash);
    }
  }
  std::string difference;
  for (const Group& group : groups) {
    // Collective, whatever another one found.
    const std::string found = find_difference(*group.comm, group.replicas, group.hashes);
    if (difference.empty()) difference = found;
  }
  world.check(difference.empty() ? "" : fmt::format("{}: {}", when, difference), ErrorKind::data);
}

}  // namespace bitloom::train
