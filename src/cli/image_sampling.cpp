#include "cli/image_sampling.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>

#include "cli/caption_options.h"
#include "cli/device.h"
#include "cli/image_sheet.h"
#include "cli/model_source.h"
#include "cli/signals.h"
#include "cli/text_options.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/progress.h"
#include "core/text.h"
#include "data/image.h"
#include "data/pairs/pair_batches.h"
#include "models/clip/model_file.h"
#include "models/clip/scores.h"
#include "models/dalle/model_file.h"
#include "models/dvae/coder.h"
#include "models/dvae/model_file.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

// An image that was drawn for a prompt.
struct Picture {
  std::size_t prompt = 0, number = 0;  // number: counted for each prompt, in the order of drawing
  std::vector<std::int32_t> codes;
  std::vector<std::uint8_t> pixels;  // (side,side,3)
  double score = 0;                  // the larger the better; 0 without an order
};

class Drawing {
 public:
  Drawing(Session& session, const std::string& model_or_run, const ImageSampling& settings, const std::string& values,
          const std::string& device, const std::string& backend)
      : session_(session),
        settings_(settings),
        engine_(choose_device(device), backend),
        values_(choose_dtype(engine_, values)),
        dalle_(models::load_dalle(engine_, find_model(model_or_run), values_)),
        dvae_(open_dvae_of(engine_, settings.dvae, model_or_run, dalle_.dvae)),
        coder_(engine_, *dvae_.net, DType::f32) {
    if (settings.rerank == "clip") {
      if (settings.clip.empty()) fail(ErrorKind::usage, "--clip: missing; expected a run or model of `bitloom train clip`");
      clip_ = models::load_clip(engine_, find_model(settings.clip));
      const data::ImageShape& shape = clip_->net->config().image.image;
      if (shape.height != side()) {
        fail(ErrorKind::data, "--clip: {}: for images of {} pixels; expected {}, as the discrete VAE has them", settings.clip,
             shape.height, side());
      }
    }
    if (!settings.image_prompt.empty()) given_ = codes_of_prompt();
  }

  // Draws options.count images for each prompt and hands on those that are shown of each, the best first. False where it was
  // interrupted; prompts all of whose images were drawn by then are handed on.
  bool draw(std::span<const std::string> prompts, models::ImageOptions options,
            const std::function<void(std::vector<Picture>)>& take) {
    options.at_once = settings_.at_once;
    const std::size_t image = dalle_.net->config().image();
    const std::size_t all = prompts.size() * options.count;
    // Few enough that their images fit into memory, enough to fill a batch.
    const std::size_t together = std::max<std::size_t>(1, options.at_once / options.count);
    for (std::size_t first = 0; first < prompts.size(); first += together) {
      const std::span<const std::string> some = prompts.subspan(first, std::min(together, prompts.size() - first));
      std::vector<std::int32_t> texts;
      for (const std::string& prompt : some) {
        const auto text = models::caption_tokens(dalle_.net->config(), *dalle_.tokenizer, prompt);
        texts.insert(texts.end(), text.begin(), text.end());
      }
      const Clock::time_point start = Clock::now();
      const auto drawn =
          models::sample_images(engine_, *dalle_.net, texts, given_, options, [&](std::size_t done, std::size_t codes) {
            done += first * options.count;
            session_.terminal.update(fmt::format("{} of {} images, {}% of the next {}", done, all, 100 * codes / image,
                                                 std::min(options.at_once, all - done)));
            return !stop_requested();
          });
      seconds_ += seconds_since(start);
      drawn_ += drawn.size();
      hand_on(some, first, texts, drawn, options.count, take);
      if (drawn.size() < some.size() * options.count) return false;
      // Each image has random numbers of its own.
      options.first += drawn.size();
    }
    return true;
  }

  std::string note_on_cut(const std::vector<std::string>& prompts) const {
    return note_on_cut_captions(
        *dalle_.tokenizer, prompts.size(), [&](std::size_t i) -> const std::string& { return prompts[i]; },
        dalle_.net->config().text);
  }
  std::size_t side() const { return dvae_.description.config.side; }
  std::size_t drawn() const { return drawn_; }
  double per_second() const { return static_cast<double>(drawn_) / std::max(seconds_, 1e-9); }
  double seconds() const { return seconds_; }

 private:
  std::size_t size() const { return 3 * side() * side(); }

  // Codes of the first rows of an image that is to be completed (Ramesh et al. 2021, section 3.3).
  std::vector<std::int32_t> codes_of_prompt() {
    const std::size_t grid = dalle_.net->config().grid;
    if (settings_.rows == 0 || settings_.rows >= grid) {
      fail(ErrorKind::usage, "--rows: {}; expected 1 to {} rows of tokens", settings_.rows, grid - 1);
    }
    std::vector<std::int32_t> codes = coder_.encode(data::centre_square(data::read_image(settings_.image_prompt), side()));
    codes.resize(settings_.rows * grid);
    return codes;
  }

  void hand_on(std::span<const std::string> prompts, std::size_t first, std::span<const std::int32_t> texts,
               const std::vector<std::vector<std::int32_t>>& drawn, std::size_t count,
               const std::function<void(std::vector<Picture>)>& take) {
    const std::size_t positions = dalle_.net->config().text;
    for (std::size_t p = 0; p < prompts.size(); ++p) {
      // A single prompt that was interrupted gives the images drawn so far.
      const std::size_t begin = std::min(p * count, drawn.size());
      const std::size_t end = std::min(begin + count, drawn.size());
      if (begin == end || (end - begin < count && prompts.size() > 1)) continue;
      std::vector<std::int32_t> codes;
      for (std::size_t i = begin; i < end; ++i) codes.insert(codes.end(), drawn[i].begin(), drawn[i].end());
      const std::vector<std::uint8_t> pixels = coder_.decode(codes);
      std::vector<Picture> pictures;
      for (std::size_t i = 0; i < end - begin; ++i) {
        const auto own = pixels.begin() + static_cast<std::ptrdiff_t>(i * size());
        pictures.push_back({first + p, i, drawn[begin + i], {own, own + static_cast<std::ptrdiff_t>(size())}, 0});
      }
      rank(prompts[p], texts.subspan(p * positions, positions), pixels, pictures);
      if (settings_.best != 0 && settings_.best < pictures.size()) pictures.resize(settings_.best);
      take(std::move(pictures));
    }
  }

  // pixels: of all pictures.
  void rank(const std::string& prompt, std::span<const std::int32_t> text, const std::vector<std::uint8_t>& pixels,
            std::vector<Picture>& pictures) {
    if (settings_.rerank == "none") return;
    if (clip_) {
      models::ClipEncoder encoder(engine_, *clip_->net, *clip_->tokenizer, DType::f32);
      const std::vector<double> images = encoder.images(pixels);
      const std::vector<double> own = encoder.texts({&prompt, 1});
      for (std::size_t i = 0; i < pictures.size(); ++i) {
        const auto row = images.begin() + static_cast<std::ptrdiff_t>(i * encoder.embedding());
        pictures[i].score = std::inner_product(own.begin(), own.end(), row, 0.0);
      }
    } else {
      for (Picture& picture : pictures) {
        picture.score = -models::pair_nats(engine_, *dalle_.net, {{text.begin(), text.end()}, picture.codes}).image.front();
      }
    }
    std::ranges::stable_sort(pictures, std::greater<>(), &Picture::score);
  }

  Session& session_;
  const ImageSampling& settings_;
  nn::Engine engine_;
  DType values_;
  models::LoadedDalle dalle_;
  models::LoadedDvae dvae_;
  models::DvaeCoder coder_;
  std::optional<models::LoadedClip> clip_;
  std::vector<std::int32_t> given_;
  std::size_t drawn_ = 0;
  double seconds_ = 0;
};

// Prompts of a file: its lines or, where they are JSON objects, their "caption".
std::vector<std::string> read_prompts(const std::string& file) {
  std::vector<std::string> prompts;
  std::istringstream text{std::string(without_byte_order_mark(read_text(file)))};
  std::size_t number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    if (!is_utf8(line)) fail(ErrorKind::data, "--prompts: {}, line {}: not UTF-8", file, number);
    if (line.front() == '{') {
      const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
      if (!json.is_object() || !json.contains("caption") || !json["caption"].is_string()) {
        fail(ErrorKind::data, "--prompts: {}, line {}: no JSON object with a text \"caption\"", file, number);
      }
      line = json["caption"].get<std::string>();
    }
    if (line.empty()) fail(ErrorKind::data, "--prompts: {}, line {}: an empty caption", file, number);
    prompts.push_back(std::move(line));
  }
  if (prompts.empty()) fail(ErrorKind::data, "--prompts: {}: no prompts; expected one in each line", file);
  return prompts;
}

// Pictures as a set of images with captions, png/000000.png ..; the list of captions comes when they are all there.
class PictureFolder {
 public:
  PictureFolder(fs::path folder, std::size_t side) : folder_(std::move(folder)), side_(side) {
    std::error_code error;
    fs::create_directories(folder_ / "png", error);
    if (error) fail(ErrorKind::io, "{}: {}", (folder_ / "png").string(), error.message());
  }
  void add(const Picture& picture, const std::string& prompt, bool has_score) {
    const std::string name = fmt::format("{:06}.png", count_++);
    const data::Image image = data::to_image(picture.pixels, side_);
    data::write_png(image.pixels, image.shape, folder_ / "png" / name);
    nlohmann::ordered_json line{{"image", name}, {"caption", prompt}, {"prompt", picture.prompt}, {"number", picture.number}};
    if (has_score) line["score"] = picture.score;
    lines_ += line.dump() + "\n";
  }
  void finish() const { write_atomically(folder_ / "captions.jsonl", lines_); }
  std::size_t size() const { return count_; }

 private:
  fs::path folder_;
  std::size_t side_, count_ = 0;
  std::string lines_;
};

}  // namespace

models::LoadedDvae open_dvae_of(nn::Engine& engine, const std::string& given, const std::string& model_or_run,
                                const std::string& expected) {
  std::string dvae = given;
  if (const fs::path run = find_run(model_or_run); dvae.empty() && !run.empty()) {
    for (const auto& [name, value] : options_of_run(run)) {
      if (name == "dvae") dvae = value;
    }
    require_there(run, dvae, "dvae");
  }
  if (dvae.empty()) {
    fail(ErrorKind::usage,
         "--dvae: missing; {} belongs to no run that could say it; expected a run or model of `bitloom train dvae`",
         model_or_run);
  }
  models::LoadedDvae loaded = models::load_dvae(engine, find_model(dvae));
  if (loaded.hash != expected) {
    fail(ErrorKind::data, "--dvae: {}: another codebook ({}) than the one that {} was trained with ({})", dvae, loaded.hash,
         model_or_run, expected);
  }
  return loaded;
}

void ImageSampling::declare(Options& options) {
  static const std::vector<Options::Need> needs{{"rows", "image-prompt", {}}, {"clip", "rerank", {"clip"}}};
  options.needs(needs);
  options.text(
      "prompts", prompts, "FILE",
      "File of prompts, one in each line or as JSON lines with a caption, instead of --prompt; --count images of each");
  options.text("out", out, "FILE.png", "Picture of the images that a text-to-image transformer draws");
  options.text("folder", folder, "FOLDER",
               "New folder for the images as files of their own and captions.jsonl, which --data of other commands reads");
  options.text("dvae", dvae, "RUN|MODEL", "Discrete VAE that makes images of codes; without it: that of the run");
  options.choice("rerank", rerank, {"none", "clip", "likelihood"},
                 "Order of the images: as they were drawn; by a contrastive model; by how likely the prompt makes them");
  options.text("clip", clip, "RUN|MODEL", "Contrastive model for --rerank clip");
  options.count("best", best, 0, 100000, "Number of images that are shown of each prompt, the first ones of the order; 0: all");
  options.count("columns", columns, 1, 1000, "Number of images in a row of the picture");
  options.text("image-prompt", image_prompt, "FILE", "Image that is completed: its first --rows are given");
  options.count("rows", rows, 0, 1000, "Number of rows of tokens of --image-prompt that are given");
  options.count("at-once", at_once, 1, 100000, "Number of images that are drawn together");
  options.flag("json", json, "One JSON object with codes and scores instead of a summary");
}

std::vector<std::string> ImageSampling::names() {
  return {"prompts", "out", "folder", "dvae", "rerank", "clip", "best", "columns", "image-prompt", "rows", "at-once", "json"};
}

int sample_images(Session& session, const std::string& model_or_run, const std::string& prompt, models::ImageOptions draw,
                  const ImageSampling& settings, const std::string& values, const std::string& device,
                  const std::string& backend) {
  if (session.comm.size() > 1) fail(ErrorKind::usage, "sample: of images runs in one process; run it without mpirun");
  if (settings.out.empty() && settings.folder.empty()) {
    fail(ErrorKind::usage, "--out: missing; expected the name of a PNG file, or --folder");
  }
  std::vector<std::string> prompts{prompt};
  if (!settings.prompts.empty()) {
    if (!prompt.empty())
      fail(ErrorKind::usage, "--prompts: {}, but there is --prompt too; expected one of them", settings.prompts);
    prompts = read_prompts(settings.prompts);
  } else if (prompt.empty()) {
    fail(ErrorKind::usage, "--prompt: missing or empty; expected a caption");
  }
  if (settings.best > draw.count) {
    fail(ErrorKind::usage, "--best: {}; expected at most the {} images of --count", settings.best, draw.count);
  }
  if (!settings.out.empty()) {
    require_png("--out", settings.out);
    require_other_output("--out", settings.out, find_model(model_or_run));
  }
  if (!settings.folder.empty()) require_empty_folder("--folder", settings.folder, "; expected a new one");
  Drawing drawing(session, model_or_run, settings, values, device, backend);
  session.terminal.note(drawing.note_on_cut(prompts));
  std::optional<PictureFolder> folder;
  if (!settings.folder.empty()) folder.emplace(settings.folder, drawing.side());
  const bool is_ranked = settings.rerank != "none";
  std::vector<Picture> shown;
  const bool is_whole = drawing.draw(prompts, draw, [&](std::vector<Picture> pictures) {
    for (Picture& picture : pictures) {
      if (folder) folder->add(picture, prompts[picture.prompt], is_ranked);
      if (settings.out.empty()) picture.pixels.clear();
      shown.push_back(std::move(picture));
    }
  });
  if (folder) folder->finish();
  if (shown.empty()) return exit_interrupted;
  if (!settings.out.empty()) {
    ImageSheet sheet(shown.size(), settings.columns, drawing.side());
    for (std::size_t i = 0; i < shown.size(); ++i) sheet.put(i, shown[i].pixels);
    sheet.write(settings.out);
  }
  if (settings.json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const Picture& picture : shown) {
      nlohmann::json row{{"image", picture.number}, {"codes", picture.codes}};
      if (is_ranked) row["score"] = picture.score;
      if (!settings.prompts.empty()) row["prompt"] = prompts[picture.prompt];
      rows.push_back(row);
    }
    nlohmann::json json{{"images_per_second", drawing.per_second()}, {"images", rows}};
    if (settings.prompts.empty()) json["prompt"] = prompt;
    session.terminal.json(json);
  } else {
    session.terminal.print("{}: {} of {} images for {}{}", settings.out.empty() ? settings.folder : settings.out, shown.size(),
                           drawing.drawn(),
                           settings.prompts.empty() ? fmt::format("'{}'", prompt) : fmt::format("{} prompts", prompts.size()),
                           is_ranked ? fmt::format(", the best by {} first", settings.rerank) : "");
    session.terminal.print("{:.2f} images/s in {}{}", drawing.per_second(), format_duration(drawing.seconds()),
                           is_whole ? "" : "; interrupted");
  }
  return is_whole ? exit_done : exit_interrupted;
}

}  // namespace bitloom::cli
