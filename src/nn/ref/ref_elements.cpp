#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/error.h"
#include "nn/dropout.h"
#include "nn/few_bit_stash.h"
#include "nn/group_quantiser.h"
#include "nn/ref/numbers.h"
#include "nn/ref/ref_backend.h"

namespace bitloom::nn::ref {

void RefBackend::convert(const Tensor& x, Tensor& y) { store(y, load(x)); }

namespace {

template <typename T>
void fill_integers(const Tensor& y, double value) {
  std::ranges::fill(y.as<T>(), static_cast<T>(value));
}

}  // namespace

void RefBackend::fill(Tensor& y, double value) {
  switch (y.dtype()) {
    case DType::u8: return fill_integers<std::uint8_t>(y, value);
    case DType::i8: return fill_integers<std::int8_t>(y, value);
    case DType::u16: return fill_integers<std::uint16_t>(y, value);
    case DType::i16: return fill_integers<std::int16_t>(y, value);
    case DType::u32: return fill_integers<std::uint32_t>(y, value);
    case DType::i32: return fill_integers<std::int32_t>(y, value);
    case DType::u64: return fill_integers<std::uint64_t>(y, value);
    case DType::i64: return fill_integers<std::int64_t>(y, value);
    default: return store(y, std::vector<double>(y.size(), value));
  }
}

void RefBackend::add(const Tensor& a, const Tensor& b, Tensor& y) {
  std::vector<double> sum = load(a);
  const std::vector<double> other = load(b);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  store(y, sum);
}

void RefBackend::scale_add(double alpha, const Tensor& x, double beta, Tensor& y) {
  const std::vector<double> x_values = load(x);
  std::vector<double> result = load(y);
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = beta == 0 ? alpha * x_values[i] : alpha * x_values[i] + beta * result[i];
  }
  store(y, result);
}

void RefBackend::add_finite(double alpha, const Tensor& x, Tensor& y) {
  const std::vector<double> x_values = load(x);
  std::vector<double> result = load(y);
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (std::isfinite(x_values[i])) result[i] += alpha * x_values[i];
  }
  store(y, result);
}

void RefBackend::clamp(double limit, const Tensor& x, Tensor& y) {
  std::vector<double> values = load(x);
  for (double& value : values) {  // NaN stays
    if (value > limit) value = limit;
    if (value < -limit) value = -limit;
  }
  store(y, values);
}

void RefBackend::clamp_backward(double limit, const Tensor& x, const Tensor& dy, Tensor& dx) {
  const std::vector<double> x_values = load(x);
  std::vector<double> result = load(dy);
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (std::abs(x_values[i]) >= limit) result[i] = 0;
  }
  store(dx, result);
}

void RefBackend::activate(const Activation& activation, const Tensor& x, Tensor& y) {
  std::vector<double> values = load(x);
  for (double& value : values) value = activation.value(value);
  store(y, values);
}

void RefBackend::activate_backward(const Activation& activation, const Tensor& x, const Tensor& dy, Tensor& dx) {
  const std::vector<double> x_values = load(x);
  std::vector<double> gradient = load(dy);
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] *= activation.derivative(x_values[i]);
  store(dx, gradient);
}

void RefBackend::activate_few_bit(const Activation& activation, const FewBitTable& table, const Tensor& x, Tensor& y,
                                  Tensor& stash) {
  const FewBitLookup lookup = few_bit_lookup(table);
  std::vector<double> values = load(x);
  BitPacker packer(stash.as<std::uint8_t>().data(), lookup.bits);
  for (double& value : values) {
    packer.put(lookup.index(value));
    value = activation.value(value);
  }
  packer.finish();
  store(y, values);
}

void RefBackend::activate_few_bit_backward(const FewBitTable& table, const Tensor& stash, const Tensor& dy, Tensor& dx) {
  const FewBitLookup lookup = few_bit_lookup(table);
  std::vector<double> gradient = load(dy);
  BitUnpacker unpacker(stash.as<std::uint8_t>().data(), lookup.bits);
  for (double& g : gradient) g *= lookup.levels[unpacker.get()];
  store(dx, gradient);
}

void RefBackend::quantise_groups(const GroupRounding& rounding, const Tensor& x, Tensor& packed, Tensor& ranges) {
  const std::vector<double> values = load(x);
  std::vector<double> ends;
  BitPacker packer(packed.as<std::uint8_t>().data(), rounding.bits);
  for (std::size_t begin = 0; begin < values.size(); begin += quantiser_group) {
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = values.begin() + static_cast<std::ptrdiff_t>(std::min(values.size(), begin + quantiser_group));
    const bool is_finite = std::all_of(first, last, [](double value) { return std::isfinite(value); });
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    const double lowest = is_finite ? *std::min_element(first, last) : nan;
    const double highest = is_finite ? *std::max_element(first, last) : nan;
    const GroupScale scale(static_cast<float>(lowest), static_cast<float>(highest), rounding.bits);
    ends.insert(ends.end(), {lowest, highest});
    for (auto each = first; each != last; ++each) {
      const std::uint64_t element = rounding.first + static_cast<std::uint64_t>(each - values.begin());
      const Philox4x32 draws = quantiser_rounding(rounding.seed, rounding.site, element / quantiser_draws);
      const std::uint32_t draw = philox_half(draws, static_cast<unsigned>(element % quantiser_draws));
      packer.put(scale.number(static_cast<float>(*each), draw));
    }
  }
  packer.finish();
  store(ranges, ends);
}

void RefBackend::restore_groups(unsigned bits, const Tensor& packed, const Tensor& ranges, Tensor& x) {
  const std::vector<double> ends = load(ranges);
  std::vector<double> values(x.size());
  BitUnpacker numbers(packed.as<std::uint8_t>().data(), bits);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t group = i / quantiser_group;
    const double part = static_cast<double>(numbers.get()) / ((1U << bits) - 1);
    values[i] = ends[2 * group] * (1 - part) + ends[2 * group + 1] * part;
  }
  store(x, values);
}

void RefBackend::dropout(const Dropout& dropout, const Tensor& x, Tensor& y) {
  const std::uint32_t threshold = dropout_threshold(dropout.rate);
  std::vector<double> values = load(x);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] =
        is_dropped(dropout.seed, dropout.site, threshold, dropout.first + i) ? 0 : values[i] * dropout_factor(threshold);
  }
  store(y, values);
}

namespace {

// The row of a table that ids[r] names, if the slice has it.
std::size_t row_of(std::span<const std::int32_t> ids, std::size_t r, const VocabularySlice& slice, const char* op) {
  const std::int32_t id = ids[r];
  if (id < 0 || static_cast<std::size_t>(id) >= slice.all) {
    fail(ErrorKind::usage, "{}: ids[{}] is {}; expected 0 to {}", op, r, id, static_cast<std::int64_t>(slice.all) - 1);
  }
  return slice.place_of(id);
}

}  // namespace

void RefBackend::gather(const Tensor& table, const Tensor& ids, Tensor& out, bool accumulate, const VocabularySlice& slice) {
  const std::size_t columns = table.shape()[1];
  const std::vector<double> table_vc = load(table);
  const std::span<const std::int32_t> ids_r = ids.as<std::int32_t>();
  std::vector<double> out_rc = accumulate ? load(out) : std::vector<double>(out.size());
  for (std::size_t r = 0; r < ids_r.size(); ++r) {
    const std::size_t row = row_of(ids_r, r, slice, "gather");
    if (row >= table.shape()[0]) continue;
    for (std::size_t c = 0; c < columns; ++c) out_rc[r * columns + c] += table_vc[row * columns + c];
  }
  store(out, out_rc);
}

void RefBackend::scatter_add(const Tensor& dout, const Tensor& ids, Tensor& dtable, const VocabularySlice& slice) {
  const std::size_t columns = dtable.shape()[1];
  const std::vector<double> dout_rc = load(dout);
  const std::span<const std::int32_t> ids_r = ids.as<std::int32_t>();
  std::vector<double> dtable_vc = load(dtable);
  for (std::size_t r = 0; r < ids_r.size(); ++r) {
    const std::size_t row = row_of(ids_r, r, slice, "scatter_add");
    if (row >= dtable.shape()[0]) continue;
    for (std::size_t c = 0; c < columns; ++c) dtable_vc[row * columns + c] += dout_rc[r * columns + c];
  }
  store(dtable, dtable_vc);
}

}  // namespace bitloom::nn::ref
