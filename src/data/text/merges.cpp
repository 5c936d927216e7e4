#include "data/text/merges.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "core/error.h"

namespace bitloom::data {
namespace {

std::uint64_t key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

// The standard heap has its largest element first.
bool comes_later(const MergeTable::Scratch::Candidate& a, const MergeTable::Scratch::Candidate& b) {
  return std::tie(a.rank, a.left) > std::tie(b.rank, b.left);
}

}  // namespace

void MergeTable::add(std::int32_t left, std::int32_t right, std::int32_t result, double rank) {
  merges_.try_emplace(key(left, right), Merge{result, rank});
}

void MergeTable::consider(std::int32_t left, std::int32_t right, Scratch& scratch) const {
  if (left < 0 || right < 0) return;
  const std::int32_t left_token = scratch.symbols[static_cast<std::size_t>(left)].token;
  const std::int32_t right_token = scratch.symbols[static_cast<std::size_t>(right)].token;
  const auto found = merges_.find(key(left_token, right_token));
  if (found == merges_.end()) return;
  scratch.heap.push_back({found->second.rank, left, right, left_token, right_token, found->second.result});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), comes_later);
}

void MergeTable::merge(std::vector<std::int32_t>& tokens, Scratch& scratch, DropoutDraws* draws) const {
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    fail(ErrorKind::usage, "a word of {} bytes is too long for byte-pair encoding", tokens.size());
  }
  const auto size = static_cast<std::int32_t>(tokens.size());
  auto& [symbols, heap] = scratch;
  symbols.clear();
  heap.clear();
  for (std::int32_t i = 0; i < size; ++i) {
    symbols.push_back({tokens[static_cast<std::size_t>(i)], i - 1, i + 1 == size ? -1 : i + 1});
  }
  for (std::int32_t i = 0; i + 1 < size; ++i) consider(i, i + 1, scratch);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), comes_later);
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    auto& left = symbols[static_cast<std::size_t>(best.left)];
    auto& right = symbols[static_cast<std::size_t>(best.right)];
    // A symbol that was merged into another has token -1.
    if (left.token != best.left_token || right.token != best.right_token || left.next != best.right) continue;
    if (draws != nullptr && draws->random.uniform() < draws->rate) continue;
    left.token = best.result;
    left.next = right.next;
    right.token = -1;
    if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = best.left;
    consider(left.previous, best.left, scratch);
    consider(best.left, left.next, scratch);
  }
  tokens.clear();
  for (std::int32_t i = size == 0 ? -1 : 0; i >= 0; i = symbols[static_cast<std::size_t>(i)].next) {
    tokens.push_back(symbols[static_cast<std::size_t>(i)].token);
  }
}

}  // namespace bitloom::data
