#include "cli/image_sampling.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "cli/device.h"
#include "cli/image_sheet.h"
#include "cli/model_source.h"
#include "cli/signals.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/progress.h"
#include "data/image.h"
#include "data/pairs/square_crop.h"
#include "models/clip/model_file.h"
#include "models/clip/scores.h"
#include "models/dalle/model_file.h"
#include "models/dvae/coder.h"
#include "models/dvae/model_file.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

// Images that were drawn, in the order of their scores, the best first.
class Drawing {
 public:
  Drawing(Session& session, const std::string& model_or_run, const std::string& prompt, const ImageSampling& settings,
          const std::string& values, const std::string& device, const std::string& backend)
      : session_(session),
        settings_(settings),
        prompt_(prompt),
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
    text_ = models::caption_tokens(dalle_.net->config(), *dalle_.tokenizer, prompt);
    if (!settings.image_prompt.empty()) given_ = codes_of_prompt();
  }

  // False where it was interrupted.
  bool draw(models::ImageOptions options) {
    options.at_once = settings_.at_once;
    const std::size_t image = dalle_.net->config().image();
    const Clock::time_point start = Clock::now();
    images_ = models::sample_images(engine_, *dalle_.net, text_, given_, options, [&](std::size_t done, std::size_t codes) {
      session_.terminal.update(fmt::format("{} of {} images, {}% of the next {}", done, options.count, 100 * codes / image,
                                           std::min(options.at_once, options.count - done)));
      return !stop_requested();
    });
    seconds_ = seconds_since(start);
    std::vector<std::int32_t> codes;
    for (const std::vector<std::int32_t>& each : images_) codes.insert(codes.end(), each.begin(), each.end());
    pixels_ = coder_.decode(codes);
    rank();
    return images_.size() == options.count;
  }

  std::size_t shown() const { return settings_.best == 0 ? images_.size() : std::min(settings_.best, images_.size()); }
  void write() const {
    ImageSheet sheet(shown(), settings_.columns, side());
    for (std::size_t i = 0; i < shown(); ++i) sheet.put(i, std::span(pixels_).subspan(order_[i] * size(), size()));
    sheet.write(settings_.out);
  }
  std::size_t drawn() const { return images_.size(); }
  double seconds() const { return seconds_; }
  nlohmann::json json() const {
    nlohmann::json rows = nlohmann::json::array();
    for (std::size_t i = 0; i < shown(); ++i) {
      nlohmann::json row{{"image", order_[i]}, {"codes", images_[order_[i]]}};
      if (!scores_.empty()) row["score"] = scores_[order_[i]];
      rows.push_back(row);
    }
    return {
        {"prompt", prompt_}, {"images_per_second", static_cast<double>(drawn()) / std::max(seconds_, 1e-9)}, {"images", rows}};
  }

 private:
  std::size_t side() const { return dvae_.description.config.side; }
  std::size_t size() const { return 3 * side() * side(); }

  // Of the first rows of an image that is to be completed (Ramesh et al. 2021, section 3.3).
  std::vector<std::int32_t> codes_of_prompt() {
    const std::size_t grid = dalle_.net->config().grid;
    if (settings_.rows == 0 || settings_.rows >= grid) {
      fail(ErrorKind::usage, "--rows: {}; expected 1 to {} rows of tokens", settings_.rows, grid - 1);
    }
    const data::Image image = data::read_image(settings_.image_prompt);
    const data::SquareCrop crop =
        data::draw_crop(data::CropKind::centre, image.shape.height, image.shape.width, side(), Random(0, Stream::augment));
    const data::Image square = data::cut(image, crop, side());
    std::vector<std::uint8_t> pixels(size());
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = square.pixels[i % 3 * side() * side() + i / 3];
    std::vector<std::int32_t> codes = coder_.encode(pixels);
    codes.resize(settings_.rows * grid);
    return codes;
  }

  // The larger the better.
  void rank() {
    order_.resize(images_.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    if (settings_.rerank == "none") return;
    scores_.clear();
    if (clip_) {
      models::ClipEncoder encoder(engine_, *clip_->net, *clip_->tokenizer, DType::f32);
      const std::vector<double> images = encoder.images(pixels_);
      const std::vector<double> text = encoder.texts({&prompt_, 1});
      for (std::size_t i = 0; i < images_.size(); ++i) {
        const auto row = images.begin() + static_cast<std::ptrdiff_t>(i * encoder.embedding());
        scores_.push_back(std::inner_product(text.begin(), text.end(), row, 0.0));
      }
    } else {
      for (const std::vector<std::int32_t>& codes : images_) {
        scores_.push_back(-models::pair_nats(engine_, *dalle_.net, {text_, codes}).image.front());
      }
    }
    std::ranges::stable_sort(order_, std::greater<>(), [&](std::size_t i) { return scores_[i]; });
  }

  Session& session_;
  const ImageSampling& settings_;
  std::string prompt_;
  nn::Engine engine_;
  DType values_;
  models::LoadedDalle dalle_;
  models::LoadedDvae dvae_;
  models::DvaeCoder coder_;
  std::optional<models::LoadedClip> clip_;
  std::vector<std::int32_t> text_, given_;
  std::vector<std::vector<std::int32_t>> images_;
  std::vector<std::uint8_t> pixels_;
  std::vector<double> scores_;
  std::vector<std::size_t> order_;
  double seconds_ = 0;
};

}  // namespace

models::LoadedDvae open_dvae_of(nn::Engine& engine, const std::string& given, const std::string& model_or_run,
                                const std::string& expected) {
  std::string dvae = given;
  if (const fs::path run = find_run(model_or_run); dvae.empty() && !run.empty()) {
    for (const auto& [name, value] : options_of_run(run)) {
      if (name == "dvae") dvae = value;
    }
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
  options.text("out", out, "FILE.png", "Picture of the images that a text-to-image transformer draws");
  options.text("dvae", dvae, "RUN|MODEL", "Discrete VAE that makes images of codes; without it: that of the run");
  options.choice("rerank", rerank, {"none", "clip", "likelihood"},
                 "Order of the images: as they were drawn; by a contrastive model; by how likely the prompt makes them");
  options.text("clip", clip, "RUN|MODEL", "Contrastive model for --rerank clip");
  options.count("best", best, 0, 100000, "Number of images that are shown, the first ones of the order; 0: all");
  options.count("columns", columns, 1, 1000, "Number of images in a row of the picture");
  options.text("image-prompt", image_prompt, "FILE", "Image that is completed: its first --rows are given");
  options.count("rows", rows, 0, 1000, "Number of rows of tokens of --image-prompt that are given");
  options.count("at-once", at_once, 1, 100000, "Number of images that are drawn together");
  options.flag("json", json, "One JSON object with codes and scores instead of a summary");
}

std::vector<std::string> ImageSampling::names() {
  return {"out", "dvae", "rerank", "clip", "best", "columns", "image-prompt", "rows", "at-once", "json"};
}

int sample_images(Session& session, const std::string& model_or_run, const std::string& prompt, models::ImageOptions draw,
                  const ImageSampling& settings, const std::string& values, const std::string& device,
                  const std::string& backend) {
  if (session.comm.size() > 1) fail(ErrorKind::usage, "sample: of images runs in one process; run it without mpirun");
  if (settings.out.empty()) fail(ErrorKind::usage, "--out: missing; expected the name of a PNG file");
  if (prompt.empty()) fail(ErrorKind::usage, "--prompt: missing or empty; expected a caption");
  Drawing drawing(session, model_or_run, prompt, settings, values, device, backend);
  const bool is_whole = drawing.draw(draw);
  if (drawing.drawn() == 0) return exit_interrupted;
  drawing.write();
  if (settings.json) {
    session.terminal.print("{}", drawing.json().dump());
  } else {
    session.terminal.print("{}: {} of {} images for '{}'{}", settings.out, drawing.shown(), drawing.drawn(), prompt,
                           settings.rerank == "none" ? "" : fmt::format(", the best by {} first", settings.rerank));
    session.terminal.print("{:.2f} images/s in {}{}", static_cast<double>(drawing.drawn()) / std::max(drawing.seconds(), 1e-9),
                           format_duration(drawing.seconds()), is_whole ? "" : "; interrupted");
  }
  return is_whole ? exit_done : exit_interrupted;
}

}  // namespace bitloom::cli
