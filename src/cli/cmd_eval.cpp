// bitloom eval: of a model of images accuracy, loss and a table per class; cmd_eval_gpt.cpp has the other kind.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/command.h"
#include "cli/eval_gpt.h"
#include "cli/eval_pairs.h"
#include "cli/image_evaluation.h"
#include "cli/model_source.h"
#include "cli/system.h"
#include "core/error.h"
#include "core/text.h"
#include "data/readers.h"
#include "layerwise/model.h"
#include "models/cnn/model_file.h"
#include "models/gpt/model_file.h"
#include "simd/kernels.h"

namespace bitloom::cli {
namespace {

struct EvalSettings {
  std::vector<std::string> model;
  DataOptions data;
  GptEvalSettings gpt;
  std::string split = "test";
  std::string layers;
  ViewOptions views;
  bool json = false;
  double temperature = 0.0625;
  std::string dvae;
  std::size_t pairs = 8;

  void declare(Options& options) {
    static const Options::Need needs[] = {{"pairs", "logits", {}}};
    options.needs(needs);
    options.arguments(model, "MODEL|RUN", 1, 1);
    options.group("Evaluation");
    options.flag("json", json, "One JSON object instead of tables");
    options.without_defaults([&] {
      options.choice(
          "split", split, {"test", "validation", "train", "all"},
          "Part of the data set; of a folder of token files for a GPT: which of them; of images with captions: train, "
          "validation or all. Without it of images: test, otherwise: validation");
    });
    options.group("Models of images");
    options.text("layers", layers, "L1,L2,...",
                 "Layers whose heads make up the ensemble of a binary model, instead of those that the model names");
    views.declare(options);
    options.group("Discrete VAE");
    options.number("temperature", temperature, 0, 100, "Temperature of the relaxed lower bound", true);
    options.group("Images with captions");
    options.text("dvae", dvae, "RUN|MODEL",
                 "Discrete VAE that makes codes of images for a text-to-image transformer; without it: that of the run");
    options.count("pairs", pairs, 1, 1000000, "Number of pairs, the first ones, whose logits --logits writes");
    options.group("GPT");
    gpt.declare(options);
    options.group("Data (a run's own where not given)");
    data.declare(options, true);
  }
};

const std::vector<std::string> kinds_of_pairs{models::clip_kind, models::dalle_kind, models::dvae_kind};

// Options of other kinds of models would have no effect.
void check_eval_options(const Options& options, const std::string& kind) {
  static const std::vector<std::string> of_images{"mirror",    "shift",    "sure",       "validation",  "split-seed",
                                                  "max-train", "max-test", "image-size", "image-memory"};
  std::vector<std::string> others;
  if (kind != "binary") others.emplace_back("layers");
  const bool is_of_pairs = contains(kinds_of_pairs, kind);
  if (kind != models::dvae_kind) others.emplace_back("temperature");
  if (kind != models::dalle_kind) others.emplace_back("dvae");
  if (!is_of_pairs) others.emplace_back("pairs");
  if (is_of_pairs) {
    others.insert(others.end(), {"mirror", "shift", "sure", "max-train", "max-test", "image-size", "image-memory"});
  }
  if (kind == models::gpt_kind) others.insert(others.end(), of_images.begin(), of_images.end());
  if (kind != models::gpt_kind) {
    for (const std::string& name : GptEvalSettings::names()) {
      const bool is_engine = name == "dtype" || name == "device" || name == "backend";
      const bool is_known = is_of_pairs ? is_engine || name == "logits" : kind == models::cnn_kind && is_engine;
      if (!is_known) others.push_back(name);
    }
  }
  for (const std::string& name : others) {
    if (options.source(name) != Options::Source::none) {
      fail(ErrorKind::usage, "--{}: not for a model of kind {}", name, kind);
    }
  }
}

void finish_without_all(Options& options, const EvalSettings& settings) {
  options.finish();
  if (settings.split == "all") {
    fail(ErrorKind::usage, "--split: all; expected test, validation or train (all: of images with captions only)");
  }
}

// Without --data a run on a folder of token files is measured on its validation text. One on a text file is not: most of that
// it was trained on.
void add_data_of_run(Options& options, EvalSettings& settings) {
  const std::filesystem::path run = find_run(settings.model.front());
  std::istringstream ini(data_options_of_run(run));
  for (std::string line; std::getline(ini, line);) {
    const std::string_view name = trim(std::string_view(line).substr(0, line.find('=')));
    const std::string folder(trim(std::string_view(line).substr(line.find('=') + 1)));
    if (name != "data") continue;
    if (options.source("data") == Options::Source::none) {
      require_there(run, folder, "data", "its folder of tokens, or with another text than it has learned");
    }
    if (std::filesystem::is_directory(folder)) {
      options.read_ini(line, (run / options_file).string(), Options::Source::run);
    }
  }
}

// A GPT's text is divided into documents as that of the run was, unless the command line says how.
void choose_documents(Options& options, const EvalSettings& settings) {
  const std::filesystem::path run = find_run(settings.model.front());
  options.read_ini(options_of_run(run, {"documents", "field"}), (run / options_file).string(), Options::Source::run);
}

// Throws usage errors where options that divide a text have no effect on --data.
void check_documents(const Options& options, const std::string& data) {
  const bool is_text = !std::filesystem::is_directory(data) && std::filesystem::path(data).extension() != ".tokens";
  for (const char* option : {"documents", "field"}) {
    if (options.source(option) != Options::Source::command_line) continue;
    const bool is_json = data::is_json_lines(data);
    if (is_text && is_json == (std::string_view(option) == "field")) continue;
    fail(ErrorKind::usage, "--{}: {} has no effect on {}, which is {}", option, options.raw(option), data,
         !is_text  ? "of tokens"
         : is_json ? "JSONL"
                   : "plain text");
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

// Finds which images --data and the run mean, and gives all options their values.
void choose_images(Session& session, Options& options, EvalSettings& settings) {
  session.comm.together([&] {
    const std::filesystem::path run = find_run(settings.model.front());
    if (!run.empty()) options.read_ini(data_options_of_run(run), (run / options_file).string(), Options::Source::run);
    finish_without_all(options, settings);
    if (settings.data.spec.empty()) {
      fail(ErrorKind::usage, "--data: missing; {} belongs to no run that could say it", settings.model.front());
    }
    if (options.source("data") == Options::Source::run) require_there(run, settings.data.spec, "data");
  });
  session.terminal.note(note_on_part(options, settings));
}

// Reads the images for a model of these classes; those of folders in the shape that it has, unless --image-size asks for
// another.
data::DataSplits read_images(Session& session, const Options& options, EvalSettings& settings, data::ImageShape shape,
                             const std::vector<std::string>& class_names) {
  if (options.source("image-size") == Options::Source::command_line) shape.height = shape.width = settings.data.image_size;
  settings.data.folder_shape = shape;
  data::DataSplits splits = session.comm.together(
      [&] { return settings.split == "test" ? load_test_data(settings.data, class_names) : load_data(settings.data); });
  session.terminal.note(data::note_on_unread(settings.data.spec));
  if (settings.split == "test" && options.source("data") == Options::Source::command_line) {
    session.terminal.note(data::note_on_drawn_tests(settings.data.spec));
  }
  if (splits.train.size() == 0) {
    session.terminal.note(
        fmt::format("{} has no training images; what is measured are its {} test images. Classes that it does "
                    "not name are taken to be the model's",
                    settings.data.spec, splits.test.size()));
  }
  return splits;
}

const data::Dataset& fitting_split(Session& session, const data::DataSplits& splits, const std::string& split,
                                   const data::ImageShape& shape, const std::vector<std::string>& class_names) {
  const data::Dataset* set = session.comm.together([&] {
    const data::Dataset* chosen = &choose_split(splits, split);
    check_fit(*chosen, shape, class_names);
    return chosen;
  });
  return *set;
}

void show(Terminal& terminal, const EvalSettings& settings, const std::vector<std::string>& class_names,
          const layerwise::Evaluation& result, const std::vector<std::string>& layers) {
  if (!settings.json) return print_evaluation(terminal, settings.split, class_names, result);
  nlohmann::json json = evaluation_json(settings.split, result);
  if (!layers.empty()) json["layers"] = layers;
  terminal.json(json);
}

void eval_binary(Session& session, Options& options, EvalSettings& settings) {
  session.comm.together([] { simd::kernels(); });  // BITLOOM_ISA may name what one host lacks
  choose_images(session, options, settings);
  const layerwise::Model model = session.comm.together([&] {
    const std::filesystem::path file = find_model(settings.model.front());
    return settings.layers.empty() ? layerwise::Model::load(file) : layerwise::Model::load_with_all_heads(file);
  });
  const data::DataSplits splits = read_images(session, options, settings, model.encoder.image_shape(), model.class_names);
  const data::Dataset& set = fitting_split(session, splits, settings.split, model.encoder.image_shape(), model.class_names);
  const std::vector<std::string> members = settings.layers.empty() ? model.net.classifier : split(settings.layers, ',');
  const layerwise::Views views = settings.views.over(model.net.views, options);
  const auto classifier = layerwise::Classifier::of(simd::kernels(), model, members, views);
  show(session.terminal, settings, model.class_names, classifier.evaluate(session.comm, set), members);
}

void eval_cnn(Session& session, Options& options, EvalSettings& settings, const std::filesystem::path& file) {
  choose_images(session, options, settings);
  CnnUse use{settings.gpt.values, settings.gpt.device, settings.gpt.backend};
  use.views = settings.views.over(use.views, options);
  const auto cnn = session.comm.together([&] { return std::make_unique<OpenCnn>(file, use); });
  const models::CnnDescription& model = cnn->description();
  const data::DataSplits splits = read_images(session, options, settings, model.config.image, model.class_names);
  const data::Dataset& set = fitting_split(session, splits, settings.split, model.config.image, model.class_names);
  show(session.terminal, settings, model.class_names, cnn->classifier().evaluate(session.comm, set), {});
}

}  // namespace

int eval(Session& session, std::span<const std::string> args) {
  EvalSettings settings;
  Options options(
      "bitloom eval MODEL|RUN [--data SPEC] [options]",
      "Measures a model. Of one that classifies images, on a set of them, test images alone suffice: accuracy, loss in "
      "nats, a line per class. Of models of images with captions: quality of reconstructions and codes (dvae), losses of text\n"
      "and image (dalle), retrieval (clip). Of a GPT, with "
      "--data FILE|FOLDER on a text (plain, JSONL, or tokens of `bitloom data text`): perplexity by overlapping "
      "windows;\nwith --cloze: how often it tells the last word.");
  settings.declare(options);
  if (!options.parse(args)) {
    session.terminal.line(options.help());
    return exit_done;
  }
  std::string model, kind;
  session.on_root([&] {
    model = find_model(settings.model.front()).string();
    kind = kind_of_model(model);
    session.terminal.note(checkpoint_note(model));
    if (const std::string logits = options.raw("logits"); !logits.empty()) require_other_output("--logits", logits, model);
  });
  model = session.comm.broadcast_text(model);
  kind = session.comm.broadcast_text(kind);
  check_eval_options(options, kind);
  choose_threads(session.comm);
  if (kind == "binary") {
    eval_binary(session, options, settings);
    return exit_done;
  }
  if (kind == models::cnn_kind) {
    eval_cnn(session, options, settings, model);
    return exit_done;
  }
  if (contains(kinds_of_pairs, kind)) {
    session.comm.together([&] { options.finish(); });
    const bool given = options.source("split") != Options::Source::none;
    const bool has_share = options.source("validation") != Options::Source::none;
    const PairEvaluationOptions measured{settings.model.front(),
                                         settings.data.spec,
                                         given ? settings.split : "validation",
                                         has_share ? settings.data.validation : "",
                                         options.raw("split-seed"),
                                         settings.gpt.values,
                                         settings.gpt.device,
                                         settings.gpt.backend,
                                         settings.temperature,
                                         settings.json,
                                         settings.dvae,
                                         settings.gpt.logits,
                                         settings.pairs};
    const auto measure = kind == models::dvae_kind ? &eval_dvae : kind == models::dalle_kind ? &eval_dalle : &eval_clip;
    measure(session, model, measured);
    return exit_done;
  }
  const bool asks_for_more =
      options.source("cloze") != Options::Source::none || options.source("logits") != Options::Source::none;
  session.comm.together([&] {
    if (session.comm.is_root()) {
      if (!asks_for_more) add_data_of_run(options, settings);
      choose_documents(options, settings);
    }
    finish_without_all(options, settings);
    if (session.comm.is_root() && !settings.data.spec.empty()) check_documents(options, settings.data.spec);
  });
  settings.data.spec = session.comm.broadcast_text(settings.data.spec);
  for (const char* option : {"split", "documents", "field", "advance", "words"}) {
    if (!settings.data.spec.empty() || options.source(option) != Options::Source::command_line) continue;
    fail(ErrorKind::usage, "--{}: {} has no effect without --data, a text to measure perplexity on", option,
         options.raw(option));
  }
  if (options.source("advance") == Options::Source::none) settings.gpt.advance = 0;
  const bool chosen = options.source("split") != Options::Source::none;
  eval_gpt(session, settings.gpt, model, settings.data.spec, chosen ? settings.split : "", settings.json);
  return exit_done;
}

}  // namespace bitloom::cli
