// Images of any origin, cut square, in their order: what `compare` and `data pairs --overlap` look at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/dvae_evaluation.h"
#include "cli/terminal.h"
#include "data/pairs/pairs.h"

namespace bitloom::cli {

class ImageSource {
 public:
  virtual ~ImageSource() = default;
  virtual std::size_t size() const = 0;
  // Name of an image: its file, or its number.
  virtual std::string name(std::size_t i) const = 0;
  // Image i, (side,side,3), cut in the centre.
  virtual std::vector<std::uint8_t> image(std::size_t i, std::size_t side) = 0;
};

// SPEC is a folder with captions.jsonl or such a file, whose images stand for themselves, each once; another folder, with all
// PNG and JPEG files in it and in its sub-folders, in byte order of their names; or a file of tokens of `bitloom encode`, whose
// images `dvae`, a run or model, draws. Throws Error(data) that names SPEC for one without images, Error(usage) that names
// --dvae where it is missing, Error(data) where the tokens are of another codebook.
std::unique_ptr<ImageSource> open_images(const std::string& spec, const std::string& dvae);
std::unique_ptr<ImageSource> images_of(const data::Pairs& pairs);  // which outlive it

// visit(images (N,side,side,3)) for the first `count` images, some at a time, and says how many are done.
void for_each_batch(Terminal& terminal, const std::string& what, ImageSource& source, std::size_t count, std::size_t side,
                    const std::function<void(std::vector<std::uint8_t>& images)>& visit);

}  // namespace bitloom::cli
