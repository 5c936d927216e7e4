// Rows of tables by number.
#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "core/error.h"
#include "nn/cpu/cpu_backend.h"
#include "nn/cpu/elements.h"
#include "nn/cpu/parallel.h"

namespace bitloom::nn {
namespace {

// ids (R) in [0, all). They are data, which ops.h cannot look at on every device; here that costs nothing.
std::span<const std::int32_t> checked_ids(std::string_view op, const Tensor& ids, std::size_t all) {
  const std::span<const std::int32_t> ids_r = ids.as<std::int32_t>();
  for (std::size_t r = 0; r < ids_r.size(); ++r) {
    if (ids_r[r] < 0 || static_cast<std::size_t>(ids_r[r]) >= all) {
      fail(ErrorKind::usage, "{}: ids[{}]: {}; expected 0 to {}", op, r, ids_r[r], static_cast<std::int64_t>(all) - 1);
    }
  }
  return ids_r;
}

// out (R,C) = table[ids (R)], or += it; table has `rows` rows.
template <typename T, typename O>
void gather_rows(const T* table, std::size_t rows, std::span<const std::int32_t> ids_r, const VocabularySlice& slice,
                 std::size_t columns, bool accumulate, O* out) {
#pragma omp parallel for schedule(static) if (ids_r.size() * columns * sizeof(O) >= parallel_bytes)
  for (std::size_t r = 0; r < ids_r.size(); ++r) {
    const std::size_t row = slice.place_of(ids_r[r]);
    O* to_c = out + r * columns;
    if (row >= rows) {
      if (!accumulate) std::fill_n(to_c, columns, O{});
      continue;
    }
    const T* from_c = table + row * columns;
    if (accumulate) {
      for (std::size_t c = 0; c < columns; ++c) to_c[c] = from_float<O>(to_float(to_c[c]) + to_float(from_c[c]));
    } else if constexpr (std::is_same_v<T, O>) {
      std::copy_n(from_c, columns, to_c);
    } else {
      for (std::size_t c = 0; c < columns; ++c) to_c[c] = from_float<O>(to_float(from_c[c]));
    }
  }
}

// A table of sums and the slice that it is.
struct TableSums {
  float* data = nullptr;
  std::size_t rows = 0, columns = 0;
  VocabularySlice slice;
};

// dtable[ids[r]] += dout[r] for the rows r whose id is `share` modulo `parts`, in columns from `begin` to `end`, by ascending
// r.
template <typename T>
void scatter_part(const T* dout, std::span<const std::int32_t> ids_r, const TableSums& dtable, std::size_t begin,
                  std::size_t end, std::uint32_t share, std::uint32_t parts) {
  for (std::size_t r = 0; r < ids_r.size(); ++r) {
    const std::size_t row = dtable.slice.place_of(ids_r[r]);
    if (static_cast<std::uint32_t>(ids_r[r]) % parts != share || row >= dtable.rows) continue;
    const T* from_c = dout + r * dtable.columns;
    float* to_c = dtable.data + row * dtable.columns;
    for (std::size_t c = begin; c < end; ++c) to_c[c] += to_float(from_c[c]);
  }
}

// Columns that a thread takes at once at least: two cache lines of f32, so that threads write no line in common (if the table
// is aligned) and memory is read in runs.
constexpr std::size_t least_columns = 32;

// Every element of the table belongs to one task and gets its rows in ascending order, so the result does not depend on the
// number of threads. Tasks are ranges of columns first: those are equally long, whereas some ids are far more frequent than
// others (padding, spaces). Only threads that columns leave without work are given a share of the ids.
template <typename T>
void scatter_rows(const T* dout, std::span<const std::int32_t> ids_r, const TableSums& dtable) {
  const std::size_t columns = dtable.columns;
  const auto threads = static_cast<std::size_t>(omp_get_max_threads());
  const std::size_t ranges = std::clamp(columns / least_columns, std::size_t{1}, threads);
  const std::size_t width = (columns + ranges - 1) / ranges;
  const std::size_t aligned = (width + 15) / 16 * 16;
  const std::size_t used = (columns + aligned - 1) / aligned;
  const std::size_t parts = std::max(threads / used, std::size_t{1});
#pragma omp parallel for schedule(static) collapse(2) if (ids_r.size() * columns * sizeof(T) >= parallel_bytes)
  for (std::size_t range = 0; range < used; ++range) {
    for (std::size_t share = 0; share < parts; ++share) {
      const std::size_t begin = range * aligned;
      scatter_part(dout, ids_r, dtable, begin, std::min(begin + aligned, columns), static_cast<std::uint32_t>(share),
                   static_cast<std::uint32_t>(parts));
    }
  }
}

}  // namespace

void CpuBackend::gather(const Tensor& table, const Tensor& ids, Tensor& out, bool accumulate, const VocabularySlice& slice) {
  const std::span<const std::int32_t> ids_r = checked_ids("gather", ids, slice.all);
  const std::size_t rows = table.shape()[0];
  const std::size_t columns = table.shape()[1];
  with_type(out.dtype(), [&]<typename O>(O) {
    with_type(table.dtype(), [&]<typename T>(T) {
      gather_rows(elements<T>(table), rows, ids_r, slice, columns, accumulate, elements<O>(out));
    });
  });
}

void CpuBackend::scatter_add(const Tensor& dout, const Tensor& ids, Tensor& dtable, const VocabularySlice& slice) {
  const std::span<const std::int32_t> ids_r = checked_ids("scatter_add", ids, slice.all);
  if (dout.size() == 0) return;
  const TableSums sums{elements<float>(dtable), dtable.shape()[0], dtable.shape()[1], slice};
  with_type(dout.dtype(), [&]<typename T>(T) { scatter_rows(elements<T>(dout), ids_r, sums); });
}

}  // namespace bitloom::nn
