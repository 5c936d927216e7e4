// PowerSGD over processes: gradients by factors, error buffers, what is not finite, and the bytes that are sent.
#include "train/parallel/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "core/random.h"
#include "mpi/float_collectives.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"

namespace bitloom::train {
namespace {

using test::world;

constexpr float infinity = std::numeric_limits<float>::infinity();

// Both orientations, and what is sent as it is in between.
std::vector<PowerSgdShape> usual_shapes(std::size_t rank = 3) {
  return {{"wide", 12, 40, rank}, {"vector", 1, 33, 0}, {"tall", 30, 8, rank}, {"small", 3, 4, 0}};
}

// The gradient of a tensor that a rank has in a step.
std::vector<float> gradient_of(int rank, std::size_t tensor, std::uint64_t step, std::size_t size) {
  Random random(1000 * step + 10 * static_cast<std::uint64_t>(rank) + tensor, Stream::test);
  std::vector<float> values(size);
  for (float& x : values) x = static_cast<float>(0.1 * random.normal());
  return values;
}

using Matrices = std::vector<std::vector<double>>;

// What several processes do, from the gradients that gradient_of() gives them or others.
struct Exchange {
  explicit Exchange(std::vector<PowerSgdShape> all, const PowerSgdOptions& options = {}, mpi::Comm& group = world())
      : comm(group), shapes(all), power_sgd(engine, group, std::move(all), options) {}

  // This rank's gradients of a step.
  void draw(std::uint64_t step, int rank) {
    gradients.clear();
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const std::size_t size = shapes[i].rows * shapes[i].columns;
      gradients.push_back(engine.from(std::span<const float>(gradient_of(rank, i, step, size)), {size}, nn::Use::gradients));
    }
  }
  PowerSgdReport step(std::uint64_t number) {
    draw(number, comm.rank());
    return power_sgd.exchange(gradients);
  }
  // Sums of the gradients now, in double precision, and of the error buffers: the same on all ranks.
  Matrices sums_of_gradients() {
    Matrices sums;
    for (const nn::Tensor& gradient : gradients) {
      sums.emplace_back(gradient.as<float>().begin(), gradient.as<float>().end());
      mpi::sum_in_order(comm, std::span(sums.back()));
    }
    return sums;
  }
  // Of the matrices that go by factors; empty for others.
  Matrices sums_of_errors() {
    Matrices sums(shapes.size());
    const PowerSgdState state = power_sgd.state();
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const std::string name = "power_sgd.error." + shapes[i].name;
      const auto found = std::ranges::find(state, name, &PowerSgdState::value_type::first);
      if (found != state.end()) sums[i].assign(found->second.as<float>().begin(), found->second.as<float>().end());
    }
    return sums;
  }
  std::vector<double> result(std::size_t i) const { return {gradients[i].as<float>().begin(), gradients[i].as<float>().end()}; }

  nn::Engine engine;
  mpi::Comm& comm;
  std::vector<PowerSgdShape> shapes;
  PowerSgd power_sgd;
  std::vector<nn::Tensor> gradients;
};

// Largest difference relative to the largest number of b; NaN if there is any, and infinity for other sizes.
double difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return infinity;
  double largest = 0;
  double most = 1e-30;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= largest)) largest = std::abs(a[i] - b[i]);
    most = std::max(most, std::abs(b[i]));
  }
  return largest / most;
}

std::vector<double> plus(std::vector<double> a, const std::vector<double>& b, double factor = 1) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += factor * b[i];
  return a;
}

double squares_of(const Matrices& matrices) {
  double sum = 0;
  for (const std::vector<double>& matrix : matrices)
    sum += std::inner_product(matrix.begin(), matrix.end(), matrix.begin(), 0.0);
  return sum;
}

bool same_on_all_ranks(std::span<const float> values) {
  std::vector<float> first(values.begin(), values.end());
  world().broadcast(std::span(first));
  const bool is_same = std::memcmp(first.data(), values.data(), values.size_bytes()) == 0;
  return !world().flag_any(!is_same);
}

PowerSgdOptions warm() {
  PowerSgdOptions options;
  options.warm_start = true;
  return options;
}

PowerSgdOptions narrow_messages() {
  PowerSgdOptions options;
  options.messages = FloatFormat::f1_6_9;
  return options;
}

PowerSgdOptions all_narrow() {
  PowerSgdOptions options = narrow_messages();
  options.error_buffers = FloatFormat::f1_6_9;
  return options;
}

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
        CHECK(same_on_all_ranks(exchange.gradients[i].as<float>()));
        if (exchange.shapes[i].rank == 0) {
          CHECK(difference(results.back(), sums[i]) < 1e-7);
        } else {
          // Of what is there a projection is sent: neither nothing nor all of it.
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

TEST_CASE("factors in 1-6-9 are those in f32, rounded", "[power_sgd]") {
  Exchange exact(usual_shapes());
  PowerSgdOptions options = narrow_messages();
  options.p_scale = 4;
  options.q_scale = 8;
  Exchange narrow(usual_shapes(), options);
  exact.step(1);
  CHECK(narrow.step(1).clamped == 0);
  for (const std::size_t i : {0U, 2U}) CHECK(difference(narrow.result(i), exact.result(i)) < 1e-2);
  for (const std::size_t i : {1U, 3U}) CHECK(narrow.result(i) == exact.result(i));
}

// Steps 4 and 7: with scales that are too large.
TEST_CASE("what 1-6-9 does not hold is clamped and counted", "[power_sgd]") {
  PowerSgdOptions options = narrow_messages();
  options.p_scale = 1000;
  options.q_scale = 100;
  Exchange exchange(usual_shapes(), options);
  const Matrices before = exchange.sums_of_errors();
  exchange.draw(1, world().rank());
  const Matrices sums = exchange.sums_of_gradients();
  const PowerSgdReport report = exchange.power_sgd.exchange(exchange.gradients);
  CHECK(report.clamped > 0);
  CHECK(report.not_finite == 0);
  CHECK(std::isfinite(report.squares));
  const Matrices after = exchange.sums_of_errors();
  for (const std::size_t i : {0U, 2U}) {
    CHECK(difference(plus(after[i], exchange.result(i)), plus(before[i], sums[i])) < 2e-6);
  }
}

// Terms that together are beyond 15.98 and whose mean is not.
TEST_CASE("sums of factors in 1-6-9 do not overflow where their terms do not", "[power_sgd]") {
  PowerSgdOptions options = narrow_messages();
  options.q_scale = 0.01;
  // Number of clamped numbers where each process has a gradient of equal elements.
  const auto clamped = [&](float element, mpi::Comm& group) {
    Exchange exchange({{"one", 8, 8, 1}}, options, group);
    exchange.draw(1, 0);
    for (float& x : exchange.gradients[0].as<float>()) x = element;
    const std::size_t count = exchange.power_sgd.exchange(exchange.gradients).clamped;
    if (count == 0)
      CHECK(difference(exchange.result(0), std::vector<double>(64, static_cast<double>(element) * group.size())) < 4e-3);
    return count;
  };
  mpi::Comm alone;
  float element = 1.0F / 1024;
  while (clamped(element, alone) == 0) element *= 2;
  CHECK(clamped(element, world()) > 0);
  CHECK(clamped(element / 2, world()) == 0);  // 8 at least, in P of each
}

// Appendix E.2, optimization 4.
TEST_CASE("error buffers of equal sum give the same gradients, in any number of processes", "[power_sgd]") {
  for (const PowerSgdOptions& options : {PowerSgdOptions{}, warm()}) {
    Exchange first(usual_shapes(), options);
    for (std::uint64_t step = 0; step < 3; ++step) first.step(step);
    const PowerSgdState state = first.power_sgd.state();
    CHECK(state.size() == (options.warm_start ? 4 : 2));
    for (const auto& [name, tensor] : state) CHECK(same_on_all_ranks(tensor.as<float>()));

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

// --- Steps 2, 10 and 12: what is not finite ---

TEST_CASE("a gradient that is not finite on one rank is left out, and every buffer is kept", "[power_sgd]") {
  for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const PowerSgdOptions& options : {PowerSgdOptions{}, warm(), all_narrow()}) {
      const double tolerance = options.error_buffers == FloatFormat::f32 ? 2e-6 : 4e-3;
      Exchange exchange(usual_shapes(), options);
      exchange.step(0);
      const Matrices before = exchange.sums_of_errors();
      exchange.draw(1, world().rank());
      const Matrices sums = exchange.sums_of_gradients();
      const bool is_bad = world().rank() == world().size() - 1;
      // What the other ranks have of the first matrix.
      std::vector<double> others(480, 0.0);
      if (!is_bad) others = exchange.result(0);
      mpi::sum_in_order(world(), std::span(others));
      if (is_bad) exchange.gradients[0].as<float>()[17] = bad;
      const PowerSgdReport report = exchange.power_sgd.exchange(exchange.gradients);
      CHECK(report.squares == static_cast<double>(infinity));
      CHECK(report.not_finite == 1);
      CHECK(std::ranges::all_of(exchange.result(0), [](double x) { return std::isnan(x); }));
      const Matrices after = exchange.sums_of_errors();
      CHECK(difference(after[0], plus(before[0], others)) < tolerance);
      // The other matrix is as in any step, though its update is skipped.
      CHECK(difference(plus(after[2], exchange.result(2)), plus(before[2], sums[2])) < tolerance);
      // Nothing stays behind.
      exchange.draw(2, world().rank());
      const Matrices next = exchange.sums_of_gradients();
      CHECK(exchange.power_sgd.exchange(exchange.gradients).not_finite == 0);
      CHECK(difference(plus(exchange.sums_of_errors()[0], exchange.result(0)), plus(after[0], next[0])) < tolerance);
    }
  }
}

TEST_CASE("a buffer that is not finite is cleared, and those of other ranks are kept", "[power_sgd]") {
  Exchange exchange(usual_shapes(), all_narrow());
  exchange.step(0);
  exchange.draw(1, world().rank());
  const bool is_bad = world().is_root();
  // The buffers of the others, which hold equal parts of the sum from now on.
  exchange.power_sgd.set_state(exchange.power_sgd.state());
  const Matrices before = exchange.sums_of_errors();
  std::vector<double> kept(480, 0.0);
  if (!is_bad) kept = plus(exchange.result(0), before[0], 1.0 / world().size());
  mpi::sum_in_order(world(), std::span(kept));
  if (is_bad) exchange.gradients[0].as<float>()[5] = -20;  // finite, and beyond 1-6-9 in the buffer
  const PowerSgdReport report = exchange.power_sgd.exchange(exchange.gradients);
  CHECK(report.squares == static_cast<double>(infinity));
  CHECK(report.not_finite == 1);
  CHECK(std::ranges::all_of(exchange.result(0), [](double x) { return std::isnan(x); }));
  const std::vector<double> after = exchange.sums_of_errors()[0];
  CHECK(difference(after, kept) < 4e-3);
  exchange.draw(2, world().rank());
  const Matrices next = exchange.sums_of_gradients();
  CHECK(exchange.power_sgd.exchange(exchange.gradients).not_finite == 0);
  CHECK(difference(plus(exchange.sums_of_errors()[0], exchange.result(0)), plus(after, next[0])) < 4e-3);
}

TEST_CASE("factors that are not finite of buffers that are leave these as they are", "[power_sgd]") {
  for (const PowerSgdOptions& options : {PowerSgdOptions{}, warm()}) {
    Exchange exchange(usual_shapes(), options);
    exchange.draw(1, 0);
    for (float& x : exchange.gradients[0].as<float>()) x = 3e38F / static_cast<float>(world().size());
    const Matrices sums = exchange.sums_of_gradients();
    const PowerSgdReport report = exchange.power_sgd.exchange(exchange.gradients);
    CHECK(report.squares == static_cast<double>(infinity));
    CHECK(report.not_finite == 1);
    CHECK(difference(exchange.sums_of_errors()[0], sums[0]) < 1e-6);
  }
}

TEST_CASE("a gradient that is sent as it is makes the norm infinite, too", "[power_sgd]") {
  Exchange exchange(usual_shapes());
  exchange.draw(1, world().rank());
  if (world().is_root()) exchange.gradients[1].as<float>()[32] = infinity;
  const PowerSgdReport report = exchange.power_sgd.exchange(exchange.gradients);
  CHECK(report.squares == static_cast<double>(infinity));
  CHECK(report.not_finite == 1);
}

// --- Bytes ---

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
  CHECK(test::has(test::message_of(ErrorKind::internal, [&] { make(5, {}); }), "rank 5 of matrix, which is 4 x 6"));
  PowerSgdOptions negative;
  negative.q_scale = -1;
  CHECK(test::has(test::message_of(ErrorKind::internal, [&] { make(2, negative); }), "scales 1 and -1"));
  Exchange exchange(usual_shapes());
  exchange.draw(0, 0);
  exchange.gradients[2] = exchange.gradients[1];
  const auto refused = [&] { exchange.power_sgd.exchange(exchange.gradients); };
  CHECK(test::has(test::message_of(ErrorKind::internal, refused), "the gradient of tall is f32 (33)"));
  exchange.gradients.pop_back();
  CHECK(test::has(test::message_of(ErrorKind::internal, refused), "3 gradients, expected 4"));
}

}  // namespace bitloom::train
