#include "train/muon.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "core/field.h"
#include "core/hash.h"
#include "core/random.h"
#include "nn/ops.h"
#include "optim/newton_schulz.h"
#include "train/moments.h"
#include "train/optimizer.h"

namespace bitloom::train {
namespace {

constexpr double adamw_size = 0.2;  // root mean square of AdamW's steps per learning rate

class Muon final : public UpdateRule {
 public:
  Muon(nn::Engine& engine, std::span<nn::Parameter* const> parameters, const OptimizerOptions& options, std::uint64_t seed)
      : engine_(engine), momentum_(options.momentum), decay_(options.decay) {
    std::vector<nn::Parameter*> matrices, others;
    for (nn::Parameter* parameter : parameters) {
      const bool is_matrix = parameter->is_block_matrix();
      if (is_matrix) require_whole(*parameter);
      places_.push_back({is_matrix, is_matrix ? matrices.size() : others.size()});
      (is_matrix ? matrices : others).push_back(parameter);
    }
    matrices_ = matrices;
    momenta_.emplace(engine, matrices, "momentum");
    others_ = find_update_rule("adamw").make(engine, others, options, seed);
  }

  void move(std::span<const std::size_t> which, const Step& step) override {
    std::vector<std::size_t> others;
    std::vector<nn::Parameter*> moved;
    for (const std::size_t i : which) {
      const Place& place = places_[i];
      if (!place.is_matrix) {
        others.push_back(place.number);
        continue;
      }
      move_matrix(*matrices_[place.number], (*momenta_)[place.number], step);
      moved.push_back(matrices_[place.number]);
    }
    nn::refresh_copies(engine_, moved);
    others_->move(others, step);
  }

  void add_state(std::vector<StateTensor>& all) override {
    momenta_->add_state(all);
    others_->add_state(all);
  }

 private:
  struct Place {
    bool is_matrix;
    std::size_t number;  // among the matrices, or among the others
  };

  static void require_whole(const nn::Parameter& parameter) {
    if (parameter.part || parameter.shape.axes() != 2) {
      fail_field(ErrorKind::usage, "optimizer",
                 "muon; '{}' is a part of a matrix; expected adamw, or `tensor` 1 and `shard` none", parameter.name);
    }
    require_usual_rate(parameter, "muon");
    if (parameter.value.dtype() != parameter.gradient.dtype()) {
      fail_field(ErrorKind::usage, "master_weights", "none; expected f32 with `optimizer` muon");
    }
  }

  void move_matrix(nn::Parameter& parameter, nn::Tensor& momentum, const Step& step) {
    const DType type = parameter.gradient.dtype();
    nn::Tensor update = engine_.empty(parameter.shape, type, nn::Use::workspace);
    nn::scale_add(engine_, step.scale, parameter.gradient, momentum_, momentum);
    nn::scale_add(engine_, step.scale, parameter.gradient, 0, update);
    nn::scale_add(engine_, momentum_, momentum, 1, update);
    const std::size_t blocks = parameter.column_blocks;
    const std::size_t longer = std::max(parameter.shape[0], parameter.shape[1] / blocks);
    const double size = adamw_size * std::sqrt(static_cast<double>(longer));
    const double shrink = parameter.decays ? step.rate * decay_ : 0;
    nn::scale_add(engine_, -step.rate * size, orthogonalised(engine_, std::move(update), blocks), 1 - shrink, parameter.value);
  }

  nn::Engine& engine_;
  double momentum_, decay_;
  std::vector<Place> places_;  // by parameter
  std::vector<nn::Parameter*> matrices_;
  std::optional<Moments> momenta_;  // of the matrices
  std::unique_ptr<UpdateRule> others_;
};

}  // namespace

nn::Tensor orthogonalised(nn::Engine& engine, nn::Tensor x) {
  const std::size_t rows = x.shape()[0];
  const std::size_t columns = x.shape()[1];
  // Products over the longer side are (short, short).
  const bool is_tall = rows > columns;
  const std::size_t side = std::min(rows, columns);
  const auto make = [&] { return engine.empty({side, side}, x.dtype(), nn::Use::workspace); };
  nn::Tensor square = make();
  nn::Tensor polynomial = make();
  nn::Tensor out = engine.empty(x.shape(), x.dtype(), nn::Use::workspace);
  // The norm bounds the largest singular value.
  const double norm = std::sqrt(nn::sum_of_squares(engine, std::span(&x, 1)));
  nn::scale_add(engine, norm > 0 ? 1 / norm : 0, x, 0, out);
  for (std::size_t step = 0; step < optim::newton_schulz_steps; ++step) {
    // A = X X^T and X = a X + (b A + c A^2) X; or X^T X, from the right.
    nn::matmul(engine, out, out, square, {.transpose_a = is_tall, .transpose_b = !is_tall});
    nn::scale_add(engine, optim::newton_schulz_b, square, 0, polynomial);
    nn::matmul(engine, square, square, polynomial, {.accumulate = true, .scale = optim::newton_schulz_c});
    nn::scale_add(engine, optim::newton_schulz_a, out, 0, x);
    nn::matmul(engine, is_tall ? out : polynomial, is_tall ? polynomial : out, x, {.accumulate = true});
    std::swap(x, out);
  }
  return out;
}

nn::Tensor orthogonalised(nn::Engine& engine, nn::Tensor x, std::size_t blocks) {
  if (blocks == 1) return orthogonalised(engine, std::move(x));
  const nn::Shape whole = x.shape();
  const std::size_t rows = whole[0];
  const nn::Shape pieces = {blocks * rows, whole[1] / blocks};
  // Row r of x is pieces r blocks + b; those of a block, one below the other, are b rows + r.
  std::vector<std::int32_t> apart(blocks * rows), together(blocks * rows);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t b = 0; b < blocks; ++b) {
      apart[b * rows + r] = static_cast<std::int32_t>(r * blocks + b);
      together[r * blocks + b] = static_cast<std::int32_t>(b * rows + r);
    }
  }
  const auto copied = [&](const nn::Tensor& from, std::span<const std::int32_t> order) {
    nn::Tensor to = engine.empty(pieces, from.dtype(), nn::Use::workspace);
    nn::gather(engine, from.reshaped(pieces), engine.from(order, {order.size()}, nn::Use::workspace), to);
    return to;
  };
  x = copied(x, apart);
  for (std::size_t b = 0; b < blocks; ++b) {
    nn::Tensor block = x.slice(b * rows, (b + 1) * rows);
    const nn::Tensor made = orthogonalised(engine, block);
    // By the number of steps it is in the block's own memory, or not.
    if (made.data() != block.data()) nn::scale_add(engine, 1, made, 0, block);
  }
  return copied(x, together).reshaped(whole);
}

double orthogonalise_operations(std::size_t rows, std::size_t columns, std::size_t blocks) {
  const auto side = static_cast<double>(std::min(rows, columns / blocks));
  const auto length = static_cast<double>(std::max(rows, columns / blocks));
  return static_cast<double>(blocks * optim::newton_schulz_steps) * (4 * side * side * length + 2 * side * side * side);
}

std::uint64_t orthogonalise_bytes(std::size_t rows, std::size_t columns, std::size_t blocks, std::uint64_t bytes) {
  const std::uint64_t side = std::min(rows, columns / blocks);
  const std::uint64_t all = std::uint64_t{rows} * columns;
  const std::uint64_t steps = (all + all / blocks + 2 * side * side) * bytes;
  if (blocks == 1) return steps;
  // Blocks are taken apart by their numbers of rows, and put together again.
  return std::max(steps, 2 * all * bytes + rows * blocks * sizeof(std::int32_t));
}

bool orthogonalise_alike(nn::Engine& engine, mpi::Comm& comm, std::span<nn::Parameter* const> parameters) {
  std::vector<std::pair<nn::Shape, std::size_t>> tried;
  Hasher hasher;
  for (const nn::Parameter* parameter : parameters) {
    const nn::Shape& shape = parameter->shape;
    const std::size_t blocks = parameter->column_blocks;
    if (!parameter->is_block_matrix() || std::ranges::find(tried, std::pair(shape, blocks)) != tried.end()) continue;
    tried.emplace_back(shape, blocks);
    const DType type = parameter->gradient.dtype();
    std::vector<float> values(shape.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(mix64(i) >> 40U) * 0x1p-23F - 1;
    nn::Tensor from = engine.empty(shape, DType::f32, nn::Use::workspace);
    engine.write(from, std::as_bytes(std::span(values)));
    nn::Tensor x = engine.empty(shape, type, nn::Use::workspace);
    nn::scale_add(engine, 1, from, 0, x);
    const nn::Tensor made = orthogonalised(engine, std::move(x), blocks);
    std::vector<std::byte> bytes(made.bytes());
    engine.read(made, type, bytes);
    hasher.update(std::span<const std::byte>(bytes));
  }
  // All have the same number where the largest is the smallest.
  const auto number = static_cast<std::int64_t>(hasher.finish().low >> 2U);
  std::array<std::int64_t, 2> largest = {number, -number};
  comm.max(std::span(largest));
  return largest[0] == -largest[1];
}

std::unique_ptr<UpdateRule> make_muon(nn::Engine& engine, std::span<nn::Parameter* const> parameters,
                                      const OptimizerOptions& options, std::uint64_t seed) {
  return std::make_unique<Muon>(engine, parameters, options, seed);
}

}  // namespace bitloom::train
