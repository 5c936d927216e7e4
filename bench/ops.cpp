// bitloom_bench_ops [--device cpu|cuda:N] [--dtype f32|bf16] [--rounds N] [--threads N] [--op PART] [--sequences N] [--tokens
// N]
// [--images N] [--cpu-time] [--serve]: every op of the float engine on the shapes of op_workloads.h, checked against "ref",
// then timed as a share of its bound, which takes turns with it: a product of square matrices, or copying as many bytes
// (op_bounds.h). PART: of the op's name. --cpu-time counts the time on a processor, for one thread on a machine that has other
// work. The last line is JSON.
//
// --serve: bench/ops_peers.py asks for slots of time, so that PyTorch can have the ones between. Lines in, lines of JSON out:
//   list          [name of every op]
//   open I DTYPE  {"error": "" or what is wrong}: op I is made and checked, the one before it forgotten
//   ours, bound   seconds of a pass, or that its bound would take
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "bench/op_bounds.h"
#include "bench/op_workloads.h"
#include "bench/timing.h"
#include "core/error.h"
#include "nn/device.h"
#include "tests/support/compare.h"

namespace bitloom::bench {
namespace {

using Json = nlohmann::json;
using nn::Tensor;

constexpr double slot = 0.05;  // seconds

std::vector<OpWorkload> all_workloads() {
  std::vector<OpWorkload> all;
  for (const auto& part : {matrix_workloads, attention_workloads, element_workloads, row_workloads, image_workloads}) {
    for (OpWorkload& each : part()) all.push_back(std::move(each));
  }
  return all;
}

std::vector<float> floats_of(nn::Engine& engine, const Tensor& tensor) {
  if (tensor.dtype() == DType::f32) return engine.to_host<float>(tensor);
  if (tensor.dtype() == DType::u8) {
    const std::vector<std::uint8_t> bytes = engine.to_host<std::uint8_t>(tensor);
    return {bytes.begin(), bytes.end()};
  }
  std::vector<float> values;
  for (const bf16 x : engine.to_host<bf16>(tensor)) values.push_back(to_float(x));
  return values;
}

// The first rows of results, as many as the reference has, against it. Numbers of intervals and places must be equal, which is
// what 1e-6 of a byte means.
std::string compare_results(nn::Engine& engine, const OpRun& ours, nn::Engine& reference, const OpRun& theirs, DType dtype) {
  for (std::size_t i = 0; i < ours.results.size(); ++i) {
    const std::vector<float> expected = floats_of(reference, theirs.results[i]);
    std::vector<float> found = floats_of(engine, ours.results[i]);
    found.resize(std::min(found.size(), expected.size()));
    const DType type = ours.results[i].dtype();
    const double limit = type == DType::u8 ? 1e-6 : dtype == DType::bf16 ? 8e-2 : 1e-4;
    const std::string problem = test::compare(found, expected, limit);
    if (!problem.empty()) return fmt::format("result {}: {}", i, problem);
  }
  return "";
}

class Bench {
 public:
  Bench(nn::Device device, double (*now)()) : now_(now), engine_(device), bounds_(bounds_of(engine_)) {}

  nn::Engine& engine() { return engine_; }
  const Bounds& bounds() const { return *bounds_; }

  // "", or what is wrong with the results.
  std::string open(const OpWorkload& workload, DType dtype) {
    run_.reset();
    workload_ = &workload;
    dtype_ = dtype;
    run_ = workload.make(engine_, dtype, Extent::whole);
    run_->pass();
    nn::Engine reference({}, "ref");
    const OpRun expected = workload.make(reference, dtype, Extent::slice);
    expected.pass();
    return compare_results(engine_, *run_, reference, expected, dtype);
  }

  double ours() { return time(run_->pass); }
  double bound() {
    if (workload_->flops > 0) return workload_->flops / bounds_->flops(dtype_) * time([&] { bounds_->multiply(dtype_); });
    return time([&] { bounds_->copy(workload_->bytes(dtype_)); });
  }

 private:
  // Seconds of a pass. On a GPU as many are asked for at once as take milliseconds, so that starting them and waiting for them
  // does not count.
  double time(const std::function<void()>& pass) {
    if (engine_.device() == nn::Device{}) return fastest(slot, pass, now_);
    const auto several = [&](std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) pass();
      engine_.synchronize();
    };
    several(1);
    const double alone = fastest(
        0, [&] { several(1); }, now_);
    constexpr double long_enough = 0.005;
    const auto count = static_cast<std::size_t>(std::clamp(long_enough / alone, 1.0, 500.0));
    return fastest(
               slot, [&] { several(count); }, now_) /
           static_cast<double>(count);
  }

  double (*now_)();
  nn::Engine engine_;
  std::unique_ptr<Bounds> bounds_;
  const OpWorkload* workload_ = nullptr;
  DType dtype_ = DType::f32;
  std::optional<OpRun> run_;
};

bool cpu_has_bf16() { return cpu_has("avx512_bf16") || cpu_has("amx_bf16") || cpu_has("bf16"); }

DType parse_dtype(const std::string& text) {
  if (text == "f32") return DType::f32;
  if (text == "bf16") return DType::bf16;
  fail(ErrorKind::usage, "--dtype: '{}'; expected f32 or bf16", text);
}

struct Options {
  nn::Device device;
  std::vector<DType> dtypes;
  std::size_t rounds = 5;
  std::string op;
  bool serve = false;
  double (*now)() = wall_seconds;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--serve") {
      options.serve = true;
      continue;
    }
    if (name == "--cpu-time") {
      options.now = cpu_seconds;
      continue;
    }
    if (i + 1 == argc) fail(ErrorKind::usage, "{}: expected a value", name);
    const std::string value = argv[++i];
    if (name == "--dtype") {
      options.dtypes.push_back(parse_dtype(value));
    } else if (name == "--rounds") {
      options.rounds = parse_count(value, name);
    } else if (name == "--device") {
      options.device = nn::parse_device(name, value);
      nn::check_device(options.device);
    } else if (name == "--sequences") {
      gpt2::sequences = parse_count(value, name);
    } else if (name == "--tokens") {
      gpt2::tokens = parse_count(value, name);
    } else if (name == "--images") {
      images = parse_count(value, name);
    } else if (name == "--threads") {
      omp_set_num_threads(static_cast<int>(parse_count(value, name)));
    } else if (name == "--op") {
      options.op = value;
    } else {
      fail(ErrorKind::usage, "unknown option {}", name);
    }
  }
  if (options.now == cpu_seconds && omp_get_max_threads() != 1) fail(ErrorKind::usage, "--cpu-time: expected --threads 1");
  if (options.dtypes.empty()) options.dtypes = {DType::f32, DType::bf16};
  return options;
}

bool multiplies_bf16(nn::Device device) { return device != nn::Device{} || cpu_has_bf16(); }

// Name of the hardware it runs on.
std::string title(nn::Device device) {
  if (device != nn::Device{}) return nn::describe_gpu(device.index).name;
  return fmt::format("{}; {} threads", cpu_name(), omp_get_max_threads());
}

Json about(nn::Device device) {
  Json json = {{"sequences", gpt2::sequences}, {"tokens", gpt2::tokens}, {"images", images}};
  json["bf16"] = multiplies_bf16(device);
  if (device != nn::Device{}) {
    json["gpu"] = nn::describe_gpu(device.index).name;
  } else {
    json["cpu"] = cpu_name();
    json["threads"] = omp_get_max_threads();
  }
  return json;
}

void serve(const std::vector<OpWorkload>& workloads, const Options& options) {
  Bench bench(options.device, options.now);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    Json reply;
    if (command == "list") {
      reply = about(options.device);
      for (const OpWorkload& each : workloads) {
        reply["ops"].push_back({{"name", each.name}, {"bound", each.flops > 0 ? "matmul" : "memory"}});
      }
    } else if (command == "open") {
      std::size_t number = 0;
      std::string dtype;
      words >> number >> dtype;
      reply = {{"error", bench.open(workloads.at(number), parse_dtype(dtype))}};
    } else if (command == "ours") {
      reply = bench.ours();
    } else if (command == "bound") {
      reply = bench.bound();
    } else {
      fail(ErrorKind::usage, "unknown command '{}'", line);
    }
    fmt::print("{}\n", reply.dump());
    std::fflush(stdout);
  }
}

Json measure(Bench& bench, const OpWorkload& workload, DType dtype, std::size_t rounds) {
  const std::string problem = bench.open(workload, dtype);
  if (!problem.empty()) fail(ErrorKind::internal, "{}, {}: {}", workload.name, dtype_name(dtype), problem);
  const std::vector<Contender> contenders = {{"ours", [&] { return 1 / bench.ours(); }},
                                             {"bound", [&] { return 1 / bench.bound(); }}};
  const auto rates = alternate(contenders, rounds);
  const double milliseconds = 1e3 / median(rates[0]);
  const double share = median_ratio(rates[0], rates[1]);
  const char* bound = workload.flops > 0 ? bench.bounds().multiplies() : "copying";
  fmt::print("{:<28}{:<6}{:>10.3f} ms{:>7.0f}% of {}\n", workload.name, dtype_name(dtype), milliseconds, 100 * share, bound);
  return {{"op", workload.name}, {"dtype", dtype_name(dtype)}, {"milliseconds", milliseconds}, {"share_of_bound", share}};
}

void run(const Options& options) {
  const std::vector<OpWorkload> workloads = all_workloads();
  if (options.serve) return serve(workloads, options);
  fmt::print("{}; GPT-2's ops on {} x {} tokens, a convnet's on {} images\n", title(options.device), gpt2::sequences,
             gpt2::tokens, images);
  Bench bench(options.device, options.now);
  Json json = about(options.device);
  for (const DType dtype : options.dtypes) {
    if (dtype == DType::bf16 && !multiplies_bf16(options.device)) {
      fmt::print("bf16 is left out: this CPU does not multiply it\n");
      continue;
    }
    for (const OpWorkload& each : workloads) {
      if (each.name.find(options.op) != std::string::npos) json["ops"].push_back(measure(bench, each, dtype, options.rounds));
    }
  }
  fmt::print("{}\n", json.dump());
}

}  // namespace
}  // namespace bitloom::bench

int main(int argc, char** argv) {
  using namespace bitloom;
  try {
    bench::run(bench::parse(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bitloom_bench_ops: {}\n", error.what());
    return 1;
  }
}
