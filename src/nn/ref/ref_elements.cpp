#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/error.h"
#include "nn/dropout.h"
#include "nn/few_bit_stash.h"
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
