// How fast the ops of the backend "cpu" go, as a share of what copying memory does in the same run: everything but products of
// matrices should be bound by memory. Arguments: rows, columns, threads (all), part of the op's name (all ops).
#include <fmt/format.h>
#include <omp.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "bench/timing.h"
#include "core/error.h"
#include "core/random.h"
#include "nn/few_bit.h"
#include "nn/ops.h"

using namespace bitloom;
using namespace bitloom::nn;

namespace {

constexpr double slot = 0.1;  // seconds per op

struct Lab {
  Lab(DType type, std::size_t r, std::size_t c, std::string op) : dtype(type), rows(r), columns(c), wanted(std::move(op)) {}

  Engine engine;
  DType dtype;
  std::size_t rows, columns;
  std::string wanted;
  double copy = 0;  // bytes per second, read and written

  nn::Tensor normal(std::uint64_t seed) {
    std::vector<float> values(rows * columns);
    Random random(seed, Stream::test);
    for (float& x : values) x = static_cast<float>(random.normal());
    nn::Tensor tensor = engine.from<float>(values, {rows, columns}, Use::data);
    if (dtype == DType::f32) return tensor;
    nn::Tensor converted = engine.empty({rows, columns}, dtype, Use::data);
    convert(engine, tensor, converted);
    return converted;
  }
  nn::Tensor filled(std::size_t n, double value) {
    nn::Tensor tensor = engine.empty({n}, DType::f32, Use::data);
    fill(engine, tensor, value);
    return tensor;
  }
  // `streams`: tensors of this type that are read or written.
  void row(const std::string& op, double streams, const std::function<void()>& pass) const {
    if (op.find(wanted) == std::string::npos) return;
    const double seconds = bench::fastest(slot, pass);
    const double rate = streams * static_cast<double>(rows * columns * dtype_size(dtype)) / seconds;
    fmt::print("  {:<24} {:8.3f} ms {:7.1f} GB/s {:4.0f}% of copying\n", op, 1e3 * seconds, rate / 1e9, 100 * rate / copy);
  }

  void elements() {
    nn::Tensor x = normal(1), dy = normal(2), y = normal(3), z = normal(4);
    const std::size_t share = x.bytes() / 64;
    const double bytes = 2.0 * static_cast<double>(share * 64);
    copy = bytes / bench::fastest(slot, [&] {
#pragma omp parallel for schedule(static)
             for (std::size_t i = 0; i < 64; ++i) {
               std::memcpy(static_cast<std::byte*>(y.data()) + i * share, static_cast<std::byte*>(x.data()) + i * share, share);
             }
           });
    fmt::print("{}, ({}, {}), {} threads: copying {:.1f} GB/s\n", dtype_name(dtype), rows, columns, omp_get_max_threads(),
               copy / 1e9);
    row("add", 3, [&] { add(engine, x, dy, y); });
    row("scale_add", 3, [&] { scale_add(engine, 0.5, x, 0.5, y); });
    for (const Activation& activation : activations()) {
      row(activation.name, 2, [&] { activate(engine, activation, x, y); });
      row(std::string(activation.name) + " backward", 3, [&] { activate_backward(engine, activation, x, dy, z); });
    }
    for (unsigned bits = 1; bits <= 4; ++bits) {
      FewBitTable table;
      for (int i = 0; i < 1 << bits; ++i) {
        table.levels.push_back(i);
        if (i > 0) table.boundaries.push_back(4.0 * i / (1 << bits) - 2);
      }
      nn::Tensor stash = engine.empty({(x.size() * bits + 7) / 8}, DType::u8, Use::stash);
      const double streams = 2 + bits / (8.0 * static_cast<double>(dtype_size(dtype)));
      row(fmt::format("gelu {} bits", bits), streams,
          [&] { activate_few_bit(engine, find_activation("gelu"), table, x, y, stash); });
      row(fmt::format("gelu {} bits backward", bits), streams, [&] { activate_few_bit_backward(engine, table, stash, dy, z); });
    }
    row("dropout", 2, [&] { dropout(engine, {0.1, 5, 6}, x, y); });
    double squares = 0;
    row("sum_of_squares", 1, [&] { squares += sum_of_squares(engine, {&x, 1}); });
    if (!(squares >= 0)) fail(ErrorKind::internal, "sum_of_squares: {}", squares);
  }

  void norms() {
    nn::Tensor x = normal(1), dy = normal(2), y = normal(3), z = normal(4);
    nn::Tensor gain = filled(columns, 1), bias = filled(columns, 0), dgain = filled(columns, 0), dbias = filled(columns, 0);
    nn::Tensor mean = filled(rows, 0), rstd = filled(rows, 1), loss = filled(rows, 0);
    nn::Tensor centre = filled(columns, 0), variance = filled(columns, 1);
    row("layer_norm", 2, [&] { layer_norm(engine, x, gain, bias, 1e-5, y, mean, rstd); });
    row("layer_norm_backward", 3, [&] { layer_norm_backward(engine, dy, x, gain, mean, rstd, z, dgain, dbias); });
    row("batch_norm", 3, [&] { batch_norm(engine, x, gain, bias, 1e-5, y, centre, variance); });
    row("batch_norm_backward", 5, [&] { batch_norm_backward(engine, dy, x, gain, centre, variance, 1e-5, z, dgain, dbias); });
    row("add_row_sums", 1, [&] { add_row_sums(engine, x, dgain); });
    row("softmax", 2, [&] { softmax(engine, x, y); });
    row("softmax_backward", 3, [&] { softmax_backward(engine, y, dy, z); });
    nn::Tensor targets = engine.zeros({rows}, DType::i32, Use::data);
    row("cross_entropy", 2, [&] { cross_entropy(engine, x, targets, columns, 1, loss, &z); });
    if (dtype != DType::f32) return;
    AdamWTensors each{x, dy, y, z, engine.empty(x.shape(), DType::bf16, Use::parameters)};
    fill(engine, each.variance, 1);
    AdamWStep step;
    step.rate = 1e-6;
    row("adamw, copy in bf16", 7.5, [&] { adamw(engine, {&each, 1}, step); });
  }
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto count = [&](int i, std::size_t otherwise) {
      return argc > i ? bench::parse_count(argv[i], "argument " + std::to_string(i)) : otherwise;
    };
    const std::size_t rows = count(1, 4096), columns = count(2, 768);
    omp_set_num_threads(static_cast<int>(count(3, static_cast<std::size_t>(omp_get_max_threads()))));
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Lab lab(dtype, rows, columns, argc > 4 ? argv[4] : "");
      lab.elements();
      lab.norms();
    }
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "nn_kernels: {}\n", error.what());
    return 1;
  }
}
