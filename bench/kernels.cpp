// bitloom_bench_kernels [ROUNDS]: every kernel of every table that this CPU supports, checked against `ref`, then timed on one
// core and on all of them, in turns with the table's peak and with oneDNN's convolution. The last line is JSON.
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/onednn_conv.h"
#include "bench/timing.h"
#include "bench/workloads.h"
#include "core/error.h"
#include "core/hash.h"
#include "simd/kernels.h"

namespace bitloom::bench {
namespace {

using Json = nlohmann::json;

constexpr double slot_seconds = 0.03;       // time of one contender in one round
constexpr double pass_seconds = 0.001;      // time of one timed pass, unless a single item takes longer; as simd::measure_peak
constexpr double rival_slot_seconds = 0.1;  // for comparisons with oneDNN, whose passes take up to tens of milliseconds
constexpr std::size_t rival_passes = 3;
constexpr std::size_t conv_images = 8;

struct Settings {
  std::size_t rounds = 7;
  std::vector<int> threads;         // 1 and all
  std::vector<std::string> tables;  // best first
};

// One row of a table: what one contender reached, for each entry of Settings::threads.
struct Row {
  std::string name;
  std::vector<double> items;  // per second
  std::vector<double> share;  // share of the peak; empty where there is none
  std::vector<double> lead;   // rivals only: items per second of the table in use, over theirs
  std::string note;
};

// The first items of every table must equal those of `ref`, bit for bit. Returns the hash of the results.
Hash128 check(Workload& work, const std::vector<std::string>& tables) {
  Hasher hasher;
  for (std::size_t item = 0; item < std::min<std::size_t>(work.items, 2); ++item) {
    work.clear(0);
    work.run(simd::kernels("ref"), item, 0);
    const std::vector<std::byte> expected(work.output(0).begin(), work.output(0).end());
    if (std::all_of(expected.begin(), expected.end(), [](std::byte b) { return b == std::byte{0}; })) {
      fail(ErrorKind::internal, "{}: 'ref' wrote nothing but zeros", work.name);
    }
    for (const std::string& table : tables) {
      work.clear(0);
      work.run(simd::kernels(table), item, 0);
      if (!std::equal(expected.begin(), expected.end(), work.output(0).begin())) {
        fail(ErrorKind::internal, "{}: '{}' and 'ref' disagree about item {}", work.name, table, item);
      }
    }
    hasher.update(std::span(expected));
  }
  return hasher.finish();
}

// Bit-MACs per second, all threads together.
double peak_rate(const simd::Kernels& table, int threads) {
  double sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
  sum += simd::measure_peak(table, slot_seconds);
  return sum;
}

// One pass: each thread takes `per_thread` items in turn.
void run_pass(Workload& work, const simd::Kernels& table, int threads, std::size_t per_thread) {
#pragma omp parallel num_threads(threads)
  {
    const auto t = static_cast<std::size_t>(omp_get_thread_num());
    const std::size_t first = t * work.items / static_cast<std::size_t>(threads);
    for (std::size_t i = 0; i < per_thread; ++i) work.run(table, (first + i) % work.items, t);
  }
}

std::size_t items_per_pass(Workload& work, const simd::Kernels& table) {
  const double seconds = fastest(0, [&] { work.run(table, 0, 0); });
  return std::clamp<std::size_t>(static_cast<std::size_t>(pass_seconds / seconds), 1, 4096);
}

struct Rival {
  std::string name;
  std::unique_ptr<OnednnConv> conv;
};

// oneDNN's convolutions of the same images with the threads that OpenMP has now, checked where no border is seen.
std::vector<Rival> make_rivals(const ConvWorkload& work, const ConvOptions& options) {
  std::vector<Rival> rivals;
  const FloatConvShape shape{work.items, options.in_channels, options.out_channels, options.size};
  const std::vector<float> expected = work.expected();
  for (const FloatType type : {FloatType::f32, FloatType::bf16}) {
    Rival rival{type == FloatType::f32 ? "oneDNN f32" : "oneDNN bf16",
                OnednnConv::make(type, shape, work.source(), work.weights())};
    if (rival.conv == nullptr) continue;
    rival.conv->run();
    const std::vector<float> actual = rival.conv->output();
    for (std::size_t y = 1; y + 1 < options.size; ++y) {
      for (std::size_t k = 0; k < options.out_channels * options.size; ++k) {
        const std::size_t i = (k / options.size * options.size + y) * options.size + k % options.size;
        if (k % options.size == 0 || k % options.size == options.size - 1) continue;
        // bf16 keeps 8 bits of the result; f32 may go through Winograd's transformation.
        if (!(std::fabs(actual[i] - expected[i]) <= 0.5F + std::fabs(expected[i]) / 128)) {
          fail(ErrorKind::internal, "{}: element {} is {}, expected {}", rival.name, i, actual[i], expected[i]);
        }
      }
    }
    rivals.push_back(std::move(rival));
  }
  return rivals;
}

// All contenders of one workload, in turns; `conv` is null or the workload once more, for oneDNN to meet.
std::vector<Row> measure(Workload& work, const ConvWorkload* conv, const ConvOptions& options, const Settings& settings) {
  std::vector<Row> rows;
  for (const std::string& table : settings.tables) rows.push_back({table, {}, {}, {}, ""});
  for (const int threads : settings.threads) {
    omp_set_num_threads(threads);
    std::vector<Contender> contenders;
    for (const std::string& name : settings.tables) {
      const simd::Kernels& table = simd::kernels(name);
      const std::size_t per_thread = items_per_pass(work, table);
      const double items = static_cast<double>(threads) * static_cast<double>(per_thread);
      contenders.push_back({name, [&work, &table, threads, per_thread, items] {
                              return items / fastest(slot_seconds, [&] { run_pass(work, table, threads, per_thread); });
                            }});
      if (work.of_peak) contenders.push_back({name + " peak", [&table, threads] { return peak_rate(table, threads); }});
    }
    std::vector<Rival> rivals;
    if (conv != nullptr) rivals = make_rivals(*conv, options);
    // The table in use once more, timed as its rivals are.
    const std::size_t champion = contenders.size();
    const auto sustained_rate = [](double items, const std::function<void()>& pass) {
      return items / sustained(rival_slot_seconds, rival_passes, pass);
    };
    if (!rivals.empty()) {
      const simd::Kernels& table = simd::kernels(settings.tables[0]);
      const std::size_t per_thread = items_per_pass(work, table);
      const double items = static_cast<double>(threads) * static_cast<double>(per_thread);
      contenders.push_back({settings.tables[0], [&work, &table, threads, per_thread, items, sustained_rate] {
                              return sustained_rate(items, [&] { run_pass(work, table, threads, per_thread); });
                            }});
    }
    for (const Rival& rival : rivals) {
      contenders.push_back(
          {rival.name, [&] { return sustained_rate(static_cast<double>(work.items), [&] { rival.conv->run(); }); }});
    }
    const auto rates = alternate(contenders, settings.rounds);
    const std::size_t stride = work.of_peak ? 2 : 1;
    for (std::size_t i = 0; i < settings.tables.size(); ++i) {
      rows[i].items.push_back(median(rates[i * stride]));
      if (work.of_peak) rows[i].share.push_back(work.operations * median_ratio(rates[i * stride], rates[i * stride + 1]));
    }
    for (std::size_t r = 0; r < rivals.size(); ++r) {
      const std::size_t at = settings.tables.size() + r;
      if (at == rows.size()) rows.push_back({rivals[r].name, {}, {}, {}, rivals[r].conv->implementation()});
      rows[at].items.push_back(median(rates[champion + 1 + r]));
      rows[at].lead.push_back(median_ratio(rates[champion], rates[champion + 1 + r]));
    }
  }
  return rows;
}

// 1.234 T, 56.7 G, ...
std::string scaled(double value) {
  for (const auto& [factor, letter] : {std::pair{1e12, 'T'}, {1e9, 'G'}, {1e6, 'M'}, {1e3, 'k'}}) {
    if (value >= 0.1 * factor) return fmt::format("{:.3f} {}", value / factor, letter);
  }
  return fmt::format("{:.1f}  ", value);
}

void print(const Workload& work, const std::vector<Row>& rows, const Settings& settings) {
  const auto column = [](const std::string& text, std::size_t width) { fmt::print("{:>{}}", text, width); };
  fmt::print("\n{} ({})\n  {:<18}", work.name, work.unit, "");
  for (const int threads : settings.threads) {
    column(fmt::format("{} core{}", threads, threads == 1 ? "" : "s"), 12);
    if (work.of_peak) column("of peak", 9);
    if (work.second > 0) column(work.second_unit, 17);
  }
  fmt::print("\n");
  for (const Row& row : rows) {
    fmt::print("  {:<18}", row.name);
    for (std::size_t t = 0; t < row.items.size(); ++t) {
      column(scaled(work.operations * row.items[t]), 12);
      if (work.of_peak) column(row.share.empty() ? "" : fmt::format("{:.1f}%", 100 * row.share[t]), 9);
      if (work.second > 0) column(scaled(work.second * row.items[t]), 17);
    }
    if (!row.lead.empty()) fmt::print("  {}: {:.1f}x", rows[0].name, row.lead.back());
    fmt::print("{}\n", row.note.empty() ? "" : "  [" + row.note + "]");
  }
  std::fflush(stdout);
}

Json to_json(const Workload& work, const std::vector<Row>& rows) {
  Json json = {{"name", work.name}, {"unit", work.unit}, {"rows", Json::array()}};
  for (const Row& row : rows) {
    Json each = {{"name", row.name}, {"rate", Json::array()}};
    for (const double items : row.items) each["rate"].push_back(work.operations * items);
    if (!row.share.empty()) each["share_of_peak"] = row.share;
    if (!row.lead.empty()) each["lead_of_table_in_use"] = row.lead;
    json["rows"].push_back(each);
  }
  return json;
}

int run(const Settings& settings) {
  const auto threads = static_cast<std::size_t>(settings.threads.back());
  std::string supported;
  for (const std::string& table : settings.tables) supported += (supported.empty() ? "" : ", ") + table;
  fmt::print("{}\nkernels: {} (supported: {}); oneDNN {}; medians of {} rounds\n", cpu_name(), settings.tables[0], supported,
             onednn_version(), settings.rounds);
  const bool native_bf16 = cpu_has("avx512_bf16") || cpu_has("amx_bf16") || cpu_has("bf16");
  if (!native_bf16) fmt::print("this CPU has no bf16 arithmetic: oneDNN's bf16, where it offers any, is emulated in f32\n");

  const ConvOptions main_shape{256, 256, 32};
  std::vector<std::unique_ptr<Workload>> works;
  const auto add_conv = [&](const ConvOptions& options) {
    works.push_back(std::make_unique<ConvWorkload>(options, conv_images, threads));
  };
  auto first = std::make_unique<ConvWorkload>(main_shape, conv_images, threads);
  const ConvWorkload* const against = first.get();
  works.push_back(std::move(first));
  add_conv({256, 256, 32, false, true});
  add_conv({256, 1024, 16});
  add_conv({1024, 1024, 8});
  add_conv({256, 256, 32, true, false});
  add_conv({256, 256, 32, false, false, 2});
  works.push_back(make_gradient(threads));
  const Workload* const gradient = works.back().get();
  works.push_back(make_gemm(threads));
  works.push_back(make_pool(threads));
  works.push_back(make_encoding(threads));
  for (const auto make : {make_backward, make_rounding, make_centring, make_descent, make_combination, make_adam})
    works.push_back(make(threads));

  Hasher hasher;
  for (const auto& work : works) hasher.update(check(*work, settings.tables).hex());
  const std::string hash = hasher.finish().hex();
  fmt::print("all tables give the bits of 'ref' in {} workloads; hash of the results {}\n", works.size(), hash);

  Json summary = {{"conv_forward_share_of_peak", nullptr},
                  {"weight_gradient_share_of_peak", nullptr},
                  {"weight_gradient_dense_equivalent_vs_peak", nullptr},
                  {"conv_forward_vs_onednn_f32", nullptr},
                  {"conv_forward_vs_onednn_bf16", nullptr}};
  Json results = Json::array();
  for (const auto& work : works) {
    const bool is_main = work.get() == against;
    const std::vector<Row> rows = measure(*work, is_main ? against : nullptr, main_shape, settings);
    print(*work, rows, settings);
    results.push_back(to_json(*work, rows));
    if (is_main) summary["conv_forward_share_of_peak"] = rows[0].share.front();
    if (work.get() == gradient) {
      const double share = rows[0].share.front();
      summary["weight_gradient_share_of_peak"] = share;
      summary["weight_gradient_dense_equivalent_vs_peak"] = share * gradient->second / gradient->operations;
    }
    for (const Row& row : rows) {
      if (row.name == "oneDNN f32") summary["conv_forward_vs_onednn_f32"] = row.lead.back();
      if (row.name == "oneDNN bf16") summary["conv_forward_vs_onednn_bf16"] = row.lead.back();
    }
  }
  summary["kernels"] = settings.tables[0];
  summary["cpu"] = cpu_name();
  summary["cores"] = settings.threads;
  summary["native_bf16"] = native_bf16;
  summary["onednn"] = onednn_version();
  summary["hash"] = hash;
  summary["results"] = results;
  fmt::print("\nShares in the last line are those of one core, ratios to oneDNN those of {} core(s).\n{}\n", threads,
             summary.dump());
  return 0;
}

}  // namespace
}  // namespace bitloom::bench

int main(int argc, char** argv) {
  using namespace bitloom;
  try {
    bench::Settings settings;
    if (argc > 2) fail(ErrorKind::usage, "expected at most one argument, the number of rounds");
    if (argc == 2) settings.rounds = bench::parse_count(argv[1], "ROUNDS");
    settings.threads = {1};
    if (omp_get_max_threads() > 1) settings.threads.push_back(omp_get_max_threads());
    settings.tables = simd::supported_kernels();
    return bench::run(settings);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bitloom_bench_kernels: {}\n", error.what());
    return 1;
  }
}
