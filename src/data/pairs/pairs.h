// Images and their captions, for models of text and images. Captions and the names of files are in memory; an image is decoded
// whenever it is asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/hash.h"
#include "core/progress.h"
#include "data/image.h"
#include "data/pairs/caption_filter.h"

namespace bitloom::data {

// Pairs that stay (Ramesh et al. 2021, appendix C).
struct PairRules {
  CaptionRules captions;
  // Width over height and height over width are at most that: square crops of longer images would leave out what captions
  // name. 0 disables the limit.
  double max_aspect = 2;
};

struct Pair {
  std::string image;  // file, relative to Pairs::folder()
  std::string caption;
  std::vector<std::string> keywords;  // may be empty
  std::uint32_t height = 0, width = 0;
  Hash128 content;  // of the image's file
};

// Number of pairs that were left out for one reason, and where the first one stands ("captions.jsonl, line 3: 'a'").
struct LeftOut {
  std::string reason;
  std::size_t count = 0;
  std::string first;
};

class Pairs {
 public:
  // `path` is a file of JSON lines {"image": "a.png", "caption": "...", "keywords": ["...", ...]} (keywords may be missing,
  // other fields are skipped), a folder with such a file, captions.jsonl, or a folder of images where a.txt has the captions of
  // a.png, one per line. Images of the file lie beside it or in a sub-folder, png or images. One image may stand in several
  // pairs. Pairs are in the order of the file, or in byte order of the names. Reads every image's file once, for its size and
  // hash. Throws Error(data) that names file and line for broken lines and images that are missing or broken, and if no pair
  // stays.
  static Pairs open(const std::filesystem::path& path, const PairRules& rules = {}, ProgressSink* progress = nullptr);

  std::size_t size() const noexcept { return pairs_.size(); }
  const Pair& operator[](std::size_t i) const { return pairs_[i]; }
  const std::filesystem::path& folder() const noexcept { return folder_; }
  // Reasons in the order of the rules; those without pairs are not named.
  const std::vector<LeftOut>& left_out() const noexcept { return left_out_; }

  // Decodes image i, i < size(), as 3 channels. May be called by several threads at once. Throws as read_image() does.
  Image image(std::size_t i) const { return read_image(folder_ / pairs_[i].image); }

  // These pairs, in this order.
  Pairs select(std::span<const std::size_t> indexes) const;

 private:
  std::filesystem::path folder_;
  std::vector<Pair> pairs_;
  std::vector<LeftOut> left_out_;
};

// 32 hexadecimal digits that depend on captions, keywords and the contents of the images, in their order, and not on names:
// what a run was trained on.
std::string content_hash(const Pairs& pairs);

struct PairSplits {
  Pairs train, validation;
};

// Pairs of about `share` of the images for validation, 0 <= share < 1: those whose contents, together with the seed, give the
// smallest numbers. All pairs of an image, or of its copies, are on one side; neither the order nor the number of processes
// matters. Throws Error(usage) if nothing would be left to train on.
PairSplits split_pairs(const Pairs& pairs, double share, std::uint64_t seed);

}  // namespace bitloom::data
