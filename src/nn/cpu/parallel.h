// Loops over pieces of tensors, by threads where there is enough to do. What a piece is depends on shapes alone, so that
// results do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>

namespace bitloom::nn {

// Number of bytes read and written below which starting threads takes longer than the work.
inline constexpr std::size_t parallel_bytes = 256 * 1024;

// The first exception of a parallel region's pieces: one that left the region would end the program.
class FirstFailure {
 public:
  template <typename Work>
  void guard(const Work& work) noexcept {
    try {
      work();
    } catch (...) {
      if (!is_taken_.test_and_set()) failure_ = std::current_exception();
    }
  }
  // After the region.
  void rethrow() const {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

 private:
  std::atomic_flag is_taken_;
  std::exception_ptr failure_;
};

// Calls work(0) ... work(pieces - 1), neighbours by the same thread. Throws the first exception of any, after all.
template <typename Work>
void for_pieces(std::size_t pieces, bool in_parallel, const Work& work) {
  FirstFailure failure;
#pragma omp parallel for schedule(static) if (in_parallel && pieces > 1)
  for (std::size_t piece = 0; piece < pieces; ++piece) failure.guard([&] { work(piece); });
  failure.rethrow();
}

// The same for pieces of unequal size.
template <typename Work>
void for_uneven_pieces(std::size_t pieces, bool in_parallel, const Work& work) {
  FirstFailure failure;
#pragma omp parallel for schedule(dynamic) if (in_parallel && pieces > 1)
  for (std::size_t piece = 0; piece < pieces; ++piece) failure.guard([&] { work(piece); });
  failure.rethrow();
}

// Elements of a piece: a multiple of what 8 elements of few bits and a group of dropout are.
inline constexpr std::size_t piece_elements = 8192;

// Calls work(first element, elements).
template <typename Work>
void for_elements(std::size_t n, std::size_t bytes_per_element, const Work& work) {
  const std::size_t pieces = (n + piece_elements - 1) / piece_elements;
  for_pieces(pieces, n * bytes_per_element >= parallel_bytes, [&](std::size_t piece) {
    const std::size_t first = piece * piece_elements;
    work(first, std::min(piece_elements, n - first));
  });
}

// Calls work(first row, rows) for rows of `columns`.
template <typename Work>
void for_rows(std::size_t rows, std::size_t columns, std::size_t bytes_per_element, const Work& work) {
  const std::size_t per_piece = std::max<std::size_t>(piece_elements / std::max<std::size_t>(columns, 1), 1);
  for_pieces((rows + per_piece - 1) / per_piece, rows * columns * bytes_per_element >= parallel_bytes, [&](std::size_t piece) {
    const std::size_t first = piece * per_piece;
    work(first, std::min(per_piece, rows - first));
  });
}

}  // namespace bitloom::nn
