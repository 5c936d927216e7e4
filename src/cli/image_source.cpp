#include "cli/image_source.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "cli/model_source.h"
#include "core/error.h"
#include "core/progress.h"
#include "data/image.h"
#include "data/pairs/pair_batches.h"
#include "models/dvae/model_file.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

class ImageFiles final : public ImageSource {
 public:
  ImageFiles(fs::path folder, std::vector<std::string> names) : folder_(std::move(folder)), names_(std::move(names)) {}

  std::size_t size() const override { return names_.size(); }
  std::string name(std::size_t i) const override { return names_[i]; }
  std::vector<std::uint8_t> image(std::size_t i, std::size_t side) override {
    return data::centre_square(data::read_image(folder_ / names_[i]), side);
  }

 private:
  fs::path folder_;
  std::vector<std::string> names_;  // relative to the folder
};

// Each once, however many captions it has.
class PairImages final : public ImageSource {
 public:
  explicit PairImages(const data::Pairs& pairs) : pairs_(pairs) {
    std::set<std::string> names;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      if (names.insert(pairs[i].image).second) first_.push_back(i);
    }
  }

  std::size_t size() const override { return first_.size(); }
  std::string name(std::size_t i) const override { return pairs_[first_[i]].image; }
  std::vector<std::uint8_t> image(std::size_t i, std::size_t side) override {
    return data::centre_square(pairs_.image(first_[i]), side);
  }

 private:
  const data::Pairs& pairs_;
  std::vector<std::size_t> first_;  // pairs
};

class TokenImages final : public ImageSource {
 public:
  TokenImages(const std::string& spec, models::ImageTokens tokens, const std::string& dvae)
      : tokens_(std::move(tokens)), dvae_(find_model(dvae), "f32", "cpu", "") {
    if (dvae_.model().hash != tokens_.model) {
      fail(ErrorKind::data, "--dvae: {}: another codebook ({}) than the one of {} ({})", dvae, dvae_.model().hash, spec,
           tokens_.model);
    }
  }

  std::size_t size() const override { return tokens_.images(); }
  std::string name(std::size_t i) const override { return fmt::format("image {}", i); }
  std::vector<std::uint8_t> image(std::size_t i, std::size_t side) override {
    const std::size_t length = tokens_.grid * tokens_.grid;
    const std::vector<std::uint8_t> pixels = dvae_.coder().decode(std::span(tokens_.tokens).subspan(i * length, length));
    const std::size_t from = dvae_.config().side;
    if (from == side) return pixels;
    return data::centre_square(data::to_image(pixels, from), side);
  }

 private:
  models::ImageTokens tokens_;
  OpenDvae dvae_;
};

std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at->is_regular_file(ignored) && data::is_image_name(at->path())) {
      names.push_back(at->path().lexically_relative(folder).string());
    }
  }
  if (error) fail(ErrorKind::data, "{}: {}", folder.string(), error.message());
  std::ranges::sort(names);
  return names;
}

// All pairs, whatever their captions and proportions; an image that stands in several counts once.
std::unique_ptr<ImageSource> files_of_pairs(const std::string& spec) {
  data::PairRules rules;
  rules.captions.min_words = 0;
  rules.captions.english = false;
  rules.captions.boilerplate = false;
  rules.max_aspect = 0;
  const data::Pairs pairs = data::Pairs::open(spec, rules);
  std::vector<std::string> names;
  std::set<std::string> known;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (known.insert(pairs[i].image).second) names.push_back(pairs[i].image);
  }
  return std::make_unique<ImageFiles>(pairs.folder(), std::move(names));
}

}  // namespace

std::unique_ptr<ImageSource> open_images(const std::string& spec, const std::string& dvae) {
  const fs::path path(spec);
  if (!fs::exists(path)) fail(ErrorKind::data, "{}: there is no such file or folder", spec);
  if (path.extension() == ".jsonl" || fs::exists(path / "captions.jsonl")) return files_of_pairs(spec);
  if (fs::is_directory(path)) {
    std::vector<std::string> names = files_below(path);
    if (names.empty()) fail(ErrorKind::data, "{}: no PNG or JPEG files in the folder", spec);
    return std::make_unique<ImageFiles>(path, std::move(names));
  }
  models::ImageTokens tokens = models::load_image_tokens(path);
  if (dvae.empty()) {
    fail(ErrorKind::usage, "--dvae: missing; {} has tokens; expected the run or model that made them", spec);
  }
  return std::make_unique<TokenImages>(spec, std::move(tokens), dvae);
}

std::unique_ptr<ImageSource> images_of(const data::Pairs& pairs) { return std::make_unique<PairImages>(pairs); }

void for_each_batch(Terminal& terminal, const std::string& what, ImageSource& source, std::size_t count, std::size_t side,
                    const std::function<void(std::vector<std::uint8_t>& images)>& visit) {
  constexpr std::size_t at_once = 64;
  const std::size_t all = std::min(count, source.size());
  std::vector<std::uint8_t> images;
  for (std::size_t i = 0; i < all; ++i) {
    const std::vector<std::uint8_t> image = source.image(i, side);
    images.insert(images.end(), image.begin(), image.end());
    if ((i + 1) % at_once != 0 && i + 1 != all) continue;
    visit(images);
    images.clear();
    terminal.update(fmt::format("{}: {} of {} images", what, i + 1, all));
  }
}

}  // namespace bitloom::cli
