// The two forms in which pairs lie on disk; private to this folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace bitloom::data {

// A pair as its file has it: nothing is known of its image yet.
struct ListedPair {
  std::string image;  // relative to the folder
  std::string caption;
  std::vector<std::string> keywords;
  std::string place;  // "captions.jsonl, line 3", for messages
};

struct PairListing {
  std::filesystem::path folder;
  std::vector<ListedPair> pairs;
  std::vector<std::string> images_without_caption, captions_without_image;  // names of files
};

// `path` as Pairs::open() takes it. Throws Error(data).
PairListing list_pairs(const std::filesystem::path& path);

}  // namespace bitloom::data
