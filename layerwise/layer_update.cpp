// How a layer's summed gradients become changes of its weights, and how these are made.
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/random.h"
#include "layerwise/exact_signal.h"
#include "layerwise/layer_trainer.h"
#include "mpi/sparse_filter.h"

namespace bitloom::layerwise {

namespace {

constexpr std::size_t rows_per_part = 16;
constexpr double smallest_moment = 1e-4;  // relative to the mean of all

}  // namespace

// With the value-weighted count n_k of set input bits and G0 the sum of values, dL/dw_k of value(w_k) is proportional to
// sum value * value(x_k) = G0 - 2 n_k. The threshold follows the mean, which moves with w_k as -value(mean x_k) does, so the
// input is centred: G0 - 2 n_k - G0 (1 - 2 density_k) = 2 (G0 density_k - n_k), as in batch normalisation.
// Returns the sum of squares.
double LayerTrainer::own_gradient(const LayerSums& sums, std::size_t o, bool centred, float* gradient) const {
  const std::size_t bits = layer_.patch_bits();
  const std::int32_t* row = sums.weight.data() + o * bits;
  if (!options_.exact && !centred) {
    return simd::kernels().centre_gradient(row, density_of_bit_.data(), bits, static_cast<float>(sums.value()[o]), gradient);
  }
  if (centred) {
    for (std::size_t k = 0; k < bits; ++k) gradient[k] = -static_cast<float>(row[k]);
  } else {
    exact_gradient(sums, o, gradient);
  }
  double sum = 0;
  for (std::size_t k = 0; k < bits; ++k) sum += static_cast<double>(gradient[k]) * static_cast<double>(gradient[k]);
  return sum;
}

// The gradient of row `row` of weights and its sum of squares: tied weights have the sum of theirs.
double LayerTrainer::gradient_of(const LayerSums& sums, std::size_t row, bool centred, float* gradient) const {
  const Ties& ties = layer_.ties();
  const double own_squares = own_gradient(sums, row, centred, gradient);
  if (!ties.any()) return own_squares;
  const std::size_t bits = layer_.patch_bits();
  thread_local std::vector<float> other;
  other.resize(bits);
  for (std::size_t o = row + ties.rows(); o < layer_.channels(); o += ties.rows()) {
    own_gradient(sums, o, centred, other.data());
    for (std::size_t k = 0; k < bits; ++k) gradient[k] += other[k];
  }
  ties.sum({gradient, bits});
  double squares = 0;
  for (std::size_t k = 0; k < bits; ++k) squares += static_cast<double>(gradient[k]) * static_cast<double>(gradient[k]);
  return squares;
}

// The sums of the squares of the gradient by row, whose sum is returned, and with second moments by column: in parts of some
// rows each, so that the order in which numbers are added does not depend on the number of threads.
double LayerTrainer::gather_squares(const LayerSums& sums, bool centred) {
  const std::size_t bits = layer_.patch_bits();
  const std::size_t rows = layer_.ties().rows();
  const bool columns = !column_moment_.empty();
  const std::size_t rows_of_part = columns ? rows_per_part : 1;
  const std::size_t parts = (rows + rows_of_part - 1) / rows_of_part;
  if (columns) column_squares_.assign(parts * bits, 0);
#pragma omp parallel
  {
    thread_local std::vector<float> gradient;
    gradient.resize(bits);
#pragma omp for schedule(static)
    for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(parts); ++i) {
      const std::size_t begin = static_cast<std::size_t>(i) * rows_of_part;
      for (std::size_t o = begin; o < std::min(begin + rows_of_part, rows); ++o) {
        row_squares_[o] = gradient_of(sums, o, centred, gradient.data());
        if (!columns) continue;
        double* column = column_squares_.data() + static_cast<std::size_t>(i) * bits;
        for (std::size_t k = 0; k < bits; ++k) {
          column[k] += static_cast<double>(gradient[k]) * static_cast<double>(gradient[k]);
        }
      }
    }
  }
  double squares = 0;
  for (const double row : row_squares_) squares += row;
  return squares;
}

// Moves the second moments by what gather_squares() found, and derives the scales of rows and columns: a weight's moment is
// that of its row times that of its column, each relative to the mean of all. inverse: 1 / the layer's root mean square, which
// the scales leave as it is: where only large gradients arrive, those that do must not be taken for usual ones.
void LayerTrainer::move_second_moments(double inverse) {
  const std::size_t bits = layer_.patch_bits();
  const std::size_t rows = layer_.ties().rows();
  const auto valid = static_cast<double>(layer_.geometry().valid_bits);
  for (std::size_t part = 1; part * bits < column_squares_.size(); ++part) {
    for (std::size_t k = 0; k < bits; ++k) column_squares_[k] += column_squares_[part * bits + k];
  }
  const double keep = options_.second_moment_decay;
  const auto move = [&](double& moment, double squares, double weights) {
    moment = keep * moment + (1 - keep) * squares * inverse * inverse / weights;
  };
  double mean_row = 0;
  double mean_column = 0;
  for (std::size_t o = 0; o < rows; ++o) {
    move(row_moment_[o], row_squares_[o], valid);
    mean_row += row_moment_[o] / static_cast<double>(rows);
  }
  for (std::size_t k = 0; k < bits; ++k) {
    if (!get_bit(layer_.valid_bits().data(), k)) continue;
    move(column_moment_[k], column_squares_[k], static_cast<double>(rows));
    mean_column += column_moment_[k] / valid;
  }
  // Without gradient moments fall to 0.
  const auto scale = [](double moment, double mean) { return 1 / std::sqrt(std::max(moment / mean, smallest_moment)); };
  for (std::size_t o = 0; o < rows; ++o) row_scale_[o] = static_cast<float>(inverse * scale(row_moment_[o], mean_row));
  for (std::size_t k = 0; k < bits; ++k) column_scale_[k] = static_cast<float>(scale(column_moment_[k], mean_column));
}

void LayerTrainer::choose(const LayerSums& sums, double rate, std::uint64_t step, std::optional<double> centred_rms) {
  const std::size_t bits = layer_.patch_bits();
  std::copy(layer_.rows().begin(), layer_.rows().end(), new_sign_.begin());
  if (!new_nonzero_.empty()) std::copy(layer_.nonzero_rows().begin(), layer_.nonzero_rows().end(), new_nonzero_.begin());
  const Ties& ties = layer_.ties();
  const double weights = static_cast<double>(ties.rows()) * static_cast<double>(layer_.geometry().valid_bits);
  const bool factored = !row_moment_.empty();
  float inverse = 0;
  if (centred_rms) {
    const bool any = std::any_of(sums.weight.begin(), sums.weight.end(), [](std::int32_t sum) { return sum != 0; });
    if (!any || !(*centred_rms > 0)) return;
    // It is that of single elements; of n tied ones, whose signs are taken to be random, the sum has sqrt(n) times as much.
    const double tied =
        static_cast<double>(layer_.channels() * layer_.geometry().valid_bits) / static_cast<double>(layer_.weights());
    inverse = static_cast<float>(1.0 / (*centred_rms * std::sqrt(tied)));
    if (factored) gather_squares(sums, true);
  } else {
    const double squares = gather_squares(sums, false);
    if (!(squares > 0)) return;
    inverse = static_cast<float>(std::sqrt(weights / squares));
  }
  if (factored) move_second_moments(static_cast<double>(inverse));
  const auto each_row = [&](auto&& visit) {
#pragma omp parallel for schedule(static)
    for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(ties.rows()); ++i) {
      thread_local std::vector<float> gradient;
      gradient.resize(bits);
      visit(static_cast<std::size_t>(i), gradient);
    }
  };
  if (muon_) {
    each_row([&](std::size_t o, std::vector<float>& gradient) {
      gradient_of(sums, o, centred_rms.has_value(), gradient.data());
      muon_->take(o, gradient, inverse);
    });
    muon_->orthogonalise();
  }
  each_row([&](std::size_t o, std::vector<float>& gradient) {
    if (muon_) {
      muon_->give(o, gradient);
    } else {
      gradient_of(sums, o, centred_rms.has_value(), gradient.data());
      const float scale = factored ? row_scale_[o] : inverse;
      for (float& g : gradient) g *= scale;
      for (std::size_t k = 0; k < bits && factored; ++k) gradient[k] *= column_scale_[k];
    }
    std::uint64_t* sign = new_sign_.data() + o * layer_.patch_words();
    std::uint64_t* nonzero = new_nonzero_.empty() ? nullptr : new_nonzero_.data() + o * layer_.patch_words();
    rule_.update(options_.rule, rate, Random(flip_key_, Stream::flips, step, o).next(),
                 {state_.data() + o * bits, gradient.data(), layer_.valid_bits().data(), sign, nonzero, bits});
    const std::size_t words = layer_.patch_words();
    for (std::size_t same = o + ties.rows(); same < layer_.channels(); same += ties.rows()) {
      std::copy_n(state_.data() + o * bits, bits, state_.data() + same * bits);
      std::copy_n(sign, words, new_sign_.data() + same * words);
      if (nonzero != nullptr) std::copy_n(nonzero, words, new_nonzero_.data() + same * words);
    }
  });
  if (rule_.score != nullptr) {
    flip_highest_scores(rule_.flips(options_.rule, rate, weights));
  } else if (options_.flip_limit != 0 && new_nonzero_.empty()) {
    limit_flips();
  }
}

mpi::SparseVector LayerTrainer::changes() const {
  mpi::SparseVector changes;
  changes.size = state_.size();
  const bool ternary = !new_nonzero_.empty();
  for (std::size_t i = 0; i < new_sign_.size(); ++i) {
    std::uint64_t changed = layer_.rows()[i] ^ new_sign_[i];
    if (ternary) changed |= layer_.nonzero_rows()[i] ^ new_nonzero_[i];
    for (; changed != 0; changed &= changed - 1) {
      const auto bit = static_cast<std::size_t>(std::countr_zero(changed));
      const auto value = [&](std::uint64_t sign, std::uint64_t nonzero) {
        return ((nonzero >> bit) & 1U) == 0 ? 0 : bit_value((sign >> bit) & 1U);
      };
      const int before = value(layer_.rows()[i], ternary ? layer_.nonzero_rows()[i] : ~std::uint64_t{0});
      const int after = value(new_sign_[i], ternary ? new_nonzero_[i] : ~std::uint64_t{0});
      changes.index.push_back(static_cast<std::uint32_t>(i / layer_.patch_words() * layer_.patch_bits() +
                                                         i % layer_.patch_words() * word_bits + bit));
      changes.value.push_back(after - before);
    }
  }
  return changes;
}

// Whether weights (O, words of a patch) that were tied before these changes still are.
bool LayerTrainer::are_tied(const mpi::SparseVector& changes, std::span<const std::uint64_t> weights) const {
  const Ties& ties = layer_.ties();
  if (!ties.any()) return true;
  const std::size_t words = layer_.patch_words();
  const auto again = weights.subspan(ties.rows() * words);
  if (!std::equal(again.begin(), again.end(), weights.begin())) return false;
  std::vector<std::uint64_t> spread(words);
  std::size_t checked = layer_.channels();  // the last row that was: changes of a row come one after the other
  for (const std::uint32_t index : changes.index) {
    const std::size_t row = index / layer_.patch_bits();
    if (row == std::exchange(checked, row)) continue;
    std::copy_n(weights.data() + row * words, words, spread.begin());
    ties.spread(spread.data());
    if (!std::equal(spread.begin(), spread.end(), weights.data() + row * words)) return false;
  }
  return true;
}

void LayerTrainer::take_changes(const mpi::SparseVector& changes) {
  if (changes.size != state_.size()) {
    fail(ErrorKind::data, "layer '{}': changes of {} weights; expected {}", layer_.spec().name, changes.size, state_.size());
  }
  const bool ternary = !new_nonzero_.empty();
  std::copy(layer_.rows().begin(), layer_.rows().end(), new_sign_.begin());
  if (ternary) std::copy(layer_.nonzero_rows().begin(), layer_.nonzero_rows().end(), new_nonzero_.begin());
  for (std::size_t i = 0; i < changes.index.size(); ++i) {
    const std::size_t row = changes.index[i] / layer_.patch_bits();
    const std::size_t k = changes.index[i] % layer_.patch_bits();
    std::uint64_t* sign = new_sign_.data() + row * layer_.patch_words();
    std::uint64_t* nonzero = ternary ? new_nonzero_.data() + row * layer_.patch_words() : nullptr;
    const std::int64_t before = ternary && !get_bit(nonzero, k) ? 0 : bit_value(get_bit(sign, k));
    const std::int64_t after =
        static_cast<std::int64_t>(static_cast<std::uint64_t>(before) + static_cast<std::uint64_t>(changes.value[i]));
    if (!get_bit(layer_.valid_bits().data(), k) || after < -1 || after > 1 || (after == 0 && !ternary)) {
      fail(ErrorKind::data, "layer '{}': a change of weight {} by {} does not fit its value, {}", layer_.spec().name,
           changes.index[i], changes.value[i], before);
    }
    set_bit(sign, k, after < 0);
    if (ternary) set_bit(nonzero, k, after != 0);
  }
  // Kernels rely on it.
  if (!are_tied(changes, new_sign_) || (ternary && !are_tied(changes, new_nonzero_))) {
    fail(ErrorKind::data, "layer '{}': changes of one of several tied weights", layer_.spec().name);
  }
}

std::size_t LayerTrainer::apply(std::size_t unseen) {
  const auto rows = static_cast<std::ptrdiff_t>(layer_.channels());
  std::size_t flips = 0;
#pragma omp parallel for schedule(static) reduction(+ : flips)
  for (std::ptrdiff_t i = 0; i < rows; ++i) {
    const auto o = static_cast<std::size_t>(i);
    const std::size_t first = o * layer_.patch_words();
    const std::uint64_t* nonzero = new_nonzero_.empty() ? nullptr : new_nonzero_.data() + first;
    double moved = 0;
    std::size_t changes = 0;
    for (std::size_t w = 0; w < layer_.patch_words(); ++w) {
      const std::uint64_t old_sign = layer_.rows()[first + w];
      const std::uint64_t old_nonzero = nonzero != nullptr ? layer_.nonzero_rows()[first + w] : layer_.valid_bits()[w];
      const std::uint64_t now_nonzero = nonzero != nullptr ? nonzero[w] : old_nonzero;
      std::uint64_t changed = (old_sign ^ new_sign_[first + w]) | (old_nonzero ^ now_nonzero);
      changes += static_cast<std::size_t>(std::popcount(changed));
      if (o < layer_.ties().rows()) flips += static_cast<std::size_t>(std::popcount(changed & layer_.ties().first()[w]));
      // The mean count moves at once with every flip; the moving average alone would lag.
      for (; changed != 0; changed &= changed - 1) {
        const auto b = static_cast<std::size_t>(std::countr_zero(changed));
        const float p = density_of_bit_[w * word_bits + b];
        moved += expected_count((new_sign_[first + w] >> b) & 1U, (now_nonzero >> b) & 1U, p) -
                 expected_count((old_sign >> b) & 1U, (old_nonzero >> b) & 1U, p);
      }
    }
    if (changes != 0) {
      mean_[o] += moved;
      unseen_[o] += static_cast<double>(unseen) * moved;
      layer_.set_row(o, new_sign_.data() + first, nonzero);
    }
  }
  return flips;
}

// The product of two floats is rounded once, so that any machine gets the same integer.
void LayerTrainer::centre(const std::int32_t* counts, std::int64_t total, unsigned shift, std::int32_t* centred) const {
  const float scaled = static_cast<float>(total) * static_cast<float>(1U << shift);
  for (std::size_t k = 0; k < density_of_bit_.size(); ++k) {
    const float mean = scaled * density_of_bit_[k];
    centred[k] = (counts[k] << shift) - static_cast<std::int32_t>(mean + (mean < 0 ? -0.5F : 0.5F));
  }
}

void LayerTrainer::exact_slopes(std::span<const std::int64_t> changes, std::span<std::int32_t> slopes) const {
  constexpr std::int64_t limit = mpi::largest_kept<std::int32_t>;
  const std::size_t bits = layer_.patch_bits();
  const bool ternary = layer_.spec().ternary;
  const auto channels = static_cast<std::ptrdiff_t>(layer_.channels());
#pragma omp parallel for schedule(static)
  for (std::ptrdiff_t i = 0; i < channels; ++i) {
    const auto o = static_cast<std::size_t>(i);
    const std::uint64_t* sign = layer_.rows().data() + o * layer_.patch_words();
    const std::uint64_t* nonzero = ternary ? layer_.nonzero_rows().data() + o * layer_.patch_words() : nullptr;
    const std::int64_t* change = changes.data() + o * bits * moves_per_weight(layer_);
    for (std::size_t k = 0; k < bits; ++k) {
      std::int64_t slope = get_bit(sign, k) ? change[k] : -change[k];
      if (ternary) {
        const int value = trit_value(sign, nonzero, k);
        const auto moves = trit_moves(value);
        slope = 0;
        for (std::size_t m = 0; m < moves.size(); ++m) slope += change[m * bits + k] * 2 / (moves[m] - value);
      }
      slopes[o * bits + k] = static_cast<std::int32_t>(std::clamp(-slope, -limit, limit));
    }
  }
}

// The slopes that the exact loss changes of a weight's moves amount to: change / (new value - old value), the mean of both
// moves for a trit.
void LayerTrainer::exact_gradient(const LayerSums& sums, std::size_t o, float* gradient) const {
  const std::size_t bits = layer_.patch_bits();
  const std::uint64_t* sign = layer_.rows().data() + o * layer_.patch_words();
  if (!layer_.spec().ternary) {
    const std::int64_t* change = sums.exact.data() + o * bits;
    for (std::size_t k = 0; k < bits; ++k) gradient[k] = static_cast<float>(get_bit(sign, k) ? change[k] : -change[k]);
    return;
  }
  const std::uint64_t* nonzero = layer_.nonzero_rows().data() + o * layer_.patch_words();
  const std::int64_t* change = sums.exact.data() + 2 * o * bits;
  for (std::size_t k = 0; k < bits; ++k) {
    const int value = trit_value(sign, nonzero, k);
    const auto moves = trit_moves(value);
    gradient[k] = 0;
    for (std::size_t m = 0; m < moves.size(); ++m) {
      gradient[k] += static_cast<float>(change[m * bits + k]) / static_cast<float>(moves[m] - value);
    }
  }
}

double LayerTrainer::expected_count(bool sign, bool nonzero, float density) const {
  return !nonzero ? 0.0 : sign ? 1.0 - density : density;
}

}  // namespace bitloom::layerwise
