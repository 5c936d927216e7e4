#include "cli/inspect_flips.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/model_source.h"
#include "cli/net_table.h"
#include "core/error.h"
#include "core/file.h"
#include "core/progress.h"
#include "layerwise/flip_study.h"
#include "simd/kernels.h"

namespace bitloom::cli {
namespace {

using Json = nlohmann::json;

Json to_json(const layerwise::FlipStudy& study) {
  Json together = Json::array();
  for (const layerwise::FlipStudy::Together& each : study.together) {
    together.push_back(
        {{"flips", each.flips}, {"predicted", each.predicted}, {"realised", each.realised}, {"on_others", each.on_others}});
  }
  const auto share = [&](std::size_t moves) { return static_cast<double>(moves) / static_cast<double>(study.moves); };
  return {{"layer", study.layer},
          {"weights", study.weights},
          {"moves", study.moves},
          {"lower", share(study.lower)},
          {"neutral", share(study.neutral)},
          {"loss", study.loss},
          {"others_loss", study.others_loss},
          {"together", together}};
}

}  // namespace

Json study_run_flips(const std::string& run, const std::filesystem::path& file, std::size_t images, Terminal& terminal) {
  require_kind(file, {"binary"});
  const std::filesystem::path folder = find_run(run);
  if (folder.empty()) fail(ErrorKind::data, "--flips: {} is in no run's folder, whose images it needs", file.string());
  const layerwise::Model model = layerwise::Model::load_with_all_heads(file);
  const auto has_head = [&](const layerwise::BinaryLayer& layer) { return model.heads.contains(layer.spec().name); };
  if (std::ranges::all_of(model.layers, [&](const auto& layer) { return !has_head(layer) || layer.ties().any(); })) {
    fail(ErrorKind::usage,
         "--flips: weights of all layers of '{}' with a head are tied (several thresholds): no flip is a single one",
         model.net.name);
  }
  data::DataSplits data = data_of_run(folder);
  const bool has_validation = data.validation.size() != 0;
  const data::Dataset chosen = data::some_images(std::move(data.train), images);
  const data::Dataset others = data::some_images(std::move(has_validation ? data.validation : data.test), images);
  Json study = {{"images", chosen.size()}, {"others", others.size()}, {"others_are", has_validation ? "validation" : "test"}};
  for (const layerwise::BinaryLayer& layer : model.layers) {
    const std::string& name = layer.spec().name;
    if (!has_head(layer)) continue;
    if (layer.ties().any()) {
      terminal.note(fmt::format("{}: left out, for its weights are tied (several thresholds)", name));
      continue;
    }
    const auto progress = [&](double share) { terminal.update(fmt::format("{}: {:.0f}% of the images", name, 100 * share)); };
    study["layers"].push_back(to_json(layerwise::study_flips(simd::kernels(), model, name, chosen, others, progress)));
  }
  try {
    write_atomically(folder / flips_file, study.dump() + "\n");
  } catch (const Error& error) {
    // It took minutes to compute, and is shown all the same.
    terminal.note(fmt::format("not kept for the report: {}", error.what()));
  }
  return study;
}

void print_flips(Terminal& terminal, const Json& study) {
  const auto images = study["images"].get<std::size_t>();
  terminal.print("changes of the loss by flips of weights, over {} training images and {} {} images, in nats per image\n",
                 images, study["others"].get<std::size_t>(), study["others_are"].get<std::string>());
  for (const Json& layer : study["layers"]) {
    terminal.print("{}: loss {:.4f}; of {} flips {:.2f}% lower it by themselves, {:.2f}% leave it as it is",
                   layer["layer"].get<std::string>(), layer["loss"].get<double>(),
                   format_count(layer["moves"].get<std::uint64_t>()), 100 * layer["lower"].get<double>(),
                   100 * layer["neutral"].get<double>());
    std::vector<std::vector<std::string>> rows{{"the best at once", "predicted", "realised", "share",
                                                fmt::format("{} images", study["others_are"].get<std::string>())}};
    for (const Json& each : layer["together"]) {
      const auto predicted = each["predicted"].get<double>();
      const auto realised = each["realised"].get<double>();
      rows.push_back({format_count(each["flips"].get<std::uint64_t>()), fmt::format("{:+.5f}", predicted),
                      fmt::format("{:+.5f}", realised), fmt::format("{:.0f}%", 100 * realised / std::min(predicted, -1e-12)),
                      fmt::format("{:+.5f}", each["on_others"].get<double>())});
    }
    terminal.line(table(rows));
  }
}

}  // namespace bitloom::cli
