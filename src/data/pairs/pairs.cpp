#include "data/pairs/pairs.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "core/error.h"
#include "core/field.h"
#include "core/file.h"
#include "core/random.h"
#include "data/bad_images.h"
#include "data/pairs/read_pairs.h"

namespace bitloom::data {
namespace {

namespace fs = std::filesystem;

void leave_out(std::vector<LeftOut>& all, std::string_view reason, const std::string& place) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const LeftOut& each) { return each.reason == reason; });
  if (found != all.end()) {
    ++found->count;
  } else {
    all.push_back({std::string(reason), 1, place});
  }
}

struct ImageFacts {
  ImageShape shape;
  Hash128 content;
};

// On all threads, in pieces between which progress is told. Many pairs may share an image, which is read once.
std::map<std::string, ImageFacts> read_facts(const fs::path& folder, const std::vector<ListedPair>& listed,
                                             ProgressSink* progress) {
  std::map<std::string, ImageFacts> facts;
  for (const ListedPair& pair : listed) facts.try_emplace(pair.image);
  std::vector<std::pair<const std::string, ImageFacts>*> images;
  for (auto& each : facts) images.push_back(&each);
  constexpr std::size_t piece = 4096;
  BadImages bad;
  for (std::size_t first = 0; first < images.size(); first += piece) {
    const std::size_t count = std::min(piece, images.size() - first);
    for_all_images(count, [&](std::size_t i) {
      bad.attempt(first + i, [&] {
        auto& [name, fact] = *images[first + i];
        const fs::path path = folder / name;
        const std::vector<std::byte> file = read_bytes(path);  // not mapped, as in read_image()
        fact = {image_shape(file, path.string()), hash_bytes(file)};
      });
    });
    if (progress != nullptr) progress->update(fmt::format("{} of {} images", first + count, images.size()));
  }
  bad.check(images.size());
  return facts;
}

bool is_too_long(const ImageShape& shape, double max_aspect) {
  if (max_aspect == 0) return false;
  const auto [low, high] = std::minmax(shape.height, shape.width);
  return static_cast<double>(high) > max_aspect * static_cast<double>(low);
}

}  // namespace

Pairs Pairs::open(const fs::path& path, const PairRules& rules, ProgressSink* progress) {
  if (!(rules.max_aspect == 0 || (rules.max_aspect >= 1 && std::isfinite(rules.max_aspect))))
    fail_field(ErrorKind::usage, "max_aspect", "{}; expected at least 1, or 0 for no limit", rules.max_aspect);
  PairListing listing = list_pairs(path);
  Pairs result;
  result.folder_ = listing.folder;
  for (const std::string& name : listing.images_without_caption) leave_out(result.left_out_, "image without caption", name);
  for (const std::string& name : listing.captions_without_image) leave_out(result.left_out_, "caption without image", name);
  std::erase_if(listing.pairs, [&](const ListedPair& pair) {
    const std::string_view reason = reason_against(pair.caption, rules.captions);
    if (!reason.empty()) leave_out(result.left_out_, reason, fmt::format("{}: '{}'", pair.place, pair.caption));
    return !reason.empty();
  });
  const std::map<std::string, ImageFacts> facts = read_facts(listing.folder, listing.pairs, progress);
  std::set<std::pair<Hash128, Hash128>> seen;  // contents of image and caption
  for (ListedPair& pair : listing.pairs) {
    const ImageFacts& fact = facts.at(pair.image);
    if (is_too_long(fact.shape, rules.max_aspect)) {
      leave_out(result.left_out_, "aspect ratio", fmt::format("{}: {} x {}", pair.place, fact.shape.width, fact.shape.height));
    } else if (!seen.emplace(fact.content, hash_bytes(std::as_bytes(std::span(pair.caption)))).second) {
      leave_out(result.left_out_, "same image and caption", pair.place);
    } else {
      result.pairs_.push_back({std::move(pair.image), std::move(pair.caption), std::move(pair.keywords),
                               static_cast<std::uint32_t>(fact.shape.height), static_cast<std::uint32_t>(fact.shape.width),
                               fact.content});
    }
  }
  if (result.pairs_.empty()) {
    std::string reasons;
    for (const LeftOut& each : result.left_out_)
      reasons += fmt::format("{}{}: {} ({})", reasons.empty() ? "" : "; ", each.reason, each.count, each.first);
    fail(ErrorKind::data, "{}: no pair is left; {}", path.string(), reasons);
  }
  return result;
}

Pairs Pairs::select(std::span<const std::size_t> indexes) const {
  Pairs result;
  result.folder_ = folder_;
  result.pairs_.reserve(indexes.size());
  for (const std::size_t i : indexes) result.pairs_.push_back(pairs_[i]);
  return result;
}

std::string content_hash(const Pairs& pairs) {
  Hasher hasher;
  hasher.update("bitloom pairs 1").update(pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    hasher.update(pairs[i].content.low).update(pairs[i].content.high).update(pairs[i].caption);
    hasher.update(pairs[i].keywords.size());
    for (const std::string& word : pairs[i].keywords) hasher.update(word);
  }
  return hasher.finish().hex();
}

PairSplits split_pairs(const Pairs& pairs, double share, std::uint64_t seed) {
  if (!(share >= 0 && share < 1)) fail_field(ErrorKind::usage, "validation", "a share of {}; expected 0 to less than 1", share);
  // The order of images that the seed gives; equal numbers are all but impossible, and then the contents decide.
  std::map<std::pair<std::uint64_t, Hash128>, std::vector<std::size_t>> images;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const Hash128& content = pairs[i].content;
    images[{Random(seed, Stream::validation_split, content.low, content.high).next(), content}].push_back(i);
  }
  const auto wanted = static_cast<std::size_t>(std::llround(share * static_cast<double>(images.size())));
  if (wanted >= images.size()) {
    fail_field(ErrorKind::usage, "validation", "a share of {} of {} images leaves none to train on", share, images.size());
  }
  std::vector<std::size_t> train, validation;
  std::size_t taken = 0;
  for (const auto& [key, members] : images) {
    std::vector<std::size_t>& side = taken++ < wanted ? validation : train;
    side.insert(side.end(), members.begin(), members.end());
  }
  std::sort(train.begin(), train.end());
  std::sort(validation.begin(), validation.end());
  return {pairs.select(train), pairs.select(validation)};
}

}  // namespace bitloom::data
