// bitloom eval: of a binary model accuracy, loss and a table per class; cmd_eval_gpt.cpp has the other kind.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/command.h"
#include "cli/eval_gpt.h"
#include "cli/model_source.h"
#include "cli/system.h"
#include "core/error.h"
#include "core/text.h"
#include "layerwise/model.h"
#include "simd/kernels.h"

namespace bitloom::cli {
namespace {

struct EvalSettings {
  std::vector<std::string> model;
  DataOptions data;
  GptEvalSettings gpt;
  std::string split = "test";
  std::string layers;
  std::string mirror = "model";
  std::size_t shift = 0;
  bool json = false;

  void declare(Options& options) {
    options.arguments(model, "MODEL|RUN", 1, 1);
    options.group("Evaluation");
    options.flag("json", json, "One JSON object instead of tables");
    options.choice("split", split, {"test", "validation", "train"},
                   "Part of the data set; of a folder of token files for a GPT: which of them, validation without it");
    options.group("Binary models");
    options.text("layers", layers, "L1,L2,...",
                 "Layers whose heads make up the ensemble, instead of those that the model names");
    options.choice("mirror", mirror, {"on", "off", "model"},
                   "Test-time augmentation with mirror images; model: as the model says");
    options.count("shift", shift, 0, 1000,
                  "Test-time augmentation with images moved by this number of pixels up, down, left and right; 0: none; "
                  "without it: as the model says");
    options.group("GPT");
    gpt.declare(options);
    options.group("Data (a run's own where not given)");
    data.declare(options);
  }
};

// Options of other kinds of models would have no effect.
void check_options(const Options& options, const std::string& kind) {
  static const std::vector<std::string> of_binary{"layers",    "mirror",   "shift",      "validation",  "split-seed",
                                                  "max-train", "max-test", "image-size", "image-memory"};
  for (const std::string& name : kind == "binary" ? GptEvalSettings::names() : of_binary) {
    if (options.source(name) != Options::Source::none) {
      fail(ErrorKind::usage, "--{}: not for a model of kind {}", name, kind);
    }
  }
}

const data::Dataset& choose(const data::DataSplits& splits, const std::string& split) {
  const data::Dataset& set = split == "test" ? splits.test : split == "train" ? splits.train : splits.validation;
  if (set.size() == 0) fail(ErrorKind::data, "--split: the data has no {} images", split);
  return set;
}

void check_fit(const layerwise::Model& model, const data::Dataset& set) {
  const data::ImageShape& wanted = model.encoder.image_shape();
  if (set.shape != wanted) {
    fail(ErrorKind::data, "data '{}': images of {}x{}x{} (height, width, colours), but the model takes {}x{}x{}", set.name,
         set.shape.height, set.shape.width, set.shape.channels, wanted.height, wanted.width, wanted.channels);
  }
  if (set.class_names != model.class_names) {
    fail(ErrorKind::data, "data '{}': its {} classes ({}) are not the {} of the model ({})", set.name, set.classes(),
         fmt::join(set.class_names, ", "), model.class_names.size(), fmt::join(model.class_names, ", "));
  }
}

double images_per_second(const layerwise::Evaluation& result) {
  return static_cast<double>(result.images) / std::max(result.seconds, 1e-9);
}

void print_json(Terminal& terminal, const EvalSettings& settings, const layerwise::Evaluation& result,
                const std::vector<std::string>& members) {
  const nlohmann::json json = {{"split", settings.split},
                               {"layers", members},
                               {"images", result.images},
                               {"correct", result.correct},
                               {"accuracy", result.accuracy()},
                               {"loss", result.loss},
                               {"images_per_second", images_per_second(result)},
                               {"confusion", result.confusion}};
  terminal.json(json);
}

void print_table(Terminal& terminal, const EvalSettings& settings, const layerwise::Model& model,
                 const layerwise::Evaluation& result) {
  const std::size_t classes = model.class_names.size();
  std::size_t width = 5;
  for (const std::string& name : model.class_names) width = std::max(width, name.size());
  terminal.print("{:<{}}  images  correct  accuracy  precision  most confused with", "class", width);
  for (std::size_t row = 0; row < classes; ++row) {
    std::int64_t images = 0;
    std::int64_t predicted = 0;
    std::size_t rival = row;
    const auto count = [&](std::size_t i, std::size_t j) { return result.confusion[i * classes + j]; };
    for (std::size_t other = 0; other < classes; ++other) {
      images += count(row, other);
      predicted += count(other, row);
      if (other != row && count(row, other) > (rival == row ? 0 : count(row, rival))) rival = other;
    }
    const auto share = [&](std::int64_t of) {
      return of == 0 ? std::string("-")
                     : fmt::format("{:.2f}%", 100.0 * static_cast<double>(count(row, row)) / static_cast<double>(of));
    };
    terminal.print("{:<{}}  {:>6}  {:>7}  {:>8}  {:>9}  {}", model.class_names[row], width, images, count(row, row),
                   share(images), share(predicted),
                   rival == row ? "-" : fmt::format("{} ({})", model.class_names[rival], count(row, rival)));
  }
  terminal.print("\n{} accuracy {:.2f}% ({} of {} images), loss {:.4f} nats, {:.0f} images/s", settings.split,
                 100 * result.accuracy(), result.correct, result.images, result.loss, images_per_second(result));
}

// Without --data a run on a folder of token files is measured on its validation text. One on a text file is not: most of that
// it was trained on.
void add_data_of_run(Options& options, EvalSettings& settings) {
  const std::filesystem::path run = find_run(settings.model.front());
  std::istringstream ini(data_options_of_run(run));
  for (std::string line; std::getline(ini, line);) {
    const std::string_view name = trim(std::string_view(line).substr(0, line.find('=')));
    const std::string folder(trim(std::string_view(line).substr(line.find('=') + 1)));
    if (name == "data" && std::filesystem::is_directory(folder)) {
      options.read_ini(line, (run / options_file).string(), Options::Source::run);
    }
  }
}

// Other data are asked for with --data, and some of them only are looked at, since the run had as many: which is said.
std::string note_on_part(const Options& options, const EvalSettings& settings) {
  const bool train = settings.split == "train";
  const std::size_t images = train ? settings.data.max_train : settings.data.max_test;
  const char* const name = train ? "max-train" : "max-test";
  if (settings.split == "validation" || images == 0 || options.source("data") != Options::Source::command_line ||
      options.source(name) != Options::Source::run) {
    return "";
  }
  return fmt::format("--{}: {} images, as in the run of the model; 0 takes all of --data", name, images);
}

void eval_binary(Session& session, Options& options, EvalSettings& settings) {
  session.comm.together([&] {
    const std::filesystem::path run = find_run(settings.model.front());
    if (!run.empty()) options.read_ini(data_options_of_run(run), (run / options_file).string(), Options::Source::run);
    options.finish();
    if (settings.data.spec.empty()) {
      fail(ErrorKind::usage, "--data: missing; {} belongs to no run that could say it", settings.model.front());
    }
  });
  session.terminal.note(note_on_part(options, settings));
  session.comm.together([] { simd::kernels(); });  // BITLOOM_ISA may name what one host lacks
  const layerwise::Model model =
      session.comm.together([&] { return layerwise::Model::load(find_model(settings.model.front())); });
  const data::DataSplits splits = session.comm.together([&] { return load_data(settings.data); });
  const data::Dataset* set = session.comm.together([&] {
    const data::Dataset* chosen = &choose(splits, settings.split);
    check_fit(model, *chosen);
    return chosen;
  });
  const std::vector<std::string> members = settings.layers.empty() ? model.net.classifier : split(settings.layers, ',');
  layerwise::Views views = model.net.views;
  if (settings.mirror != "model") views.mirror = settings.mirror == "on";
  if (options.source("shift") != Options::Source::none) views.shift = settings.shift;
  const auto classifier = layerwise::Classifier::of(simd::kernels(), model, members, views);
  const layerwise::Evaluation result = classifier.evaluate(session.comm, *set);
  if (settings.json) {
    print_json(session.terminal, settings, result, members);
  } else {
    print_table(session.terminal, settings, model, result);
  }
}

}  // namespace

int eval(Session& session, std::span<const std::string> args) {
  EvalSettings settings;
  Options options(
      "bitloom eval MODEL|RUN [--data SPEC] [options]",
      "Measures a model. Of a binary one, on a set of images: accuracy, loss in nats, a line per class. Of a GPT, with\n"
      "--data FILE|FOLDER on a text (plain, JSONL, or tokens of `bitloom data text`): perplexity by overlapping "
      "windows;\nwith --cloze: how often it tells the last word.");
  settings.declare(options);
  if (!options.parse(args)) {
    session.terminal.line(options.help());
    return exit_done;
  }
  std::filesystem::path model;
  std::string kind;
  session.comm.together([&] {
    model = find_model(settings.model.front());
    kind = kind_of_model(model);
  });
  session.terminal.note(checkpoint_note(model));
  check_options(options, kind);
  choose_threads(session.comm);
  if (kind == "binary") {
    eval_binary(session, options, settings);
    return exit_done;
  }
  const bool asks_for_more =
      options.source("cloze") != Options::Source::none || options.source("logits") != Options::Source::none;
  session.comm.together([&] {
    if (!asks_for_more) add_data_of_run(options, settings);
    options.finish();
  });
  if (options.source("advance") == Options::Source::none) settings.gpt.advance = 0;
  const bool chosen = options.source("split") != Options::Source::none;
  eval_gpt(session, settings.gpt, model.string(), settings.data.spec, chosen ? settings.split : "", settings.json);
  return exit_done;
}

}  // namespace bitloom::cli
