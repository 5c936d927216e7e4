#include "models/dvae/coder.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "data/pairs/pair_batches.h"
#include "models/dvae/pixels.h"
#include "nn/floats.h"

namespace bitloom::models {
namespace {

// Images whose noise is drawn together, and which one process takes before the next one does.
constexpr std::size_t chunk = 4;
constexpr std::uint64_t evaluation_seed = 1;

[[noreturn]] void refuse_results(const char* what) {
  fail(ErrorKind::data, "{}: the training of the discrete VAE has diverged, or its parameters are damaged", what);
}

}  // namespace

double DvaeEvaluation::psnr() const { return squared_error > 0 ? -10 * std::log10(squared_error) : 99; }

std::size_t DvaeEvaluation::codes_in_use() const {
  return static_cast<std::size_t>(std::ranges::count_if(counts, [](std::int64_t count) { return count > 0; }));
}

double DvaeEvaluation::perplexity() const {
  const auto all = static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  double entropy = 0;
  for (const std::int64_t count : counts) {
    if (count > 0) entropy -= static_cast<double>(count) / all * std::log(static_cast<double>(count) / all);
  }
  return std::exp(entropy);
}

std::size_t images_at_once(const DvaeConfig& config, DType values) {
  constexpr std::size_t maps = 4, most_bytes = std::size_t{1} << 30U;  // of a block in its largest group
  const std::size_t bytes = maps * config.side * config.side * config.hidden * dtype_size(values);
  return std::clamp<std::size_t>(most_bytes / std::max<std::size_t>(bytes, 1), 1, 32);
}

DvaeCoder::DvaeCoder(nn::Engine& engine, Dvae& net, DType values)
    : DvaeCoder(engine, net, values, images_at_once(net.config, values)) {}

DvaeCoder::DvaeCoder(nn::Engine& engine, Dvae& net, DType values, std::size_t at_once)
    : engine_(engine), net_(net), values_(values), at_once_(std::max<std::size_t>(at_once, 1)) {}

nn::Tensor DvaeCoder::logits_of(std::span<const float> images, std::size_t count) {
  return net_.encode(engine_, nn::from_floats(engine_, images, net_.input(count), values_, nn::Use::data));
}

nn::Tensor DvaeCoder::one_hot(std::span<const std::int32_t> codes, std::size_t count) {
  std::vector<float> rows(codes.size() * net_.config.codes);
  for (std::size_t i = 0; i < codes.size(); ++i) rows[i * net_.config.codes + static_cast<std::size_t>(codes[i])] = 1;
  return nn::from_floats(engine_, rows, net_.tokens(count), values_, nn::Use::data);
}

std::vector<std::int32_t> DvaeCoder::largest(const nn::Tensor& rows) {
  nn::Tensor ids = engine_.empty({rows.shape().rows()}, DType::i32, nn::Use::activations);
  nn::argmax_rows(engine_, rows, ids);
  return engine_.to_host<std::int32_t>(ids);
}

template <typename Visit>
void DvaeCoder::encode_parts(std::span<const std::uint8_t> images, Visit&& visit) {
  const std::size_t size = net_.config.values();
  for (std::size_t first = 0; first < images.size(); first += at_once_ * size) {
    const auto part = images.subspan(first, std::min(at_once_ * size, images.size() - first));
    std::vector<float> numbers(part.size());
    to_unit_interval(part, numbers);
    visit(logits_of(numbers, part.size() / size));
  }
}

std::vector<float> DvaeCoder::divergences(const nn::Tensor& logits) {
  nn::Tensor kl = engine_.empty({logits.shape().rows()}, nn::parameter_type(values_), nn::Use::activations);
  nn::categorical_kl(engine_, logits, 0, kl, nullptr);
  return nn::to_floats(engine_, kl);
}

std::vector<std::int32_t> DvaeCoder::encode(std::span<const std::uint8_t> images) {
  std::vector<std::int32_t> codes;
  encode_parts(images, [&](const nn::Tensor& logits) {
    // Where logits are not numbers some code is the largest all the same; their divergence is none either.
    const std::vector<float> kl = divergences(logits);
    if (!std::ranges::all_of(kl, [](float each) { return std::isfinite(each); })) {
      refuse_results("logits of an image are infinite or no numbers");
    }
    const std::vector<std::int32_t> some = largest(logits);
    codes.insert(codes.end(), some.begin(), some.end());
  });
  return codes;
}

std::vector<float> DvaeCoder::logits(std::span<const std::uint8_t> images) {
  std::vector<float> all;
  encode_parts(images, [&](const nn::Tensor& logits) {
    const std::vector<float> some = nn::to_floats(engine_, logits);
    all.insert(all.end(), some.begin(), some.end());
  });
  return all;
}

template <typename Visit>
void DvaeCoder::decode_parts(std::span<const std::int32_t> codes, Visit&& visit) {
  const std::size_t size = net_.config.grid() * net_.config.grid();
  for (std::size_t i = 0; i < codes.size(); ++i) {
    if (codes[i] < 0 || static_cast<std::size_t>(codes[i]) >= net_.config.codes) {
      fail(ErrorKind::data, "token {} is {}; expected 0 to {}", i, codes[i], net_.config.codes - 1);
    }
  }
  for (std::size_t first = 0; first < codes.size(); first += at_once_ * size) {
    const auto part = codes.subspan(first, std::min(at_once_ * size, codes.size() - first));
    visit(nn::to_floats(engine_, net_.decode(engine_, one_hot(part, part.size() / size))));
  }
}

std::vector<std::uint8_t> DvaeCoder::decode(std::span<const std::int32_t> codes) {
  std::vector<std::uint8_t> images;
  decode_parts(codes, [&](const std::vector<float>& maps) {
    std::vector<float> pixels(maps.size() / 2);
    reconstruct(maps, pixels);
    for (const float pixel : pixels) {
      // Rounded it could be any byte.
      if (std::isnan(pixel)) refuse_results("pixels of an image are no numbers");
      images.push_back(static_cast<std::uint8_t>(std::lround(pixel)));
    }
  });
  return images;
}

std::vector<float> DvaeCoder::maps(std::span<const std::int32_t> codes) {
  std::vector<float> all;
  decode_parts(codes, [&](const std::vector<float>& some) { all.insert(all.end(), some.begin(), some.end()); });
  return all;
}

// In millionths, added as whole numbers: the same for any number of ranks.
struct DvaeCoder::Sums {
  std::vector<std::int64_t> counts;
  std::int64_t relaxed = 0, hard = 0, kl = 0, error = 0;

  void collect(mpi::Comm& comm) {
    comm.sum(std::span(counts));
    for (std::int64_t* sum : {&relaxed, &hard, &kl, &error}) comm.sum(std::span(sum, 1));
  }
};

// Minus the log likelihood of each image, by codes (N,grid,grid,K).
std::vector<double> DvaeCoder::likelihoods(const nn::Tensor& codes, const nn::Tensor& pixels, double least_log_b) {
  const nn::Tensor maps = net_.decode(engine_, codes);
  nn::Tensor losses = engine_.empty({maps.shape().rows()}, pixels.dtype(), nn::Use::activations);
  nn::logit_laplace(engine_, {least_log_b}, maps, pixels, 0, losses, nullptr);
  const std::vector<float> rows = nn::to_floats(engine_, losses);
  const std::size_t size = net_.config.side * net_.config.side;
  std::vector<double> sums(rows.size() / size);
  for (std::size_t i = 0; i < rows.size(); ++i) sums[i / size] += static_cast<double>(rows[i]);
  return sums;
}

void DvaeCoder::add(std::span<const std::uint8_t> images, std::size_t number, const Measure& measure, Sums& sums) {
  const std::size_t size = net_.config.values();
  const std::size_t count = images.size() / size;
  const auto micro = [](double x) {
    // Far beyond an untrained net's, and so little that a sum of 90,000 has room for it.
    if (!(std::abs(x) < 1e8)) {
      fail(ErrorKind::data, "the net's loss of an image is {:g} nats: its training has diverged", x);
    }
    return static_cast<std::int64_t>(std::llround(1e6 * x));
  };
  std::vector<float> numbers(images.size());
  to_unit_interval(images, numbers);
  const nn::Tensor x = logits_of(numbers, count);
  for (const float each : divergences(x)) sums.kl += micro(static_cast<double>(each));

  nn::Tensor drawn = engine_.empty(x.shape(), x.dtype(), nn::Use::activations);
  nn::gumbel_softmax(engine_, {measure.temperature, evaluation_seed, number}, x, drawn);
  const nn::Tensor pixels = nn::from_floats(engine_, numbers, net_.input(count), nn::parameter_type(values_), nn::Use::data);
  for (const double nll : likelihoods(drawn, pixels, measure.least_log_b)) sums.relaxed += micro(nll);
  for (const double nll : likelihoods(one_hot(largest(drawn), count), pixels, measure.least_log_b)) sums.hard += micro(nll);

  const std::vector<std::int32_t> codes = largest(x);
  for (const std::int32_t code : codes) ++sums.counts[static_cast<std::size_t>(code)];
  const std::vector<float> maps = nn::to_floats(engine_, net_.decode(engine_, one_hot(codes, count)));
  std::vector<float> found(images.size());
  reconstruct(maps, found);
  for (std::size_t i = 0; i < count; ++i) {
    double error = 0;
    for (std::size_t p = i * size; p < (i + 1) * size; ++p) {
      const double distance = (static_cast<double>(found[p]) - static_cast<double>(images[p])) / 255;
      error += distance * distance;
    }
    sums.error += micro(error);
  }
}

DvaeEvaluation DvaeCoder::evaluate(mpi::Comm& comm, const data::Pairs& pairs, const Measure& measure, const Watch& watch) {
  Sums sums;
  sums.counts.assign(net_.config.codes, 0);
  const std::size_t chunks = (pairs.size() + chunk - 1) / chunk;
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto own = static_cast<std::size_t>(comm.rank());
  for (std::size_t first = 0; first < chunks; first += ranks) {
    // All throw what one of them throws, and at once: one that waited for the others to finish could give them up for lost.
    comm.together([&] {
      const std::size_t c = first + own;
      if (c >= chunks) return;
      std::vector<std::size_t> indexes(std::min(chunk, pairs.size() - c * chunk));
      std::iota(indexes.begin(), indexes.end(), c * chunk);
      add(data::centre_batch(pairs, indexes, net_.config.side).images, c, measure, sums);
      if (watch && !watch()) fail(ErrorKind::interrupted, "the evaluation was stopped");
    });
  }
  sums.collect(comm);
  DvaeEvaluation result;
  result.images = pairs.size();
  result.values = net_.config.values();
  result.counts = std::move(sums.counts);
  const double images = static_cast<double>(std::max<std::size_t>(1, pairs.size()));
  result.relaxed_nll = 1e-6 * static_cast<double>(sums.relaxed) / images;
  result.hard_nll = 1e-6 * static_cast<double>(sums.hard) / images;
  result.kl = 1e-6 * static_cast<double>(sums.kl) / images;
  result.squared_error = 1e-6 * static_cast<double>(sums.error) / images / static_cast<double>(result.values);
  return result;
}

}  // namespace bitloom::models
