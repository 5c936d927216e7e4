#include "cli/net_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "layerwise/layer.h"

namespace bitloom::cli {

std::vector<LayerSummary> summarise_layers(const layerwise::NetSpec& net, const layerwise::MapShape& input) {
  const auto geometry = layerwise::derive_geometry(net, input.height, input.width, input.channels);
  std::vector<LayerSummary> rows;
  for (std::size_t i = 0; i < geometry.size(); ++i) {
    const layerwise::LayerSpec& spec = net.layers[i];
    const layerwise::BinaryLayer layer(spec, geometry[i]);
    LayerSummary row;
    row.name = spec.name;
    row.inputs = fmt::format("{}", fmt::join(spec.inputs, " + "));
    if (spec.pool != layerwise::Downsample::none) {
      row.inputs += fmt::format(", {} {}x{}", layerwise::to_string(spec.pool), spec.pool_factor, spec.pool_factor);
    }
    row.output = fmt::format("{} x {} x {}", geometry[i].output.height, geometry[i].output.width, geometry[i].output.channels);
    row.kernel = fmt::format("{}x{}", spec.kernel, spec.kernel);
    if (spec.stride != 1) row.kernel += fmt::format(" stride {}", spec.stride);
    row.weights = spec.ternary ? "ternary" : "binary";
    row.thresholds = spec.thresholds;
    row.weight_bits = layer.weight_bits();
    row.bit_macs = layer.bit_macs();
    rows.push_back(row);
  }
  return rows;
}

layerwise::MapShape encoder_output(const layerwise::EncoderSpec& spec, std::size_t height, std::size_t width,
                                   std::size_t colours) {
  constexpr std::size_t feature_multiple = 32;  // so that an encoder's bits fill whole words
  const std::size_t used = spec.kind == "thermometer" ? colours * ((spec.levels + 1) / 2) : spec.filters;
  return {height, width, 2 * ((used + feature_multiple - 1) / feature_multiple * feature_multiple), 0};
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace bitloom::cli
