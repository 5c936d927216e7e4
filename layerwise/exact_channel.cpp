#include "layerwise/exact_channel.h"

#include <algorithm>
#include <bit>

namespace bitloom::layerwise {
namespace {

constexpr std::size_t group_range = 256;               // rows of a table of sums, unless one zone alone has more
constexpr std::size_t key_bits = 31;                   // accumulate_rows sums int32
constexpr std::size_t row_lanes = simd::weight_lanes;  // a row of sums is a multiple of it

// How v_z follows from the edge pixels of a zone: off * X_off + on * X_on + (add_off ? n_off : 0) + (add_on ? n_on : 0).
struct Move {
  std::int32_t off, on;
  bool add_off, add_on;
};
// The weight's value before (row) and after (column): -1, 0, +1. The diagonal is not used.
constexpr Move move_table[9] = {
    {0, 0, false, false}, {0, -1, true, true},  {-1, -1, true, true},  //
    {1, 0, false, false}, {0, 0, false, false}, {-1, 0, true, false},  //
    {1, 1, false, false}, {0, 1, true, false},  {0, 0, false, false},
};
constexpr std::uint8_t move_code(int before, int after) { return static_cast<std::uint8_t>((before + 1) * 3 + after + 1); }

// value in steps, to nearest, ties to even: adding 1.5 * 2^52 rounds to an integer, which is then in the low bits.
std::int64_t to_steps(double nats) {
  constexpr double round_shift = 0x1.8p52;
  return std::bit_cast<std::int64_t>(nats * exact_steps + round_shift) - std::bit_cast<std::int64_t>(round_shift);
}

}  // namespace

void ExactSignal::Channel::start(const BinaryLayer& layer, std::span<const std::uint32_t> weights, std::size_t channel,
                                 std::int64_t* deltas) {
  layer_ = &layer;
  weights_ = weights;
  channel_ = channel;
  deltas_ = deltas;
  const std::uint64_t* sign = layer.rows().data() + channel * layer.patch_words();
  codes_.resize(lists() * weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const int value = bit_value(get_bit(sign, weights[i]));
    if (!layer.spec().ternary) {
      codes_[i] = move_code(value, -value);
      continue;
    }
    const bool nonzero = get_bit(layer.nonzero_rows().data() + channel * layer.patch_words(), weights[i]);
    const int trit = nonzero ? value : 0;
    for (std::size_t m = 0; m < 2; ++m) codes_[m * weights.size() + i] = move_code(trit, trit_moves(trit)[m]);
  }
  change_of_.resize(codes_.size());
  keys_.resize(codes_.size());
  // Two at least: the hash of a key is shifted down to a place, by less than its 64 bits.
  slots_.resize(std::max(slots_.size(), std::bit_ceil(std::max<std::size_t>(2, codes_.size() + codes_.size() / 4))));
}

void ExactSignal::Channel::plan(const ExactHead& head, std::span<const std::uint32_t> edges) {
  off_.assign(head.zones(), 0);
  on_.assign(head.zones(), 0);
  for (const std::uint32_t edge : edges) ++((edge & 1U) != 0 ? on_ : off_)[head.zone_of_pixel()[edge >> 1]];
  digits_.clear();
  groups_.clear();
  for (std::size_t z = 0; z < head.zones(); ++z) {
    if (off_[z] + on_[z] == 0) continue;
    const auto range = static_cast<std::size_t>(off_[z] + on_[z] + 1);
    if (groups_.empty() || groups_.back().range * range > group_range) groups_.push_back({0, 1, 0, 0, 0});
    Group& group = groups_.back();
    digits_.push_back({static_cast<std::uint32_t>(z), static_cast<std::uint32_t>(groups_.size() - 1), off_[z], on_[z],
                       static_cast<std::int32_t>(group.range)});
    group.range *= range;
  }
  std::size_t shift = 0;
  std::size_t table = 0;
  passes_ = 1;
  for (Group& group : groups_) {
    const auto bits = static_cast<std::size_t>(std::bit_width(group.range - 1));
    if (shift + bits > key_bits) {
      ++passes_;
      shift = 0;
    }
    group.pass = passes_ - 1;
    group.shift = static_cast<std::uint32_t>(shift);
    group.mask = (std::uint32_t{1} << bits) - 1;
    group.table = table;
    shift += bits;
    table += group.range;
  }
  for (Digit& digit : digits_) digit.scale <<= groups_[digit.group].shift;
  if (changes_.size() < passes_) changes_.resize(passes_);
}

// sums (lists, B) = sum over the pass's zones of scale * X, over all edge pixels (binary) or those at T, then those at T + 1.
void ExactSignal::Channel::sum_keys(const simd::Kernels& kernels, const ExactHead& head, const std::uint64_t* input,
                                    std::span<const std::uint32_t> edges, std::size_t pass) {
  const simd::ConvShape shape = layer_->conv_shape();
  constexpr std::uint32_t other_pass = ~0U;
  slot_of_zone_.assign(head.zones(), other_pass);
  scales_.clear();
  for (const Digit& digit : digits_) {
    if (groups_[digit.group].pass != pass) continue;
    slot_of_zone_[digit.zone] = static_cast<std::uint32_t>(scales_.size());
    scales_.push_back(digit.scale);
  }
  // Counting sort of the edge pixels by list and zone; begin_[s + 1] moves from the start of list s to its end.
  begin_.assign(lists() * scales_.size() + 2, 0);
  const auto list_of = [&](std::uint32_t edge, std::uint32_t slot) {
    return slot + (lists() == 2 && (edge & 1U) != 0 ? scales_.size() : 0);
  };
  std::uint32_t total = 0;
  for (const std::uint32_t edge : edges) {
    const std::uint32_t slot = slot_of_zone_[head.zone_of_pixel()[edge >> 1]];
    if (slot == other_pass) continue;
    ++begin_[list_of(edge, slot) + 2];
    ++total;
  }
  for (std::size_t s = 2; s < begin_.size(); ++s) begin_[s] += begin_[s - 1];
  offsets_.resize(total);
  for (const std::uint32_t edge : edges) {
    const std::uint32_t slot = slot_of_zone_[head.zone_of_pixel()[edge >> 1]];
    if (slot == other_pass) continue;
    const std::size_t y = (edge >> 1) / shape.out_width;
    const std::size_t x = (edge >> 1) % shape.out_width;
    offsets_[begin_[list_of(edge, slot) + 1]++] = static_cast<std::uint32_t>(y * shape.row_step + x * shape.column_step);
  }
  sums_.assign(lists() * layer_->patch_bits(), 0);
  simd::RowLists rows;
  rows.base = input;
  rows.offsets = offsets_.data();
  rows.begin = begin_.data();
  rows.lists = lists();
  rows.scales = scales_.size();
  rows.scale = scales_.data();
  rows.runs = shape.patch_rows;
  rows.run_words = shape.run_words;
  rows.pitch = shape.pitch;
  kernels.accumulate_rows(rows, sums_.data());
}

// Turns the sums into the keys of all moves and finds out which are the same: change_of_ and changes_[pass].
void ExactSignal::Channel::find_changes(std::size_t pass) {
  std::int32_t all_off = 0;
  std::int32_t all_on = 0;
  for (const Digit& digit : digits_) {
    if (groups_[digit.group].pass != pass) continue;
    all_off += digit.off * digit.scale;
    all_on += digit.on * digit.scale;
  }
  std::int32_t constant[9];
  for (std::size_t code = 0; code < 9; ++code) {
    constant[code] = (move_table[code].add_off ? all_off : 0) + (move_table[code].add_on ? all_on : 0);
  }
  const std::size_t size = weights_.size();
  const std::int32_t* off = sums_.data();
  for (std::size_t i = 0; i < size; ++i) {
    // A binary layer's two kinds of edge pixels are summed together, and always count alike.
    keys_[i] = static_cast<std::uint32_t>(constant[codes_[i]] + move_table[codes_[i]].off * off[weights_[i]]);
  }
  if (lists() == 2) {
    const std::int32_t* on = off + layer_->patch_bits();
    for (std::size_t i = 0; i < size; ++i) {
      const Move& first = move_table[codes_[i]];
      const Move& second = move_table[codes_[size + i]];
      const std::size_t k = weights_[i];
      keys_[i] += static_cast<std::uint32_t>(first.on * on[k]);
      keys_[size + i] = static_cast<std::uint32_t>(constant[codes_[size + i]] + second.off * off[k] + second.on * on[k]);
    }
  }

  changes_[pass].resize(std::max(changes_[pass].size(), codes_.size()));
  Change* changes = changes_[pass].data();
  std::uint32_t* change_of = change_of_.data();
  std::uint32_t count = 0;
  const std::size_t end = std::size_t{1} << std::bit_width(static_cast<std::uint32_t>(all_off + all_on));
  if (passes_ == 1 && end <= codes_.size()) {
    // Few possible keys: a table of all of them.
    of_key_.assign(end, 0);
    for (const std::uint32_t key : keys_) of_key_[key] = 1;
    for (std::uint32_t key = 0; key < end; ++key) {
      if (of_key_[key] == 0) continue;
      of_key_[key] = count;
      changes[count++] = {0, key};
    }
    for (std::size_t i = 0; i < codes_.size(); ++i) change_of[i] = of_key_[keys_[i]];
    change_count_ = count;
    return;
  }
  if (++stamp_ == 0) {
    for (Slot& slot : slots_) slot.stamp = 0;
    stamp_ = 1;
  }
  Slot* slots = slots_.data();
  const std::uint32_t stamp = stamp_;
  const std::size_t mask = slots_.size() - 1;
  const auto hash_shift = static_cast<unsigned>(64 - std::countr_zero(slots_.size()));
  for (std::size_t i = 0; i < codes_.size(); ++i) {
    const std::uint32_t previous = pass == 0 ? 0 : change_of[i];
    const std::uint64_t key = std::uint64_t{previous} << key_bits | keys_[i];
    std::size_t at = (key * 0x9e3779b97f4a7c15ULL) >> hash_shift;
    while (slots[at].stamp == stamp && slots[at].key != key) at = (at + 1) & mask;
    if (slots[at].stamp != stamp) {
      slots[at] = {key, stamp, count};
      changes[count++] = {previous, keys_[i]};
    }
    change_of[i] = slots[at].change;
  }
  change_count_ = count;
}

// tables (sum of the groups' ranges, width): row r of a group is the change of the sums when its digits make the index r.
void ExactSignal::Channel::fill_tables(const ExactHead& head, const ExactHead::Image& image) {
  const std::size_t width = head.width();
  tables_.resize((groups_.back().table + groups_.back().range) * width);
  std::size_t filled = 0;
  for (std::size_t i = 0; i < digits_.size(); ++i) {
    const Digit& digit = digits_[i];
    std::uint32_t* table = tables_.data() + groups_[digit.group].table * width;
    if (i == 0 || digits_[i - 1].group != digit.group) {
      std::fill_n(table, width, 0U);
      filled = 1;
    }
    const auto last = static_cast<std::size_t>(digit.off + digit.on);
    steps_.resize((last + 1) * width);
    head.zone_change(image, channel_, digit.zone, -digit.off, digit.on, steps_.data());
    // The highest first: rows with the digit 0 are the source of all others.
    for (std::size_t v = last + 1; v-- > 0;) {
      const std::uint32_t* step = steps_.data() + v * width;
      std::uint32_t* target = table + v * filled * width;
      for (std::size_t r = 0; r < filled * width; r += width) {
        for (std::size_t l = 0; l < width; l += row_lanes) {
          std::uint32_t row[row_lanes];
          for (std::size_t k = 0; k < row_lanes; ++k) row[k] = table[r + l + k] + step[l + k];
          std::copy_n(row, row_lanes, target + r + l);
        }
      }
    }
    filled *= last + 1;
  }
}

// values (changes of the last pass) = the loss with the change less the loss now, in steps.
void ExactSignal::Channel::evaluate(const ExactHead& head, const ExactHead::Image& image) {
  const std::size_t width = head.width();
  const std::size_t count = change_count_;
  values_.resize(count);
  rows_.resize(ExactHead::block * width);
  steps_of_.resize(groups_.size());
  double losses[ExactHead::block];
  for (std::size_t begin = 0; begin < count; begin += ExactHead::block) {
    const std::size_t n = std::min(ExactHead::block, count - begin);
    for (std::size_t j = 0; j < n; ++j) {
      std::size_t pass = passes_ - 1;
      Change change = changes_[pass][begin + j];
      for (std::size_t g = groups_.size(); g-- > 0;) {
        const Group& group = groups_[g];
        for (; pass != group.pass; --pass) change = changes_[pass - 1][change.previous];
        steps_of_[g] = tables_.data() + (group.table + ((change.key >> group.shift) & group.mask)) * width;
      }
      for (std::size_t l = 0; l < width; l += row_lanes) {
        std::uint32_t row[row_lanes];
        std::copy_n(image.sums.data() + l, row_lanes, row);
        for (const std::uint32_t* step : steps_of_) {
          for (std::size_t i = 0; i < row_lanes; ++i) row[i] += step[l + i];
        }
        std::copy_n(row, row_lanes, rows_.data() + j * width + l);
      }
    }
    head.losses(rows_.data(), n, image.label, losses);
    for (std::size_t j = 0; j < n; ++j) values_[begin + j] = to_steps(losses[j] - image.loss);
  }
}

void ExactSignal::Channel::add(const simd::Kernels& kernels, const ExactHead& head, const ExactHead::Image& image,
                               const std::uint64_t* input, std::span<const std::uint32_t> edges) {
  statistics.edge_pixels += static_cast<std::int64_t>(edges.size());
  statistics.moves += static_cast<std::int64_t>(codes_.size());
  if (edges.empty()) return;
  plan(head, edges);
  for (std::size_t pass = 0; pass < passes_; ++pass) {
    sum_keys(kernels, head, input, edges, pass);
    find_changes(pass);
  }
  fill_tables(head, image);
  evaluate(head, image);
  statistics.distinct += static_cast<std::int64_t>(values_.size());
  for (std::size_t m = 0; m < lists(); ++m) {
    std::int64_t* row = deltas_ + m * layer_->patch_bits();
    const std::uint32_t* change = change_of_.data() + m * weights_.size();
    for (std::size_t i = 0; i < weights_.size(); ++i) row[weights_[i]] += values_[change[i]];
  }
}

}  // namespace bitloom::layerwise
