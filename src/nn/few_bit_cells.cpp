#include "nn/few_bit_cells.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace bitloom::nn {
namespace {

struct Cell {
  double from, to;
  Moments moments;
};

std::vector<double> make_edges(const FewBitProblem& problem, std::size_t points) {
  const double width = problem.high - problem.low;
  std::vector<double> edges(points + 1);
  for (std::size_t i = 0; i <= points; ++i) {
    edges[i] = problem.low + width * (static_cast<double>(i) / static_cast<double>(points));
  }
  edges.back() = problem.high;
  // An edge next to a kink would make a sliver of a cell; the kink takes its place.
  const double near = 1e-3 * width / static_cast<double>(points);
  for (const double kink : problem.kinks) {
    if (!(kink > problem.low && kink < problem.high)) continue;
    std::erase_if(edges,
                  [&](double edge) { return edge > problem.low && edge < problem.high && std::abs(edge - kink) < near; });
  }
  for (const double kink : problem.kinks) {
    if (kink > problem.low && kink < problem.high) edges.push_back(kink);
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

}  // namespace

Cells::Cells(const FewBitProblem& problem, std::size_t points) : problem_(problem) {
  const auto make_cell = [&](double from, double to) {
    const Cell cell{from, to, integrate(problem_.derivative, problem_.weight, from, to)};
    if (!std::isfinite(cell.moments.weight) || !std::isfinite(cell.moments.mean) || !std::isfinite(cell.moments.scatter)) {
      fail(ErrorKind::usage, "derivative or weight: not finite between {} and {}", from, to);
    }
    if (cell.moments.weight < 0) fail(ErrorKind::usage, "weight: negative between {} and {}", from, to);
    return cell;
  };
  const std::vector<double> edges = make_edges(problem, (points + 1) / 2);
  std::vector<Cell> cells;
  double weight = 0;
  for (std::size_t i = 0; i + 1 < edges.size(); ++i) {
    cells.push_back(make_cell(edges[i], edges[i + 1]));
    weight += cells.back().moments.weight;
  }
  if (!(weight > 0)) fail(ErrorKind::usage, "weight: zero from {} to {}; expected some weight", problem.low, problem.high);
  const auto less_error = [](const Cell& a, const Cell& b) {
    return a.moments.scatter != b.moments.scatter ? a.moments.scatter < b.moments.scatter : a.from > b.from;
  };
  std::make_heap(cells.begin(), cells.end(), less_error);
  while (cells.size() < points) {
    std::pop_heap(cells.begin(), cells.end(), less_error);
    const Cell whole = cells.back();
    const double middle = 0.5 * (whole.from + whole.to);
    // Where nothing varies there is nothing to find, but every level needs a cell.
    cells.back() = make_cell(whole.from, middle);
    std::push_heap(cells.begin(), cells.end(), less_error);
    cells.push_back(make_cell(middle, whole.to));
    std::push_heap(cells.begin(), cells.end(), less_error);
  }
  std::sort(cells.begin(), cells.end(), [](const Cell& a, const Cell& b) { return a.from < b.from; });
  edges_.push_back(problem.low);
  for (const Cell& cell : cells) {
    edges_.push_back(cell.to);
    moments_.push_back(cell.moments);
  }
}

Moments Cells::between(double from, double to) const {
  const auto first = std::lower_bound(edges_.begin(), edges_.end(), from);
  const auto last = std::upper_bound(edges_.begin(), edges_.end(), to) - 1;
  const auto part = [&](double a, double b) { return integrate(problem_.derivative, problem_.weight, a, b); };
  if (first > last) return part(from, to);  // both within one cell
  Moments sum;
  bool any = false;
  const auto add = [&](const Moments& piece) {
    sum = any ? merge(sum, piece) : piece;
    any = true;
  };
  if (from < *first) add(part(from, *first));
  for (auto i = first - edges_.begin(); i < last - edges_.begin(); ++i) add(moments_[static_cast<std::size_t>(i)]);
  if (*last < to) add(part(*last, to));
  return sum;
}

}  // namespace bitloom::nn
