// bitloom_bench_repeat [ROUNDS]: when it pays to keep the counts of a minibatch that stays (--repeat) and to convolve only the
// channels that changed: by the share of changed channels, and under the update rules. The last line is JSON.
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/random.h"
#include "data/synthetic.h"
#include "layerwise/count_cache.h"
#include "layerwise/encoder.h"
#include "layerwise/stage.h"
#include "simd/kernels.h"

namespace bitloom::bench {
namespace {

using Json = nlohmann::json;
using namespace layerwise;

constexpr double slot_seconds = 0.03;
constexpr std::size_t images = 4;

struct Shape {
  std::size_t size, in_channels, out_channels;
};
// As the layers of a net have them; the second is a layer after pooling.
constexpr Shape shapes[] = {{32, 128, 256}, {16, 256, 512}};
constexpr double shares[] = {0, 0.01, 0.05, 0.1, 0.25, 0.5, 1};

// A layer with random weights over random bits, whose threshold and window hold what they do in training.
class Convolution {
 public:
  Convolution(const simd::Kernels& kernels, const Shape& shape) : kernels_(kernels), random_(shape.size, Stream::test) {
    LayerSpec spec;
    spec.name = "layer";
    spec.inputs = {"input"};
    spec.width = shape.out_channels;
    NetSpec net;
    net.layers = {spec};
    layer_ = BinaryLayer(spec, derive_geometry(net, shape.size, shape.size, shape.in_channels).front());
    for (std::size_t o = 0; o < layer_.channels(); ++o) flip(o, ~std::uint64_t{0});
    cache_ = std::make_unique<CountCache>(layer_, images);
    const auto half = static_cast<std::int32_t>(layer_.geometry().valid_bits / 2);
    const auto deviation = static_cast<std::int32_t>(shape.in_channels / 12);  // rough standard deviation of a count
    low_.assign(layer_.padded_channels(), half - 2 * deviation);
    high_.assign(layer_.padded_channels(), half - deviation);
    for (std::int32_t& threshold : layer_.thresholds()) threshold = half - deviation;
    const MapShape& in = layer_.geometry().input;
    input_ = Buffer<std::uint64_t>(images * in.size());
    for (std::uint64_t& word : input_) word = random_.next() & random_.next();
    bits_.resize(layer_.geometry().output.size());
    window_.resize(bits_.size());
    sums_.channels = layer_.padded_channels();
    sums_.in_channels = in.words() * word_bits;
    sums_.statistics.assign(4 * sums_.channels + sums_.in_channels + 1, 0);
  }

  void fused() {
    const MapShape& map = layer_.geometry().output;
    for (std::size_t i = 0; i < images; ++i) {
      kernels_.conv(layer_.conv_shape(), input(i), layer_.conv_weights(), thresholds(),
                    {bits_.data(), map.pitch(), window_.data(), sums_.count().data(), sums_.count_squared().data()});
    }
  }
  // A first step, which convolves everything and keeps it, if `share` is negative; else one after an update that changed
  // that share of the channels.
  void kept(double share) {
    const auto changed = static_cast<std::size_t>(std::max(share, 0.0) * static_cast<double>(layer_.channels()));
    for (std::size_t i = 0; i < changed; ++i) flip(i, 1);
    const CountMode mode = cache_->begin_step(share >= 0, true, 1);
    if (mode != (share < 0 ? CountMode::all : CountMode::part)) fail(ErrorKind::internal, "counts are not kept");
    for (std::size_t i = 0; i < images; ++i) {
      cache_->forward(kernels_, i, input(i), thresholds(), bits_.data(), window_.data(), sums_, scratch_);
    }
    cache_->complete(sums_);
  }

  // Both ways, bit for bit; returns a hash of the results.
  std::uint64_t check() {
    const auto result = [&] {
      const auto sums = std::as_bytes(sums_.count());
      return Hasher().update(std::as_bytes(std::span(bits_))).update(std::as_bytes(std::span(window_))).update(sums).finish();
    };
    kept(-1);
    for (const double share : shares) {
      sums_.clear();
      kept(share);
      const Hash128 partly = result();
      sums_.clear();
      fused();
      if (partly != result()) fail(ErrorKind::internal, "kept counts give other bits than the whole convolution");
    }
    return result().low;
  }

 private:
  const std::uint64_t* input(std::size_t i) const { return input_.data() + i * layer_.geometry().input.size(); }
  simd::ConvThresholds thresholds() const { return {layer_.thresholds().data(), low_.data(), high_.data()}; }
  void flip(std::size_t o, std::uint64_t mask) {
    std::vector<std::uint64_t> row(layer_.patch_words());
    for (std::size_t w = 0; w < row.size(); ++w) {
      row[w] = layer_.rows()[o * row.size() + w] ^ (random_.next() & mask & layer_.valid_bits()[w]);
    }
    if (mask == 1) row[0] = layer_.rows()[o * row.size()] ^ 1;
    layer_.set_row(o, row.data(), nullptr);
  }

  const simd::Kernels& kernels_;
  Random random_;
  BinaryLayer layer_;
  std::unique_ptr<CountCache> cache_;
  std::vector<std::int32_t> low_, high_;
  Buffer<std::uint64_t> input_;
  std::vector<std::uint64_t> bits_, window_;
  LayerSums sums_;
  CountCache::Scratch scratch_;
};

// Where a line through neighbouring points crosses 1, 0 or 1 if none does.
double break_even(const std::vector<double>& speed) {
  for (std::size_t i = 0; i + 1 < speed.size(); ++i) {
    if (speed[i] >= 1 && speed[i + 1] < 1) {
      return shares[i] + (shares[i + 1] - shares[i]) * (speed[i] - 1) / (speed[i] - speed[i + 1]);
    }
  }
  return speed.front() < 1 ? 0 : 1;
}

Json by_share(const simd::Kernels& kernels, std::size_t rounds) {
  fmt::print("\nForward of a step on one core, against the fused convolution of all channels (1.00)\n{:<24}{:>10}{:>8}",
             "layer", "us/image", "first");
  for (const double share : shares) fmt::print("{:>7.0f}%", 100 * share);
  fmt::print("  channels changed; pays up to\n");
  Json rows = Json::array();
  for (const Shape& shape : shapes) {
    Convolution convolution(kernels, shape);
    const std::uint64_t hash = convolution.check();
    std::vector<Contender> contenders;
    const auto rate = [&](auto&& pass) { return [=] { return images / fastest(slot_seconds, pass); }; };
    contenders.push_back({"fused", rate([&] { convolution.fused(); })});
    contenders.push_back({"first", rate([&] { convolution.kept(-1); })});
    for (const double share : shares) contenders.push_back({"kept", rate([&convolution, share] { convolution.kept(share); })});
    const auto rates = alternate(contenders, rounds);
    std::vector<double> speed;
    for (std::size_t c = 2; c < rates.size(); ++c) speed.push_back(median_ratio(rates[c], rates[0]));
    const std::string name = fmt::format("{}->{} at {}x{}", shape.in_channels, shape.out_channels, shape.size, shape.size);
    const double first = median_ratio(rates[1], rates[0]);
    fmt::print("{:<24}{:>10.0f}{:>8.2f}", name, 1e6 / median(rates[0]), first);
    for (const double s : speed) fmt::print("{:>8.2f}", s);
    fmt::print("  {:.0f}%   (results {:016x})\n", 100 * break_even(speed), hash);
    rows.push_back({{"layer", name},
                    {"first_step", first},
                    {"shares", std::vector<double>(std::begin(shares), std::end(shares))},
                    {"speed", speed},
                    {"break_even_share", break_even(speed)}});
  }
  return rows;
}

// A second layer of 512 channels in training, by rule.
struct Rule {
  const char* name;
  double flip_share;  // topk alone
};
constexpr Rule rules[] = {{"greedy", 0},   {"topk", 0.00001}, {"topk", 0.0001},
                          {"topk", 0.001}, {"stochastic", 0}, {"accumulate", 0}};
constexpr std::size_t batch = 64;
constexpr std::size_t repeat = 4;
constexpr const char* net_text = R"({
  "name": "bench",
  "encoder": {"kind": "thermometer", "levels": 20},
  "head": {"kind": "linear", "grid": 4},
  "layers": [
    {"name": "below", "inputs": ["input"], "width": 256},
    {"name": "layer", "pool": "or", "width": 512}
  ]
})";

class Training {
 public:
  Training(const simd::Kernels& kernels, const data::Dataset& train, const Encoder& encoder, const Rule& rule, double limit)
      : net_(parse_net(net_text, "bench/repeat.cpp")) {
    const MapShape input = encoder.output();
    const auto geometry = derive_geometry(net_, input.height, input.width, input.channels);
    for (std::size_t i = 0; i < geometry.size(); ++i) layers_.emplace_back(net_.layers[i], geometry[i]);
    TrainOptions options;
    options.batch = batch;
    options.warmup_steps = 0;
    options.repeat = repeat;
    options.counts_limit = limit;
    options.layer.rule.name = rule.name;
    options.layer.rule.flip_share = rule.flip_share;
    for (std::size_t i = 0; i < 2; ++i) {
      StageSpec spec = net_.stages[i];
      spec.epochs = 1000;  // the schedule hardly moves
      stage_ = std::make_unique<Stage>(kernels, comm_, spec, encoder, layers_, train, options, i);
      for (std::size_t step = 0; step < 2 * repeat; ++step) stage_->step();
    }
  }

  // All updates on one minibatch: seconds of the forward and of everything but reading, encoding and frozen layers.
  void minibatch() {
    for (std::size_t i = 0; i < repeat; ++i) {
      const std::vector<std::uint64_t> before(layers_[1].rows().begin(), layers_[1].rows().end());
      const StepResult step = stage_->step();
      forward += step.times.forward;
      own += step.times.total() - step.times.data - step.times.encode - step.times.prefix;
      ++steps;
      partly += step.modes[0] == CountMode::part ? 1 : 0;
      const std::size_t words = layers_[1].patch_words();
      for (std::size_t o = 0; o < layers_[1].channels(); ++o) {
        const auto row = static_cast<std::ptrdiff_t>(o * words);
        const auto end = row + static_cast<std::ptrdiff_t>(words);
        changed += std::equal(before.begin() + row, before.begin() + end, layers_[1].rows().begin() + row) ? 0 : 1;
      }
    }
  }
  Hash128 hash() const { return hash_bytes(std::as_bytes(layers_[1].rows().span())); }
  double changed_share() const { return static_cast<double>(changed) / static_cast<double>(steps * layers_[1].channels()); }

  double forward = 0, own = 0;
  std::size_t steps = 0, partly = 0, changed = 0;

 private:
  NetSpec net_;
  mpi::Comm comm_;
  std::vector<BinaryLayer> layers_;
  std::unique_ptr<Stage> stage_;
};

Json by_rule(const simd::Kernels& kernels, std::size_t rounds) {
  const data::Dataset train = data::make_synthetic(1, 4 * batch);
  const NetSpec net = parse_net(net_text, "bench/repeat.cpp");
  const Encoder encoder = Encoder::fit(net.encoder, train, 1);
  fmt::print(
      "\nTraining steps of 256->512 at 16x16, batch {}, --repeat {}, {} threads: kept counts against none\n{:<22}{:>16}{:>12}"
      "{:>14}{:>14}{:>12}{:>12}\n",
      batch, repeat, omp_get_max_threads(), "rule", "channels", "steps that", "forward", "forward", "forward", "step");
  fmt::print("{:<22}{:>16}{:>12}{:>14}{:>14}{:>12}{:>12}\n", "", "changed/step", "keep", "none, ms", "kept, ms", "speed",
             "speed");
  Json rows = Json::array();
  for (const Rule& rule : rules) {
    Training none(kernels, train, encoder, rule, -1);
    Training kept(kernels, train, encoder, rule, TrainOptions{}.counts_limit);
    for (std::size_t round = 0; round < rounds; ++round) {
      none.minibatch();
      kept.minibatch();
    }
    if (none.hash() != kept.hash()) fail(ErrorKind::internal, "rule '{}': kept counts train another net", rule.name);
    const std::string name = rule.flip_share == 0 ? rule.name : fmt::format("{}, {:g}%", rule.name, 100 * rule.flip_share);
    const double steps = static_cast<double>(none.steps);
    const double share = static_cast<double>(kept.partly) / steps;
    fmt::print("{:<22}{:>15.1f}%{:>11.0f}%{:>14.2f}{:>14.2f}{:>12.2f}{:>12.2f}\n", name, 100 * kept.changed_share(),
               100 * share, 1e3 * none.forward / steps, 1e3 * kept.forward / steps, none.forward / kept.forward,
               none.own / kept.own);
    rows.push_back({{"rule", name},
                    {"changed_share", kept.changed_share()},
                    {"kept_share", share},
                    {"forward_speed", none.forward / kept.forward},
                    {"step_speed", none.own / kept.own}});
  }
  return rows;
}

Json run(std::size_t rounds) {
  const simd::Kernels& kernels = simd::kernels();
  fmt::print("{}\nkernels: {}; {} rounds\n", cpu_name(), kernels.name, rounds);
  Json json = {{"kernels", kernels.name}, {"cpu", cpu_name()}};
  json["shapes"] = by_share(kernels, rounds);
  json["rules"] = by_rule(kernels, rounds);
  return json;
}

}  // namespace
}  // namespace bitloom::bench

int main(int argc, char** argv) {
  using namespace bitloom;
  try {
    if (argc > 2) fail(ErrorKind::usage, "expected at most one argument, the number of rounds");
    const nlohmann::json json = bench::run(argc == 2 ? bench::parse_count(argv[1], "ROUNDS") : 7);
    fmt::print("{}\n", json.dump());
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bitloom_bench_repeat: {}\n", error.what());
    return 1;
  }
}
