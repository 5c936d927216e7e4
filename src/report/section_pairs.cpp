// Models of images and captions: pictures that a run made as it went on, reconstructions beside originals, how often codes are
// used, how near captions and images are.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/text.h"
#include "report/float_lines.h"
#include "report/markup.h"
#include "report/picture.h"
#include "report/plot.h"
#include "report/sections.h"

namespace bitloom::report {
namespace {

constexpr std::size_t longest_caption = 70;  // letters that head a column

std::string png_of(const PageImage& image) { return to_png(image.pixels, image.channels, image.height, image.width); }

std::string by_model(const ReportInput& input) {
  return input.model.empty() ? "" : fmt::format(" They are those of {}.", escape(input.model));
}

bool is_small(const PageImage& image) { return std::max(image.height, image.width) <= largest_pixelated; }

}  // namespace

std::string image_element(const PageImage& image, std::string_view description) {
  return fmt::format(R"(<img width="{}" height="{}" alt="{}" src="data:image/png;base64,{}"/>)", image.width, image.height,
                     escape(description), base64(png_of(image)));
}

std::string samples(const ReportInput& input, const FloatLines& lines) {
  if (!input.samples || input.samples->rows.empty()) return "";
  const Samples& all = *input.samples;
  std::string head = "<th></th>";
  for (const std::string& caption : all.captions) {
    head += fmt::format(R"(<th scope="col" title="{}">{}</th>)", escape(caption), escape(shorten(caption, longest_caption)));
  }
  std::string rows;
  bool small = true;
  for (const Samples::Row& row : all.rows) {
    if (row.images.size() != all.captions.size()) {
      fail(ErrorKind::usage, "row \"{}\" of samples has {} images: expected {}, one per caption", row.name, row.images.size(),
           all.captions.size());
    }
    std::string cells = fmt::format(R"(<th scope="row">{}</th>)", escape(row.name));
    for (std::size_t i = 0; i < row.images.size(); ++i) {
      const PageImage& image = row.images[i];
      small = small && is_small(image);
      cells += "<td>" + (image.pixels.empty() ? "" : image_element(image, row.name + ": " + all.captions[i])) + "</td>";
    }
    rows += "<tr>" + cells + "</tr>\n";
  }
  const bool drawn = lines.kind == "dalle";
  std::string note = drawn ? "Images that the model drew for the same captions as the training went on, with the same random "
                             "numbers every time."
                           : "The same held-out images, made of their tokens as the training went on.";
  if (all.left_out > 0) {
    note += fmt::format(" {} of {} steps with pictures are shown; the others are in the run's folder.", all.rows.size(),
                        all.rows.size() + all.left_out);
  }
  return section("samples", drawn ? "Images by step" : "Reconstructions by step", note,
                 fmt::format("<div class=\"scroll\"><table class=\"samples{}\"><thead><tr>{}</tr></thead><tbody>{}</tbody>"
                             "</table></div>\n",
                             small ? " small" : "", head, rows));
}

std::string text_samples(const FloatLines& lines) {
  // Number of samples that can be read: where there are more, the first, the last, and some from between.
  constexpr std::size_t most = 8;
  std::vector<const nlohmann::json*> all;
  for (const nlohmann::json& line : lines.samples) {
    if (!text(line, "text").empty()) all.push_back(&line);
  }
  if (all.empty()) return "";
  std::string list;
  const std::size_t shown = std::min(most, all.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const nlohmann::json& line = *all[shown == 1 ? all.size() - 1 : i * (all.size() - 1) / (shown - 1)];
    list += fmt::format("<dt>step {}</dt><dd>{}</dd>\n", whole_text(number(line, "step")), escape(text(line, "text")));
  }
  return section("samples", "Text by step",
                 "What the model drew as the training went on, with the same random numbers every time.",
                 "<dl class=\"drawn\">" + list + "</dl>\n");
}

std::string reconstructions(const ReportInput& input) {
  if (input.reconstructions.empty()) return "";
  std::string figures;
  bool small = true;
  for (const Reconstruction& each : input.reconstructions) {
    figures += fmt::format("<figure><div>{}{}</div><figcaption>{}<span>{}</span></figcaption></figure>\n",
                           image_element(each.original, "original: " + each.caption),
                           image_element(each.again, "reconstruction: " + each.caption),
                           escape(shorten(each.caption, longest_caption)),
                           std::isfinite(each.psnr) ? fmt::format("{:.1f} dB", each.psnr) : std::string(nothing));
    small = small && is_small(each.original);
  }
  return section("reconstructions", "Reconstructions",
                 "Held-out images, each beside what the model makes of its tokens." + by_model(input),
                 fmt::format("<div class=\"images twins{}\">{}</div>\n", small ? " small" : "", figures));
}

std::string code_use(const ReportInput& input) {
  if (!input.codes || input.codes->counts.empty()) return "";
  std::vector<std::int64_t> counts = input.codes->counts;
  std::ranges::sort(counts, std::greater<>());
  const double all = std::max(1.0, static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0})));
  const auto used = static_cast<std::size_t>(std::ranges::count_if(counts, [](std::int64_t count) { return count > 0; }));
  std::size_t half = 0;
  for (double sum = 0; half < used && sum < all / 2; ++half) sum += static_cast<double>(counts[half]);
  // As many bars as a screen can show; each stands for the mean of its codes.
  constexpr std::size_t most_bars = 600;
  const std::size_t per_bar = (counts.size() + most_bars - 1) / most_bars;
  Series bars;
  bars.name = "share of a code";
  bars.filled = true;
  for (std::size_t first = 0; first < used; first += per_bar) {
    const std::size_t end = std::min(first + per_bar, used);
    const auto begin = counts.begin();
    const double sum = static_cast<double>(
        std::accumulate(begin + static_cast<std::ptrdiff_t>(first), begin + static_cast<std::ptrdiff_t>(end), std::int64_t{0}));
    const double share = 100 * sum / all / static_cast<double>(end - first);
    bars.x.insert(bars.x.end(), {static_cast<double>(first), static_cast<double>(end)});
    bars.y.insert(bars.y.end(), {share, share});
  }
  const auto codes = static_cast<double>(counts.size());
  Series even;
  even.name = "if all were as frequent";
  even.colour = 3;
  even.faint = true;
  even.x = {0, codes};
  even.y = {100 / codes, 100 / codes};
  LineChart chart;
  chart.title = "Codes by how often they are used";
  chart.x.title = "codes, the most frequent first";
  chart.y.title = "share of tokens (%)";
  chart.height = 260;
  chart.series = {bars, even};
  chart.solid_note = "";
  chart.faint_note = even.name;
  if (used < counts.size()) {
    chart.bands = {{0, static_cast<double>(used), fmt::format("{} used", used)},
                   {static_cast<double>(used), codes, fmt::format("{} never used", counts.size() - used), true}};
  }
  return section("codes", "Use of the codes",
                 fmt::format("{} held-out images are {} tokens of {} codes: {} are used, {} never. Half of the tokens are of "
                             "the {} most frequent codes.{}",
                             whole_text(static_cast<double>(input.codes->images)), whole_text(all), whole_text(codes),
                             whole_text(static_cast<double>(used)), whole_text(codes - static_cast<double>(used)),
                             whole_text(static_cast<double>(half)), by_model(input)),
                 framed(chart));
}

std::string similarities(const ReportInput& input) {
  if (!input.similarities || input.similarities->captions.empty()) return "";
  const Similarities& from = *input.similarities;
  ValueMap map;
  map.title = "Cosines of captions and images";
  map.row_title = "caption";
  map.column_title = "image";
  map.rows = from.captions;
  for (const PageImage& image : from.images) map.column_images.push_back(png_of(image));
  map.values = from.cosines;
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < from.captions.size(); ++i) {
    const auto rank = [&](const std::vector<std::size_t>& ranks) {
      return i < ranks.size() ? whole_text(static_cast<double>(ranks[i])) : std::string(nothing);
    };
    rows.push_back({escape(shorten(from.captions[i], longest_caption)), rank(from.caption_ranks), rank(from.image_ranks)});
  }
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (const std::vector<double>& row : from.cosines) {
    for (const double cosine : row) {
      least = std::min(least, cosine);
      most = std::max(most, cosine);
    }
  }
  const std::string ranks = table({{"pair"}, {"caption's rank", true}, {"image's rank", true}}, rows);
  return section("similarities", "Which captions are near which images",
                 fmt::format("Some held-out pairs: cosines from {:.2f}, pale, to {:.2f}; framed cells are those of a caption "
                             "and its own image. The ranks are those of the own one among all {} held-out ones, 1 the "
                             "nearest.{}",
                             least, most, whole_text(static_cast<double>(from.pairs)), by_model(input)),
                 pair(framed(map) + ranks));
}

}  // namespace bitloom::report
