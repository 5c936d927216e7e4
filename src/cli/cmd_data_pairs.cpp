// bitloom data pairs and synth-pairs.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/command.h"
#include "cli/image_sheet.h"
#include "cli/image_source.h"
#include "cli/model_source.h"
#include "cli/options.h"
#include "cli/text_options.h"
#include "core/error.h"
#include "data/image.h"
#include "data/pairs/pair_batches.h"
#include "data/pairs/pairs.h"
#include "data/pairs/scene_check.h"
#include "data/pairs/synth_pairs.h"
#include "data/text/words.h"
#include "models/model_kind.h"
#include "models/quality/features.h"
#include "models/quality/near.h"

namespace bitloom::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct PairFacts {
  std::set<std::pair<std::uint32_t, std::uint32_t>> sizes;  // height, width
  std::set<Hash128> images;
  std::set<std::string_view> captions;
  std::size_t fewest_words = std::numeric_limits<std::size_t>::max(), most_words = 0, words = 0, with_keywords = 0;
};

// `pairs` outlives it.
PairFacts facts_of(const data::Pairs& pairs) {
  PairFacts facts;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const data::Pair& pair = pairs[i];
    facts.sizes.emplace(pair.height, pair.width);
    facts.images.insert(pair.content);
    facts.captions.insert(pair.caption);
    const std::size_t words = data::count_words(pair.caption);
    facts.fewest_words = std::min(facts.fewest_words, words);
    facts.most_words = std::max(facts.most_words, words);
    facts.words += words;
    facts.with_keywords += pair.keywords.empty() ? 0U : 1U;
  }
  return facts;
}

double share(std::size_t part, std::size_t all) { return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all); }

OrderedJson json_of(const data::Pairs& pairs, const PairFacts& facts) {
  OrderedJson left_out = OrderedJson::array();
  for (const data::LeftOut& each : pairs.left_out())
    left_out.push_back({{"reason", each.reason}, {"count", each.count}, {"first", each.first}});
  const auto by_pixels = std::minmax_element(facts.sizes.begin(), facts.sizes.end(), [](const auto& a, const auto& b) {
    return std::uint64_t{a.first} * a.second < std::uint64_t{b.first} * b.second;
  });
  return {{"pairs", pairs.size()},
          {"images", facts.images.size()},
          {"hash", data::content_hash(pairs)},
          {"left_out", left_out},
          {"sizes", facts.sizes.size()},
          {"smallest", {{"width", by_pixels.first->second}, {"height", by_pixels.first->first}}},
          {"largest", {{"width", by_pixels.second->second}, {"height", by_pixels.second->first}}},
          {"captions", facts.captions.size()},
          {"words", {{"fewest", facts.fewest_words}, {"mean", share(facts.words, pairs.size())}, {"most", facts.most_words}}},
          {"with_keywords", facts.with_keywords}};
}

void print_facts(Terminal& terminal, const std::string& spec, const OrderedJson& facts) {
  terminal.print("{}: {} pairs, {} different images, hash {}", spec, facts["pairs"].get<std::size_t>(),
                 facts["images"].get<std::size_t>(), facts["hash"].get<std::string>());
  for (const OrderedJson& each : facts["left_out"]) {
    terminal.print("  left out: {:<24} {:>8}, first {}", each["reason"].get<std::string>(), each["count"].get<std::size_t>(),
                   each["first"].get<std::string>());
  }
  const auto size = [&](const char* which) {
    return fmt::format("{} x {}", facts[which]["width"].get<std::size_t>(), facts[which]["height"].get<std::size_t>());
  };
  const auto sizes = facts["sizes"].get<std::size_t>();
  terminal.print("images    {} pixels",
                 sizes == 1 ? size("largest") : fmt::format("{} to {} in {} sizes,", size("smallest"), size("largest"), sizes));
  terminal.print("captions  {} different, {} to {} words, {:.1f} on average", facts["captions"].get<std::size_t>(),
                 facts["words"]["fewest"].get<std::size_t>(), facts["words"]["most"].get<std::size_t>(),
                 facts["words"]["mean"].get<double>());
  terminal.print("keywords  of {} pairs", facts["with_keywords"].get<std::size_t>());
}

OrderedJson json_of(const data::SceneScore& score) {
  return {{"pictures", score.pictures},
          {"colour", share(score.colour, score.pictures)},
          {"shape", share(score.shape, score.pictures)},
          {"size", share(score.size, score.pictures)},
          {"place", share(score.place, score.pictures)},
          {"colour_and_shape", share(score.colour_and_shape, score.pictures)},
          {"all", share(score.all, score.pictures)},
          {"none", share(score.none, score.pictures)}};
}

void print_score(Terminal& terminal, const OrderedJson& score) {
  terminal.print("scenes    {} pictures of captions such as 'a small red circle at the top left'",
                 score["pictures"].get<std::size_t>());
  for (const auto& [name, value] : score.items()) {
    if (name != "pictures")
      terminal.print("  {:<17} {:6.2f}%", name == "colour_and_shape" ? "colour and shape" : name, 100 * value.get<double>());
  }
}

// Images that two sets have in common, or that are in one set twice: of which, and how near they are.
struct Overlap {
  std::string spec, clip, dvae;  // of the other set
  double nearest = 0.95;
  std::unique_ptr<ImageSource> own, other;  // other none: the set itself
  std::vector<models::NearPair> found;

  ImageSource& second() const { return other ? *other : *own; }
};

std::vector<double> directions_of(Terminal& terminal, const std::string& spec, ImageSource& source,
                                  models::ImageFeatures& net) {
  std::vector<double> all;
  for_each_batch(terminal, spec, source, source.size(), net.side(), [&](std::vector<std::uint8_t>& images) {
    const std::vector<double> some = net.of(images).features;
    all.insert(all.end(), some.begin(), some.end());
  });
  return all;
}

void find_overlap(Terminal& terminal, const std::string& spec, const data::Pairs& pairs, Overlap& overlap) {
  if (overlap.clip.empty()) fail(ErrorKind::usage, "--clip: missing; expected a run or model of `bitloom train clip`");
  const std::filesystem::path model = find_model(overlap.clip);
  require_kind(model, {models::clip_kind});
  std::error_code error;
  const bool is_same = std::filesystem::equivalent(spec, overlap.spec, error);
  overlap.own = images_of(pairs);
  if (!is_same) overlap.other = open_images(overlap.spec, overlap.dvae);
  nn::Engine engine;
  const auto net = models::load_image_features(engine, model);
  const std::vector<double> own = directions_of(terminal, spec, *overlap.own, *net);
  overlap.found = is_same ? models::near_pairs(own, net->columns(), overlap.nearest)
                          : models::near_pairs(own, directions_of(terminal, overlap.spec, *overlap.other, *net), net->columns(),
                                               overlap.nearest);
}

// Number of different images among the firsts of the pairs that were found.
std::size_t firsts_of(const Overlap& overlap) {
  std::set<std::size_t> images;
  for (const models::NearPair& each : overlap.found) images.insert(each.a);
  return images.size();
}

// most: near pairs in it, the nearest.
OrderedJson json_of(const Overlap& overlap, std::size_t most) {
  OrderedJson near = OrderedJson::array();
  for (const models::NearPair& each : std::span(overlap.found).first(std::min(most, overlap.found.size()))) {
    near.push_back(
        {{"image", overlap.own->name(each.a)}, {"other", overlap.second().name(each.b)}, {"similarity", each.similarity}});
  }
  return {{"with", overlap.spec},
          {"nearest", overlap.nearest},
          {"images", firsts_of(overlap)},
          {"pairs", overlap.found.size()},
          {"near", near}};
}

void print_overlap(Terminal& terminal, const std::string& spec, const OrderedJson& json, std::size_t most) {
  const auto pairs = json["pairs"].get<std::size_t>();
  terminal.print("overlap   {} images of {} are near one of {}: {} pairs of cosine {} or more",
                 json["images"].get<std::size_t>(), spec, json["with"].get<std::string>(), pairs,
                 json["nearest"].get<double>());
  for (std::size_t i = 0; i < std::min(pairs, most); ++i) {
    const OrderedJson& each = json["near"][i];
    terminal.print("  {:.6f}  {}  {}", each["similarity"].get<double>(), each["image"].get<std::string>(),
                   each["other"].get<std::string>());
  }
  if (pairs > most) terminal.print("  ... and {} more (--most, --json)", pairs - most);
}

// Each near pair side by side.
std::size_t write_overlap_sheet(const Overlap& overlap, std::size_t rows, std::size_t columns, std::size_t side,
                                const std::string& file) {
  const std::size_t shown = std::min(overlap.found.size(), rows * columns);
  if (shown == 0) return 0;
  ImageSheet sheet(shown, columns, side, 2);
  for (std::size_t i = 0; i < shown; ++i) {
    sheet.put(i, overlap.own->image(overlap.found[i].a, side), 0);
    sheet.put(i, overlap.second().image(overlap.found[i].b, side), 1);
  }
  sheet.write(file);
  return shown;
}

// The first pairs in rows, cut in the centre, one pixel between them.
std::size_t write_sheet(const data::Pairs& pairs, std::size_t rows, std::size_t columns, std::size_t side,
                        const std::string& file) {
  const std::vector<std::size_t> indexes = data::first_indexes(std::min(pairs.size(), rows * columns));
  const data::PairBatch batch = data::centre_batch(pairs, indexes, side);
  const std::size_t step = side + 1;
  const data::ImageShape shape{(indexes.size() + columns - 1) / columns * step - 1, columns * step - 1, 3};
  std::vector<std::uint8_t> pixels(shape.size(), 0);
  for (std::size_t i = 0; i < batch.images.size(); ++i) {
    const std::size_t c = i % 3, x = i / 3 % side, y = i / 3 / side % side, image = i / 3 / side / side;
    pixels[(c * shape.height + image / columns * step + y) * shape.width + image % columns * step + x] = batch.images[i];
  }
  data::write_png(pixels, shape, file);
  return indexes.size();
}

}  // namespace

int data_pairs(Session& session, std::span<const std::string> args) {
  std::vector<std::string> spec;
  std::string sheet;
  std::size_t rows = 4, columns = 8, side = 64;
  std::size_t most = 20;
  Overlap overlap;
  bool any_language = false, boilerplate = false, check_scenes = false, json = false;
  data::PairRules rules;
  Options options("bitloom data pairs SPEC [options]",
                  "Shows what a set of images and captions holds, and what of it is left out and why. SPEC: a folder with\n"
                  "captions.jsonl, such a file, or a folder where a.txt has the captions of a.png, one per line.");
  options.arguments(spec, "SPEC", 1, 1);
  options.count("min-words", rules.captions.min_words, 0, 1000, "Smallest number of words of a caption");
  options.number("max-aspect", rules.max_aspect, 0, 1000, "Largest ratio of an image's longer side to its shorter; 0 disables");
  options.flag("any-language", any_language, "Captions that are not English stay");
  options.flag("boilerplate", boilerplate, "Captions such as 'photographed on 3 May 2012' stay");
  options.flag("check-scenes", check_scenes,
               "Comparison of what pictures show with their captions, for sets of `data synth-pairs`");
  options.text(
      "overlap", overlap.spec, "SPEC",
      "Images, of a folder or a file of `bitloom encode`, that are looked for in the set, such as a test set; the set's "
      "own SPEC: images that it has twice");
  options.text("clip", overlap.clip, "RUN|MODEL", "Contrastive model by whose embeddings images are near");
  options.number("nearest", overlap.nearest, -1, 1, "Smallest cosine of embeddings of images that count as nearly the same");
  options.text("dvae", overlap.dvae, "RUN|MODEL", "Discrete VAE that draws the images of a file of tokens");
  options.count("most", most, 0, 1000000, "Largest number of near pairs that are listed");
  options.text("sheet", sheet, "FILE.png",
               "Picture of the first images, whose captions are shown; with --overlap of the nearest pairs, side by side");
  options.count("rows", rows, 1, 1000, "Rows of the sheet");
  options.count("columns", columns, 1, 1000, "Columns of the sheet");
  options.count("side", side, 1, 1024, "Pixels of an image's side in the sheet");
  options.flag("json", json, "One JSON object instead of text");
  static const Options::Need needs[] = {{"rows", "sheet", {}},   {"columns", "sheet", {}},   {"side", "sheet", {}},
                                        {"clip", "overlap", {}}, {"nearest", "overlap", {}}, {"dvae", "overlap", {}},
                                        {"most", "overlap", {}}};
  options.needs(needs);
  if (!parse_or_show_help(session, args, options)) return exit_done;
  require_png("--sheet", sheet);
  rules.captions.english = !any_language;
  rules.captions.boilerplate = !boilerplate;
  session.on_root([&] {
    const data::Pairs pairs = data::Pairs::open(spec.front(), rules, &session.terminal);
    OrderedJson facts = json_of(pairs, facts_of(pairs));
    if (check_scenes) {
      const data::SceneScore score = data::score_scenes(pairs, &session.terminal);
      if (score.pictures == 0) {
        fail(ErrorKind::data,
             "{}: no caption is that of a scene, such as 'a small red circle at the top left'; the first is '{}'", spec.front(),
             pairs[0].caption);
      }
      facts["scenes"] = json_of(score);
    }
    if (!overlap.spec.empty()) {
      find_overlap(session.terminal, spec.front(), pairs, overlap);
      facts["overlap"] = json_of(overlap, json ? overlap.found.size() : most);
    }
    if (json) {
      session.terminal.json(facts);
    } else {
      print_facts(session.terminal, spec.front(), facts);
      if (check_scenes) print_score(session.terminal, facts["scenes"]);
      if (!overlap.spec.empty()) print_overlap(session.terminal, spec.front(), facts["overlap"], most);
    }
    if (sheet.empty()) return;
    if (!overlap.spec.empty()) {
      const std::size_t shown = write_overlap_sheet(overlap, rows, columns, side, sheet);
      if (!json) session.terminal.print("{}{}", sheet, shown == 0 ? ": not written, there are no near pairs" : "");
      return;
    }
    const std::size_t shown = write_sheet(pairs, rows, columns, side, sheet);
    if (json) return;
    session.terminal.print("{}", sheet);
    for (std::size_t i = 0; i < shown; ++i)
      session.terminal.print("  row {}, column {}: {}", i / columns + 1, i % columns + 1, pairs[i].caption);
  });
  return exit_done;
}

int data_synth_pairs(Session& session, std::span<const std::string> args) {
  std::string out;
  std::string part = "training";
  std::size_t seed = 1;
  bool force = false;
  data::SynthPairs settings;
  Options options("bitloom data synth-pairs --out FOLDER [options]",
                  "Makes pictures of one coloured shape each and captions such as 'a small red circle at the top left', some\n"
                  "of whose combinations of colour and shape are held out: held-out.jsonl lists captions of these.");
  options.text("out", out, "FOLDER", "Folder for the files, new or empty");
  options.count("count", settings.count, 1, 100000000, "Number of pairs");
  options.count("side", settings.side, 16, 512, "Width and height of the pictures, pixels");
  options.number("hold-out", settings.hold_out, 0, 0.4, "Share of the 64 combinations of colour and shape that is held out");
  options.choice("part", part, {"training", "held-out"}, "Combinations to make pairs of: all others, or those held out");
  options.count("seed", seed, 0, std::numeric_limits<std::int64_t>::max(),
                "Seed of the series of pictures and of what is held out");
  options.flag("force", force, "Replacement of files that are there");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  settings.seed = seed;
  settings.held_out = part == "held-out";
  session.on_root([&] {
    require_new_folder(out, force, "a folder");
    data::write_synth_pairs(settings, out, &session.terminal);
    const auto held_out = data::held_out_combinations(settings.hold_out, settings.seed);
    session.terminal.print("{}: {} pairs of {} x {} pixels, seed {}", out, settings.count, settings.side, settings.side, seed);
    for (const auto& [colour, shape] : held_out)
      session.terminal.print("  held out: {} {}", data::colour_names[colour], data::shape_names[shape]);
  });
  return exit_done;
}

}  // namespace bitloom::cli
