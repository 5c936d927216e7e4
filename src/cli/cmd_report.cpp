// bitloom report: the HTML page of a run, finished or not.
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "cli/binary_report.h"
#include "cli/cnn_report.h"
#include "cli/command.h"
#include "cli/inspect_flips.h"
#include "cli/make_folder.h"
#include "cli/model_source.h"
#include "cli/net_picture.h"
#include "cli/net_table.h"
#include "cli/pairs_report.h"
#include "cli/system.h"
#include "core/error.h"
#include "core/file.h"
#include "core/metrics.h"
#include "core/safetensors.h"
#include "core/text.h"
#include "layerwise/encoder.h"
#include "models/gpt/model_file.h"
#include "report/report.h"
#include "report/tensorboard.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// config.json with the options as an object, not as a string.
Json read_config(const fs::path& run) {
  if (!fs::exists(run / config_file)) return nullptr;
  const std::string text = read_text(run / config_file);
  Json config = Json::parse(text, nullptr, false);
  if (!config.is_object() || json_depth(text) > deepest_json) {
    fail(ErrorKind::data, "{}: not a JSON object", (run / config_file).string());
  }
  const auto options = config.find("options");
  if (options != config.end() && options->is_string()) {
    const auto given = options->get<std::string>();
    Json parsed = Json::parse(given, nullptr, false);
    if (parsed.is_object() && json_depth(given) <= deepest_json) *options = std::move(parsed);
  }
  return config;
}

// The kind of a float model's run by its model or checkpoint, "" of a binary net's: for runs whose metrics do not say it.
std::string kind_by_files(const fs::path& run) {
  const std::optional<fs::path> file = trained_file(run);
  const std::string kind = file ? kind_of_model(*file) : "";
  return kind == "binary" ? "" : kind;
}

report::Filters filters_of(const layerwise::Encoder& encoder) {
  report::Filters filters;
  filters.count = encoder.features();
  filters.height = filters.width = encoder.patch();
  filters.colours = encoder.image_shape().channels;
  filters.taps.assign(encoder.filters().begin(), encoder.filters().end());
  return filters;
}

// The findings of `bitloom inspect RUN --flips`, null without any.
Json flips_of(const fs::path& run) {
  return fs::exists(run / flips_file) ? Json::parse(read_text(run / flips_file), nullptr, false) : Json();
}

report::ReportInput gather(const fs::path& run, Terminal& terminal) {
  report::ReportInput input;
  input.title = fs::absolute(run).lexically_normal().filename().string();
  if (input.title.empty()) input.title = fs::absolute(run).lexically_normal().parent_path().filename().string();
  input.config = read_config(run);
  if (fs::exists(run / metrics_file)) input.metrics = read_metrics(run / metrics_file);
  if (fs::exists(run / events_file)) input.events = read_metrics(run / events_file);
  if (!input.config.is_object() && fs::exists(run / options_file)) input.config = options_of_run(run);
  input.kind = report::model_kind(input);
  if (input.kind.empty()) input.kind = kind_by_files(run);
  if (input.kind == models::cnn_kind) add_cnn(input, run, terminal);
  add_pairs(input, run, terminal);
  if (!input.kind.empty()) return input;
  input.flips = flips_of(run);
  const std::optional<fs::path> file = trained_file(run);
  if (!file) return input;
  const TensorFile tensors = TensorFile::load(*file, Checksum::required);
  add_mistakes(input, run);
  const layerwise::Encoder encoder = layerwise::Encoder::load(tensors);
  input.filters = filters_of(encoder);
  if (!fs::exists(run / net_file)) return input;
  const layerwise::NetSpec net = layerwise::parse_net(read_text(run / net_file), (run / net_file).string());
  const bool random = input.config.is_object() && input.config.value("options", Json::object()).is_object() &&
                      !input.config.value("options", Json::object()).value("learn_weights", true);
  for (const LayerSummary& layer : summarise_layers(net, encoder.output())) {
    const bool present = tensors.contains(layer.name + ".sign");
    input.layers.push_back({layer.name, layer.inputs, layer.output, layer.weight_bits, layer.bit_macs,
                            !present ? "not trained yet"
                            : random ? "random"
                                     : "trained"});
  }
  return input;
}

// Whether a folder is that of a run that there is something to say of.
bool holds_run(const fs::path& run) {
  const auto has = [&](const char* name) { return fs::exists(run / name); };
  return has(config_file) || has(metrics_file) || (has(options_file) && has(model_file));
}

// The runs that are meant: those named, or those in the one folder that is named, as of a search.
std::vector<fs::path> runs_meant(const std::vector<std::string>& arguments) {
  std::vector<fs::path> runs;
  for (const std::string& argument : arguments) {
    const fs::path run = argument;
    if (!fs::is_directory(run)) fail(ErrorKind::data, "{}: there is no such run folder", run.string());
    if (holds_run(run)) {
      runs.push_back(run);
      continue;
    }
    const std::vector<std::string> inside = runs_inside(run);
    if (inside.empty()) {
      fail(ErrorKind::data, "{}: the folder holds no run: there is neither {} nor {}", run.string(), config_file, metrics_file);
    }
    for (const std::string& name : inside) runs.push_back(run / name);
  }
  return runs;
}

// Title of a run where there are several.
std::string title_of(const fs::path& run) {
  std::string title = run.lexically_normal().string();
  if (title.size() > 1 && title.back() == '/') title.pop_back();
  return title;
}

// For a page that compares runs.
report::ReportInput gather_for_comparison(const fs::path& run) {
  report::ReportInput input;
  input.title = title_of(run);
  if (fs::exists(run / metrics_file)) input.metrics = read_metrics(run / metrics_file);
  if (fs::exists(run / options_file)) {
    input.config = options_of_run(run);
    input.config.erase("out");  // differs always
  }
  input.kind = report::model_kind(input);
  if (input.kind.empty()) input.kind = kind_by_files(run);
  if (input.kind.empty()) input.flips = flips_of(run);
  return input;
}

// Where the events of a run go below a folder: by its own path, as far as that does not lead out of it.
fs::path events_folder(const fs::path& below, const fs::path& run) {
  fs::path folder = below;
  for (const fs::path& part : fs::path(title_of(run))) {
    if (part != ".." && part != "/" && part != ".") folder /= part;
  }
  return folder;
}

void write_tensorboard(Terminal& terminal, const fs::path& below, const fs::path& run) {
  if (!fs::exists(run / metrics_file)) fail(ErrorKind::data, "{}: the run has no {} yet", run.string(), metrics_file);
  const std::vector<Json> metrics = read_metrics(run / metrics_file);
  std::vector<report::EventPicture> pictures;
  for (const Json& line : metrics) {
    if (!line.is_object() || line.value("event", Json()) != "samples" || !line.value("file", Json()).is_string()) continue;
    const fs::path picture = run / line["file"].get<std::string>();
    if (!line.value("step", Json()).is_number() || !fs::exists(picture)) continue;
    pictures.push_back({"samples", line["step"].get<double>(), read_text(picture)});
  }
  const fs::path folder = events_folder(below, run);
  make_folder("--tensorboard", folder);
  const fs::path file = folder / "events.out.tfevents.0.bitloom";
  const std::string events = report::tensorboard_events(metrics, pictures);
  write_atomically(file, events);
  terminal.print("{} ({})", file.string(), format_bytes(events.size()));
}

std::string comparison_of(const std::vector<fs::path>& runs) {
  std::vector<report::ReportInput> inputs;
  for (const fs::path& run : runs) inputs.push_back(gather_for_comparison(run));
  return report::render_comparison(inputs);
}

}  // namespace

int report(Session& session, std::span<const std::string> args) {
  std::vector<std::string> arguments;
  std::string out, picture, image, tensorboard;
  Options options(
      "bitloom report RUN... [--out FILE.html] [--picture FILE.png|FILE.svg]",
      "Writes one self-contained HTML page about a run, finished or not: learning curves, speed and memory; of a binary net\n"
      "also its confusion matrix, surest mistakes, filters, flips per step and where the time went; of a convolutional net "
      "also its layers and\n"
      "filters and, from the run's test images, the confusion matrix and the surest mistakes; of a discrete VAE held-out\n"
      "images beside their reconstructions, and its codes; of a text-to-image transformer the images that it drew as it\n"
      "trained; of a contrastive model which captions are near which images; of a GPT texts that it drew. Of several runs, or\n"
      "of a folder of runs, one page that compares them: results, curves over each other, what flips would do where "
      "`bitloom\n"
      "inspect RUN --flips` has studied it, the options that differ.");
  options.arguments(arguments, "RUN", 1, 1000);
  options.text(
      "out", out, "FILE",
      "Page to write; without it: RUN/report.html, or none with --picture or --tensorboard; of several runs comparison.html");
  options.text("picture", picture, "FILE",
               "Drawing (.png or .svg) of an image on its way through a binary net, and of its training");
  options.text("image", image, "FILE", "Image for --picture, PNG or JPEG; without it: one of the run's test images");
  options.text("tensorboard", tensorboard, "FOLDER",
               "Folder for TensorBoard: the numbers, texts and pictures of each run's metrics in a folder of its own");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  choose_threads(session.comm);
  if (picture.empty() && !image.empty()) fail(ErrorKind::usage, "--image: '{}'; expected it with --picture", image);
  const report::PictureFormat format = picture.empty() ? nullptr : report::picture_format(picture, "--picture");
  session.on_root([&] {
    if (!out.empty()) require_other_output("--out", out);
    if (!picture.empty()) require_other_output("--picture", picture);
    const std::vector<fs::path> runs = runs_meant(arguments);
    if (runs.size() > 1 && !picture.empty()) {
      fail(ErrorKind::usage, "--picture: '{}'; expected one run, not {}", picture, runs.size());
    }
    const fs::path& run = runs.front();
    if (!tensorboard.empty()) {
      for (const fs::path& each : runs) write_tensorboard(session.terminal, tensorboard, each);
      if (out.empty() && picture.empty()) return;
    }
    if (!picture.empty()) {
      const std::string drawing = format(report::draw(picture_of_run(run, image)));
      write_atomically(picture, drawing);
      session.terminal.print("{} ({})", picture, format_bytes(drawing.size()));
      if (out.empty()) return;
    }
    const bool one = runs.size() == 1;
    const fs::path page = !out.empty() ? fs::path(out) : one ? run / "report.html" : fs::path("comparison.html");
    const std::string html = one ? report::render_report(gather(run, session.terminal)) : comparison_of(runs);
    write_atomically(page, html);
    session.terminal.print("{} ({})", page.string(), format_bytes(html.size()));
  });
  return exit_done;
}

}  // namespace bitloom::cli
