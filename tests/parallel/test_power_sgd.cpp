// PowerSGD over processes: gradients by factors, error buffers, and the bytes that are sent.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "mpi/float_collectives.h"
#include "tests/parallel/power_sgd_exchange.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"

namespace bitloom::train {
namespace {

using namespace test;

}  // namespace

TEST_CASE("factors of full rank give the sum of gradients back", "[power_sgd]") {
  for (const PowerSgdOptions& options : {PowerSgdOptions{}, warm()}) {
    Exchange exchange({{"wide", 5, 9, 5}, {"tall", 9, 5, 5}, {"square", 7, 7, 7}, {"vector", 1, 6, 0}}, options);
    for (std::uint64_t step = 0; step < 3; ++step) {
      exchange.draw(step, world().rank());
      const Matrices sums = exchange.sums_of_gradients();
      const PowerSgdReport report = exchange.power_sgd.exchange(exchange.gradients);
      for (std::size_t i = 0; i < sums.size(); ++i) CHECK(difference(exchange.result(i), sums[i]) < 1e-5);
      CHECK(std::abs(report.squares / squares_of(sums) - 1) < 1e-5);
      CHECK(report.not_finite == 0);
      CHECK(report.clamped == 0);
    }
  }
}

TEST_CASE("gradients of rank 0 and 1 stay finite and come back", "[power_sgd]") {
  for (const PowerSgdOptions& options : {PowerSgdOptions{}, warm(), narrow_messages()}) {
    Exchange exchange(usual_shapes(), options);
    for (const double size : {0.0, 1.0, 0.0, 1.0, 1.0}) {
      exchange.draw(1, world().rank());
      for (const nn::Tensor& gradient : exchange.gradients) {
        const std::size_t columns = &gradient == &exchange.gradients[0] ? 40 : 8;
        const std::span<float> values = gradient.as<float>();
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = static_cast<float>(size * (1 + static_cast<double>(i / columns)) * std::cos(i % columns) / 8);
        }
      }
      const Matrices sums = exchange.sums_of_gradients();
      const PowerSgdReport report = exchange.power_sgd.exchange(exchange.gradients);
      CHECK(report.not_finite == 0);
      const bool is_narrow = options.messages == FloatFormat::f1_6_9;
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const std::vector<double> result = exchange.result(i);
        if (size == 0 && !is_narrow) CHECK(squares_of({result}) < 1e-7);
        if (size == 1) CHECK(difference(result, sums[i]) < (is_narrow ? 1e-2 : 1e-5));
      }
    }
  }
}

TEST_CASE("what was not sent is in the error buffers", "[power_sgd]") {
  PowerSgdOptions narrow_warm = all_narrow();
  narrow_warm.warm_start = true;
  for (const PowerSgdOptions& options : {PowerSgdOptions{}, warm(), narrow_messages(), all_narrow(), narrow_warm}) {
    const double tolerance = options.error_buffers == FloatFormat::f32 ? 2e-6 : 4e-3;
    Exchange exchange(usual_shapes(), options);
    for (std::uint64_t step = 0; step < 4; ++step) {
      const Matrices before = exchange.sums_of_errors();
      exchange.draw(step, world().rank());
      const Matrices sums = exchange.sums_of_gradients();
      const PowerSgdReport report = exchange.power_sgd.exchange(exchange.gradients);
      const Matrices after = exchange.sums_of_errors();
      Matrices results;
      for (std::size_t i = 0; i < sums.size(); ++i) {
        results.push_back(exchange.result(i));
        CHECK(same_everywhere(exchange.gradients[i].as<float>()));
        if (exchange.shapes[i].rank == 0) {
          CHECK(difference(results.back(), sums[i]) < 1e-7);
        } else {
          // The part that is sent is a projection of the whole: neither nothing nor all of it.
          const std::vector<double> all = plus(before[i], sums[i]);
          CHECK(difference(plus(after[i], results.back()), all) < tolerance);
          CHECK(squares_of({results.back()}) > 0.1 * squares_of({all}));
          CHECK(squares_of({after[i]}) > 0.1 * squares_of({all}));
        }
      }
      // The norm by Q is that of the products.
      CHECK(std::abs(report.squares / squares_of(results) - 1) < 1e-5);
    }
  }
}

TEST_CASE("error buffers of equal sum give the same gradients, in any number of processes", "[power_sgd]") {
  for (const PowerSgdOptions& options : {PowerSgdOptions{}, warm()}) {
    Exchange first(usual_shapes(), options);
    for (std::uint64_t step = 0; step < 3; ++step) first.step(step);
    const PowerSgdState state = first.power_sgd.state();
    CHECK(state.size() == (options.warm_start ? 4 : 2));
    for (const auto& [name, tensor] : state) CHECK(same_everywhere(tensor.as<float>()));

    Exchange again(usual_shapes(), options);
    again.power_sgd.set_state(state);
    // One process that has the gradients of all.
    mpi::Comm alone;
    std::optional<Exchange> single;
    if (world().is_root()) {
      single.emplace(usual_shapes(), options, alone);
      single->power_sgd.set_state(state);
    }
    for (std::uint64_t step = 3; step < 6; ++step) {
      first.draw(step, world().rank());
      const Matrices sums = first.sums_of_gradients();
      first.power_sgd.exchange(first.gradients);
      again.step(step);
      for (const std::size_t i : {0U, 2U}) CHECK(difference(again.result(i), first.result(i)) < 2e-5);
      if (!single) continue;
      single->draw(step, 0);
      for (std::size_t i = 0; i < sums.size(); ++i) {
        std::ranges::transform(sums[i], single->gradients[i].as<float>().begin(),
                               [](double x) { return static_cast<float>(x); });
      }
      single->power_sgd.exchange(single->gradients);
      for (const std::size_t i : {0U, 2U}) CHECK(difference(single->result(i), first.result(i)) < 2e-5);
    }
  }
}

// --- Bytes ---

TEST_CASE("factors of parts are on their way once their gradients are announced, and come to the same bits", "[power_sgd]") {
  std::vector<PowerSgdShape> shapes = usual_shapes();
  for (std::size_t i = 0; i < shapes.size(); ++i)
    shapes[i].part = std::size_t{i < 2 ? 1U : 0U};  // "tall" and "small" are first
  for (const PowerSgdOptions& options : {PowerSgdOptions{}, warm(), all_narrow()}) {
    Exchange together(usual_shapes(), options);
    Exchange parts(shapes, options);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const PowerSgdReport expected = together.step(step);
      parts.draw(step, world().rank());
      parts.power_sgd.begin_step();
      const std::uint64_t before = world().traffic().calls;
      const auto calls = [&] { return world().traffic().calls - before; };
      const std::uint64_t of_sum = options.messages == FloatFormat::f32 ? 1 : 2;
      // By number of the step in other orders: the first part is complete, then the one that was complete before it.
      if (step != 1) {
        parts.power_sgd.announce(0, parts.gradients[0]);
        parts.power_sgd.announce(1, parts.gradients[1]);
        CHECK(calls() == 0);
      }
      parts.power_sgd.announce(3, parts.gradients[3]);
      parts.power_sgd.announce(2, parts.gradients[2]);
      CHECK(calls() == (step == 1 ? 1 : 2) * of_sum);
      const PowerSgdReport report = parts.power_sgd.finish(parts.gradients);
      parts.power_sgd.settle(parts.gradients, [](std::size_t /*shape*/) { return false; });
      for (std::size_t i = 0; i < shapes.size(); ++i) CHECK(parts.result(i) == together.result(i));
      CHECK(report.squares == Approx(expected.squares).epsilon(1e-12));
      CHECK(report.clamped == expected.clamped);
    }
  }
}

TEST_CASE("PowerSGD sends the bytes that are planned", "[power_sgd]") {
  // A block of the paper's shapes in eight shards, of width 64 and total rank 32: 5 r / 8 d of all numbers.
  std::vector<PowerSgdShape> block;
  for (int i = 0; i < 4; ++i) block.push_back({fmt::format("attention {}", i), 64, 8, 4});
  block.push_back({"mlp 1", 64, 32, 4});
  block.push_back({"mlp 2", 32, 64, 4});
  const std::uint64_t several = world().size() > 1 ? 1 : 0;
  for (const auto& [options, size] : {std::pair{PowerSgdOptions{}, 4U}, {warm(), 4U}, {narrow_messages(), 2U}}) {
    for (const bool has_exact : {false, true}) {
      std::vector<PowerSgdShape> shapes = block;
      if (has_exact) shapes.push_back({"vector", 1, 1000, 0});
      Exchange exchange(shapes, options);
      exchange.draw(0, world().rank());
      const mpi::Traffic before = world().traffic();
      exchange.power_sgd.exchange(exchange.gradients);
      const PowerSgdBytes bytes = power_sgd_bytes(shapes, options.messages);
      const std::uint64_t sent = world().traffic().bytes_sent - before.bytes_sent;
      CHECK(sent == bytes.sum() * several);
      CHECK((bytes.p + bytes.q) * 8 * 64 == 12 * 64 * 64 / 8 * size * 5 * 32);
      CHECK(bytes.exact == (has_exact ? 4000 : 0));
      CHECK(world().traffic().calls - before.calls == (size == 4 ? 2 : 3));
    }
  }
}

TEST_CASE("PowerSGD of vectors alone is a sum", "[power_sgd]") {
  Exchange exchange({{"vector", 1, 33, 0}});
  exchange.draw(3, world().rank());
  const Matrices sums = exchange.sums_of_gradients();
  const PowerSgdReport report = exchange.power_sgd.exchange(exchange.gradients);
  CHECK(difference(exchange.result(0), sums[0]) < 1e-7);
  CHECK(std::abs(report.squares / squares_of(sums) - 1) < 1e-6);
}

// --- The algorithm of Vogels et al. 2019, in double precision ---

namespace {

// (n,m) in rows.
struct Oracle {
  std::size_t n, m, r;
  std::vector<double> query;                // (m,r)
  std::vector<std::vector<double>> errors;  // of all ranks

  // Algorithm 1 on the sums of algorithm 2, whose errors are what the decompressed mean lacks, as epfml/powersgd's RankKReducer
  // has it with reuse_query: P = M Q, mean, Gram-Schmidt, Q = M^T P, mean, P Q^T. Returns the mean gradient.
  std::vector<double> step(const std::vector<std::vector<double>>& gradients) {
    const auto ranks = static_cast<double>(gradients.size());
    std::vector<double> p(n * r, 0.0), q(m * r, 0.0), mean(n * m, 0.0);
    for (std::size_t rank = 0; rank < gradients.size(); ++rank) errors[rank] = plus(errors[rank], gradients[rank]);
    for (const std::vector<double>& matrix : errors) {
      for_all(
          [&](std::size_t i, std::size_t j, std::size_t k) { p[i * r + k] += matrix[i * m + j] * query[j * r + k] / ranks; });
    }
    gram_schmidt(p);
    for (const std::vector<double>& matrix : errors) {
      for_all([&](std::size_t i, std::size_t j, std::size_t k) { q[j * r + k] += matrix[i * m + j] * p[i * r + k] / ranks; });
    }
    for_all([&](std::size_t i, std::size_t j, std::size_t k) { mean[i * m + j] += p[i * r + k] * q[j * r + k]; });
    for (std::vector<double>& error : errors) error = plus(error, mean, -1);
    query = q;
    return mean;
  }

  template <typename F>
  void for_all(F&& f) const {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < m; ++j) {
        for (std::size_t k = 0; k < r; ++k) f(i, j, k);
      }
    }
  }
  void gram_schmidt(std::vector<double>& p) const {
    for (std::size_t k = 0; k < r; ++k) {
      double squares = 0;
      for (std::size_t i = 0; i < n; ++i) squares += p[i * r + k] * p[i * r + k];
      for (std::size_t i = 0; i < n; ++i) p[i * r + k] /= std::sqrt(squares);
      for (std::size_t other = k + 1; other < r; ++other) {
        double dot = 0;
        for (std::size_t i = 0; i < n; ++i) dot += p[i * r + k] * p[i * r + other];
        for (std::size_t i = 0; i < n; ++i) p[i * r + other] -= dot * p[i * r + k];
      }
    }
  }
};

}  // namespace

TEST_CASE("a warm start is the algorithm of Vogels et al.", "[power_sgd]") {
  Exchange exchange({{"wide", 12, 40, 3}, {"tall", 30, 8, 2}}, warm());
  const auto query_of = [&](std::size_t i) {
    const std::span<const float> query = exchange.power_sgd.state()[2 * i + 1].second.as<float>();
    return std::vector<double>(query.begin(), query.end());
  };
  std::vector<Oracle> oracles;
  for (std::size_t i = 0; i < 2; ++i) {
    const PowerSgdShape& shape = exchange.shapes[i];
    oracles.push_back(
        {shape.rows, shape.columns, shape.rank, query_of(i),
         Matrices(static_cast<std::size_t>(world().size()), std::vector<double>(shape.rows * shape.columns, 0.0))});
  }
  for (std::uint64_t step = 0; step < 6; ++step) {
    exchange.step(step);
    for (std::size_t i = 0; i < 2; ++i) {
      Matrices gradients;
      for (int rank = 0; rank < world().size(); ++rank) {
        const std::vector<float> own = gradient_of(rank, i, step, oracles[i].n * oracles[i].m);
        gradients.emplace_back(own.begin(), own.end());
      }
      const std::vector<double> mean = oracles[i].step(gradients);
      CHECK(difference(exchange.result(i), plus(std::vector<double>(mean.size(), 0.0), mean, world().size())) < 1e-5);
      CHECK(difference(query_of(i), oracles[i].query) < 1e-5);
    }
  }
}

TEST_CASE("PowerSGD refuses what does not fit", "[power_sgd]") {
  nn::Engine engine;
  const auto make = [&](std::size_t rank, const PowerSgdOptions& options) {
    const PowerSgd made(engine, world(), {{"matrix", 4, 6, rank}}, options);
  };
  CHECK(has(message_of(ErrorKind::internal, [&] { make(5, {}); }), "rank 5 of matrix, which is 4 x 6"));
  PowerSgdOptions negative;
  negative.q_scale = -1;
  CHECK(has(message_of(ErrorKind::internal, [&] { make(2, negative); }), "scales 1 and -1"));
  Exchange exchange(usual_shapes());
  exchange.draw(0, 0);
  exchange.gradients[2] = exchange.gradients[1];
  const auto refused = [&] { exchange.power_sgd.exchange(exchange.gradients); };
  CHECK(has(message_of(ErrorKind::internal, refused), "the gradient of tall is f32 (33)"));
  exchange.gradients.pop_back();
  CHECK(has(message_of(ErrorKind::internal, refused), "3 gradients, expected 4"));
}

}  // namespace bitloom::train
