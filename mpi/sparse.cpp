#include "mpi/sparse.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "mpi/bit_stream.h"

namespace bitloom::mpi {
namespace {

constexpr std::byte sparse_magic{0xB5};
constexpr std::byte sparse_version{1};
constexpr unsigned dense_flag = 1;
constexpr unsigned rice_flag = 2;
constexpr unsigned largest_gap_parameter = 31;
constexpr unsigned largest_value_parameter = 63;

// How a list of numbers is written: Rice codes or `parameter` bits each; `bits` in all.
struct NumberCode {
  bool rice = false;
  unsigned parameter = 0;
  std::uint64_t bits = 0;
};

// highest: at least the largest of the numbers.
std::uint64_t rice_bits_of_all(std::span<const std::uint64_t> numbers, std::uint64_t highest, unsigned parameter) {
  std::uint64_t bits = 0;
  if (highest >> parameter < rice_escape) {  // none is written in full
    for (const std::uint64_t u : numbers) bits += u >> parameter;
    return bits + numbers.size() * (1 + parameter);
  }
  for (const std::uint64_t u : numbers) bits += rice_bits(u, parameter);
  return bits;
}

// The best Rice code of the numbers and of `zeros` zeros. Its parameter is near the logarithm of their mean, or, where a few
// large ones make up the mean and are better written in full, near the mean of their widths.
NumberCode choose_rice(std::span<const std::uint64_t> numbers, std::uint64_t zeros, unsigned largest_parameter) {
  std::uint64_t any = 0;
  std::uint64_t widths = 0;
  for (const std::uint64_t u : numbers) {
    any |= u;
    widths += static_cast<std::uint64_t>(std::bit_width(u));
  }
  const std::uint64_t n = std::max<std::uint64_t>(numbers.size() + zeros, 1);
  double sum = 0;
  if (any >> 32U == 0) {  // integers are summed several times as fast
    sum = static_cast<double>(std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{0}));
  } else {
    for (const std::uint64_t u : numbers) sum += static_cast<double>(u);
  }
  const double mean = std::min(sum / static_cast<double>(n), 0x1p62);
  NumberCode best;
  std::uint64_t tried = 0;  // bit p: parameter p
  for (const auto middle :
       {static_cast<unsigned>(widths / n), static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(mean)))}) {
    for (unsigned parameter = middle < 2 ? 0 : middle - 2; parameter <= std::min(middle + 1, largest_parameter); ++parameter) {
      if ((tried >> parameter & 1U) != 0) continue;
      tried |= std::uint64_t{1} << parameter;
      const std::uint64_t bits = zeros * rice_bits(0, parameter) + rice_bits_of_all(numbers, any, parameter);
      if (!best.rice || bits < best.bits) best = {true, parameter, bits};
    }
  }
  return best;
}

NumberCode choose_code(std::span<const std::uint64_t> numbers, std::uint64_t zeros) {
  std::uint64_t any = 0;
  for (const std::uint64_t u : numbers) any |= u;
  NumberCode fixed;
  fixed.parameter = static_cast<unsigned>(std::bit_width(any));
  fixed.bits = (numbers.size() + zeros) * fixed.parameter;
  const NumberCode rice = choose_rice(numbers, zeros, largest_value_parameter);
  // 64 bits cannot be named as a width.
  return fixed.parameter > largest_value_parameter || rice.bits < fixed.bits ? rice : fixed;
}

void put(BitWriter& bits, const NumberCode& code, std::uint64_t u) {
  if (code.rice) {
    bits.put_rice(u, code.parameter);
  } else {
    bits.put(u, code.parameter);
  }
}

std::uint64_t get(BitReader& bits, const NumberCode& code) {
  return code.rice ? bits.get_rice(code.parameter) : bits.get(code.parameter);
}

// How the dense form numbers a value of `steps` steps: 0, -1, 1, -2, ... -> 0, 1, 2, 3, ...
std::uint64_t zigzag(bool negative, std::uint64_t steps) { return 2 * steps - (negative ? 1 : 0); }

// Most numbers fit 32 bits, which older processors divide several times as fast.
std::uint64_t quotient(std::uint64_t number, std::uint64_t divisor) {
  if ((number | divisor) >> 32U == 0) return static_cast<std::uint32_t>(number) / static_cast<std::uint32_t>(divisor);
  return number / divisor;
}

std::uint64_t common_divisor(std::span<const std::int64_t> values) {
  std::uint64_t divisor = 0;
  for (const std::int64_t value : values) {
    const std::uint64_t size = magnitude(value);
    if (divisor == 0 || quotient(size, divisor) * divisor != size) divisor = std::gcd(divisor, size);
    if (divisor == 1) break;
  }
  return std::max<std::uint64_t>(divisor, 1);
}

// A vector in the form in which its message is shortest.
struct Form {
  bool dense = false;
  std::uint64_t step = 1;
  NumberCode gap_code, value_code;
  std::vector<std::uint64_t> gaps;    // sparse only: indices that are left out before each entry
  std::vector<std::uint64_t> values;  // by entry: sparse: |value| / step - 1; dense: their numbers
  std::uint64_t bits = 0;             // after the header

  explicit Form(const SparseVector& vector) : step(common_divisor(vector.value)) {
    const std::size_t count = vector.index.size();
    gaps.resize(count);
    values.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      gaps[i] = i == 0 ? vector.index[0] : vector.index[i] - vector.index[i - 1] - 1;
      values[i] = (step == 1 ? magnitude(vector.value[i]) : quotient(magnitude(vector.value[i]), step)) - 1;
    }
    gap_code = choose_rice(gaps, 0, largest_gap_parameter);
    value_code = choose_code(values, 0);
    bits = gap_code.bits + count + value_code.bits;
    // Without any entry the dense form would have 0 bits per element, and nothing would bound what a message claims. With one,
    // it has at least a bit for each.
    if (count == 0 || vector.size >= bits) return;
    std::vector<std::uint64_t> numbers(count);
    for (std::size_t i = 0; i < count; ++i) numbers[i] = zigzag(vector.value[i] < 0, values[i] + 1);
    const NumberCode code = choose_code(numbers, vector.size - count);
    if (code.bits >= bits) return;
    dense = true;
    value_code = code;
    values = std::move(numbers);
    bits = code.bits;
  }

  std::size_t header_bytes(const SparseVector& vector) const {
    return 4 + varint_bytes(vector.size) + varint_bytes(step) + (dense ? 0 : 1 + varint_bytes(vector.index.size()));
  }
};

// The value of `steps` steps: -2^63 has no positive counterpart.
std::int64_t to_value(bool negative, std::uint64_t steps, std::uint64_t step) {
  constexpr std::uint64_t limit = std::uint64_t{1} << 63U;
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(steps, step, &product) || product > limit || (product == limit && !negative)) {
    fail(ErrorKind::data, "sparse message: {} steps of {} do not fit 64 bits", steps, step);
  }
  return static_cast<std::int64_t>(negative ? ~product + 1 : product);
}

SparseVector sum_of_two(const SparseVector& a, const SparseVector& b) {
  SparseVector sum;
  sum.size = a.size;
  sum.index.reserve(a.index.size() + b.index.size());
  sum.value.reserve(a.index.size() + b.index.size());
  const auto add = [&](std::uint32_t index, std::int64_t value) {
    if (value == 0) return;
    sum.index.push_back(index);
    sum.value.push_back(value);
  };
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.index.size() && j < b.index.size()) {
    if (a.index[i] < b.index[j]) {
      add(a.index[i], a.value[i]);
      ++i;
    } else if (b.index[j] < a.index[i]) {
      add(b.index[j], b.value[j]);
      ++j;
    } else {
      add(a.index[i],
          static_cast<std::int64_t>(static_cast<std::uint64_t>(a.value[i]) + static_cast<std::uint64_t>(b.value[j])));
      ++i;
      ++j;
    }
  }
  for (; i < a.index.size(); ++i) add(a.index[i], a.value[i]);
  for (; j < b.index.size(); ++j) add(b.index[j], b.value[j]);
  return sum;
}

}  // namespace

SparseVector to_sparse(std::span<const std::int64_t> dense) {
  if (dense.size() > SparseVector::largest_size) {
    fail(ErrorKind::usage, "to_sparse: a vector of {} elements; expected at most 2^32", dense.size());
  }
  SparseVector vector;
  vector.size = dense.size();
  for (std::size_t i = 0; i < dense.size(); ++i) {
    if (dense[i] == 0) continue;
    vector.index.push_back(static_cast<std::uint32_t>(i));
    vector.value.push_back(dense[i]);
  }
  return vector;
}

std::size_t encode(const SparseVector& vector, std::vector<std::byte>& out) {
  const std::size_t start = out.size();
  const std::size_t count = vector.index.size();
  const Form form(vector);
  const NumberCode& values = form.value_code;
  const unsigned flags = (form.dense ? dense_flag : 0) | (values.rice ? rice_flag : 0);
  out.insert(out.end(),
             {sparse_magic, sparse_version, static_cast<std::byte>(flags), static_cast<std::byte>(values.parameter)});
  if (!form.dense) out.push_back(static_cast<std::byte>(form.gap_code.parameter));
  put_varint(out, vector.size);
  if (!form.dense) put_varint(out, count);
  put_varint(out, form.step);
  BitWriter bits(out);
  if (form.dense) {
    std::size_t next = 0;
    for (std::uint64_t i = 0; i < vector.size; ++i) {
      const bool here = next < count && vector.index[next] == i;
      put(bits, values, here ? form.values[next] : 0);
      next += here ? 1 : 0;
    }
  } else {
    for (const std::uint64_t gap : form.gaps) bits.put_rice(gap, form.gap_code.parameter);
    for (std::size_t i = 0; i < count; ++i) {
      bits.put(vector.value[i] < 0 ? 1 : 0, 1);
      put(bits, values, form.values[i]);
    }
  }
  bits.finish();
  return out.size() - start;
}

std::size_t encoded_size(const SparseVector& vector) {
  const Form form(vector);
  return form.header_bytes(vector) + static_cast<std::size_t>((form.bits + 7) / 8);
}

SparseVector decode(std::span<const std::byte> message) {
  std::span<const std::byte> rest = message;
  const auto next = [&](const char* what) {
    if (rest.empty()) fail(ErrorKind::data, "sparse message: it ends after {} bytes, before its {}", message.size(), what);
    const std::byte byte = rest.front();
    rest = rest.subspan(1);
    return byte;
  };
  if (next("mark") != sparse_magic) fail(ErrorKind::data, "sparse message: it does not start with the mark of one");
  if (const std::byte found = next("version"); found != sparse_version) {
    fail(ErrorKind::data, "sparse message: version {}; expected {}", std::to_integer<unsigned>(found),
         std::to_integer<unsigned>(sparse_version));
  }
  const auto flags = std::to_integer<unsigned>(next("flags"));
  if (flags > (dense_flag | rice_flag)) fail(ErrorKind::data, "sparse message: unknown flags {:#x}", flags);
  const bool is_dense = (flags & dense_flag) != 0;
  NumberCode values = {(flags & rice_flag) != 0, std::to_integer<unsigned>(next("values' code")), 0};
  if (values.parameter > largest_value_parameter || (is_dense && !values.rice && values.parameter == 0)) {
    fail(ErrorKind::data, "sparse message: {} bits per value are out of range", values.parameter);
  }
  const unsigned gap_parameter = is_dense ? 0 : std::to_integer<unsigned>(next("gaps' code"));
  if (gap_parameter > largest_gap_parameter) {
    fail(ErrorKind::data, "sparse message: {} bits per gap are out of range", gap_parameter);
  }
  SparseVector vector;
  vector.size = get_varint(rest, "size");
  if (vector.size > SparseVector::largest_size) {
    fail(ErrorKind::data, "sparse message: a vector of {} elements; expected at most 2^32", vector.size);
  }
  const std::uint64_t count = is_dense ? vector.size : get_varint(rest, "number of entries");
  const std::uint64_t step = get_varint(rest, "step");
  if (step == 0) fail(ErrorKind::data, "sparse message: its step is 0");
  BitReader bits(rest);
  // An element takes at least a bit, an entry at least two.
  if (count > vector.size || count > bits.left() / (is_dense ? 1 : 2)) {
    fail(ErrorKind::data, "sparse message: {} values of a vector of {} cannot be in {} bytes", count, vector.size, rest.size());
  }
  if (is_dense) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t code = get(bits, values);
      if (code == 0) continue;
      vector.index.push_back(static_cast<std::uint32_t>(i));
      vector.value.push_back(to_value((code & 1U) != 0, code / 2 + code % 2, step));
    }
  } else {
    vector.index.resize(count);
    vector.value.resize(count);
    std::uint64_t index = 0;
    for (std::uint64_t i = 0; i < count; ++i, ++index) {
      const std::uint64_t gap = bits.get_rice(gap_parameter);
      if (gap >= vector.size || (index += gap) >= vector.size) {
        fail(ErrorKind::data, "sparse message: entry {} is beyond the {} elements of the vector", i, vector.size);
      }
      vector.index[i] = static_cast<std::uint32_t>(index);
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      const bool negative = bits.get(1) != 0;
      const std::uint64_t less_one = get(bits, values);
      if (less_one == ~std::uint64_t{0}) fail(ErrorKind::data, "sparse message: the value of entry {} does not fit 64 bits", i);
      vector.value[i] = to_value(negative, less_one + 1, step);
    }
  }
  if (bits.left() >= 8 || bits.get(static_cast<unsigned>(bits.left())) != 0) {
    fail(ErrorKind::data, "sparse message: there is more than its values in its {} bytes", message.size());
  }
  return vector;
}

SparseVector merge(std::vector<SparseVector> parts) {
  if (parts.empty()) return {};
  for (const SparseVector& part : parts) {
    if (part.size != parts.front().size) {
      fail(ErrorKind::usage, "merge: a vector of {} elements; expected {} as in the first", part.size, parts.front().size);
    }
  }
  std::uint64_t entries = 0;
  for (const SparseVector& part : parts) entries += part.index.size();
  if (parts.size() > 1 && entries >= parts.front().size) {  // most elements are there, many times
    std::vector<std::int64_t> sums(parts.front().size);
    for (const SparseVector& part : parts) add_to(sums, part);
    return to_sparse(sums);
  }
  // Neighbours first, so that no entry is copied more often than the logarithm of their number.
  while (parts.size() > 1) {
    for (std::size_t i = 0; i + 1 < parts.size(); i += 2) parts[i / 2] = sum_of_two(parts[i], parts[i + 1]);
    if (parts.size() % 2 == 1) std::swap(parts[parts.size() / 2], parts.back());
    parts.resize((parts.size() + 1) / 2);
  }
  return std::move(parts.front());
}

void add_to(std::span<std::int64_t> sums, const SparseVector& vector) {
  if (vector.size != sums.size()) {
    fail(ErrorKind::usage, "add_to: a vector of {} elements; expected {}", vector.size, sums.size());
  }
  for (std::size_t i = 0; i < vector.index.size(); ++i) {
    std::int64_t& sum = sums[vector.index[i]];
    sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum) + static_cast<std::uint64_t>(vector.value[i]));
  }
}

}  // namespace bitloom::mpi
