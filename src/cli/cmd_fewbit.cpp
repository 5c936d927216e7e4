// bitloom fewbit: the few-bit table of an activation function as text, JSON and picture.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/command.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "nn/few_bit.h"
#include "report/step_chart.h"

namespace bitloom::cli {
namespace {

using Json = nlohmann::json;

constexpr double farthest = 10000;  // end of an interval: every derivative is flat long before

struct Weight {
  const char* name;
  std::function<double(double)> (*make)();
};
constexpr std::array<Weight, 2> weights{
    {{"uniform", [] { return nn::uniform_weight(); }}, {"normal", [] { return nn::normal_weight(); }}}};

struct FewBitSettings {
  std::string function = "gelu", weight = "uniform", interval = "-10,10", out;
  std::size_t bits = 3, points = nn::FewBitOptions{}.points;
  bool json = false;
  double low = 0, high = 0;  // ends of the interval

  void declare(Options& options) {
    std::vector<std::string> names;
    for (const Weight& each : weights) names.emplace_back(each.name);
    options.text("function", function, "NAME", fmt::format("Activation: {}", fmt::join(nn::activation_names(), ", ")));
    options.count("bits", bits, 1, 8, "Bits kept of each input: 2^bits levels");
    options.text("interval", interval, "LOW,HIGH", "Interval of the inputs that count");
    options.choice("weight", weight, names, "Weight of the inputs; normal: mean 0, standard deviation 1");
    options.count("points", points, 2, 20000, "Intervals of the grid on which boundaries are searched before they leave it");
    options.text("out", out, "FILE", "Drawing of the derivative and its steps: FILE.svg or FILE.png");
    options.flag("json", json, "One JSON object instead of tables");
  }

  void check() {
    const std::vector<std::string> parts = split(interval, ',');
    const auto from = parse_double(parts.front()), to = parse_double(parts.back());
    if (parts.size() != 2 || !from || !to || !(*from < *to) || !(-farthest <= *from) || !(*to <= farthest)) {
      fail(ErrorKind::usage, "--interval: '{}' is not LOW,HIGH with LOW < HIGH between {} and {}, such as -10,10", interval,
           -farthest, farthest);
    }
    low = *from;
    high = *to;
    const std::size_t levels = std::size_t{1} << bits;
    if (points < levels) {
      fail(ErrorKind::usage, "--points: '{}' is fewer than the {} levels of {} bits", points, levels, bits);
    }
  }

  std::function<double(double)> weight_function() const {
    const auto found = std::find_if(weights.begin(), weights.end(), [&](const Weight& each) { return weight == each.name; });
    std::function<double(double)> density = found->make();
    // Its largest value on the interval is at the end nearer to 0, or at 0.
    const double nearest = std::clamp(0.0, low, high);
    if (!(density(nearest) >= std::numeric_limits<double>::min())) {
      fail(ErrorKind::usage, "--weight: {} weight vanishes on [{}, {}]; expected an --interval nearer to 0", weight, low, high);
    }
    return density;
  }
};

Json to_json(const FewBitSettings& settings, const nn::Activation& activation, const nn::FewBitTable& table) {
  return {{"function", activation.name},
          {"bits", settings.bits},
          {"interval", {settings.low, settings.high}},
          {"weight", settings.weight},
          {"points", settings.points},
          {"even", table.even},
          {"boundaries", table.boundaries},
          {"levels", table.levels},
          {"error", table.error},
          {"rms", table.rms}};
}

std::string describe(const FewBitSettings& settings) {
  return fmt::format("{} weight on [{}, {}]", settings.weight, settings.low, settings.high);
}

// With eight decimals; what rounds to 0 has no sign.
std::string decimal(double value) { return fmt::format("{:.8f}", std::abs(value) < 0.5e-8 ? 0.0 : value); }

void print(Terminal& terminal, const FewBitSettings& settings, const nn::Activation& activation, const nn::FewBitTable& table) {
  terminal.print("{}: the derivative in {} levels ({} bit{}), {}", activation.name, table.levels.size(), settings.bits,
                 settings.bits == 1 ? "" : "s", describe(settings));
  if (table.even) terminal.line("The derivative is even, so the table is looked up by |x|.");
  terminal.print("\n{:>5}  {:>13}  {:>13}  {:>13}", "index", table.even ? "|x| above" : "x above", "up to", "level");
  for (std::size_t i = 0; i < table.levels.size(); ++i) {
    const std::string from = i == 0 ? "" : decimal(table.boundaries[i - 1]);
    const std::string to = i == table.boundaries.size() ? "" : decimal(table.boundaries[i]);
    terminal.print("{:>5}  {:>13}  {:>13}  {:>13}", i, from, to, decimal(table.levels[i]));
  }
  terminal.print("\nsquared error {:.6g}, root mean square {:.4g}; {} of 32 bits kept per element", table.error, table.rms,
                 settings.bits);
}

// The derivative over low..high in pieces that end at kinks.
std::vector<std::vector<report::Point>> curve(const nn::Activation& activation, double low, double high) {
  constexpr std::size_t samples = 600;  // per piece
  std::vector<double> ends{low};
  for (const double kink : activation.kinks) {
    if (kink > low && kink < high) ends.push_back(kink);
  }
  ends.push_back(high);
  std::vector<std::vector<report::Point>> pieces;
  for (std::size_t piece = 0; piece + 1 < ends.size(); ++piece) {
    // A step away from the ends, where the derivative may have the value of the piece beside.
    const double inset = 1e-9 * (high - low), from = ends[piece] + inset, width = ends[piece + 1] - inset - from;
    std::vector<report::Point>& points = pieces.emplace_back();
    for (std::size_t i = 0; i <= samples; ++i) {
      const double x = from + width * (static_cast<double>(i) / samples);
      points.push_back({x, activation.derivative(x)});
    }
  }
  return pieces;
}

report::Picture picture(const FewBitSettings& settings, const nn::Activation& activation, const nn::FewBitTable& table) {
  const nn::StepFunction steps = nn::unfolded(table);
  report::StepChart chart;
  chart.title = fmt::format("Derivative of {} in {} levels ({} bit{})", activation.name, table.levels.size(), settings.bits,
                            settings.bits == 1 ? "" : "s");
  chart.subtitle =
      fmt::format("{}, squared error {:.4g}{}", describe(settings), table.error, table.even ? "; looked up by |x|" : "");
  chart.x_title = "x";
  chart.y_title = fmt::format("{}'(x)", activation.name);
  // All boundaries and as much beside them as shows the tails, within the interval.
  const double first = steps.boundaries.front(), last = steps.boundaries.back();
  const double margin = std::max(0.5 * (last - first), 3.0);
  chart.low = std::max(settings.low, first - margin);
  chart.high = std::min(settings.high, last + margin);
  chart.curve = curve(activation, chart.low, chart.high);
  chart.curve_name = "derivative";
  chart.steps_name = fmt::format("{}-bit steps", settings.bits);
  chart.boundaries_name = "boundaries";
  chart.boundaries = steps.boundaries;
  chart.levels = steps.levels;
  return report::draw(chart);
}

}  // namespace

int fewbit(Session& session, std::span<const std::string> args) {
  FewBitSettings settings;
  Options options(
      "bitloom fewbit [--function NAME] [--bits N] [--out FILE.svg|FILE.png] [options]",
      "Finds the function of 2^bits constant steps that is nearest to the derivative of an activation function (Novikov et "
      "al.:\n"
      "Few-bit backward, 2022). With it a backward pass needs that many bits of each input. Prints where steps begin, their\n"
      "levels, and the error: the integral of the squared difference under the weight.");
  settings.declare(options);
  if (!parse_or_show_help(session, args, options)) return exit_done;
  settings.check();
  const nn::Activation& activation = nn::find_activation(settings.function, "--function");
  const report::PictureFormat format = settings.out.empty() ? nullptr : report::picture_format(settings.out, "--out");
  const nn::FewBitProblem problem = nn::few_bit_problem(activation, settings.weight_function(), settings.low, settings.high);
  session.on_root([&] {
    const nn::FewBitTable table =
        nn::fit_few_bit(problem, static_cast<unsigned>(settings.bits), {.points = settings.points, .polish = true});
    if (format != nullptr) write_atomically(settings.out, format(picture(settings, activation, table)));
    if (settings.json) {
      session.terminal.json(to_json(settings, activation, table));
    } else {
      print(session.terminal, settings, activation, table);
      if (format != nullptr) session.terminal.print("drawn in {}", settings.out);
    }
  });
  return exit_done;
}

}  // namespace bitloom::cli
