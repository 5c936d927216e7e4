// The description of a discrete variational autoencoder (Ramesh et al. 2021, appendix A): its sizes as JSON, and the named
// ones.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace bitloom::models {

struct DvaeConfig {
  std::string name;
  std::size_t side = 64;    // height and width of images, pixels of 3 channels
  std::size_t codes = 512;  // K
  std::size_t groups = 4;   // between two groups maps become half as high and wide, and channels twice as many
  std::size_t blocks = 2;   // residual blocks of a group
  std::size_t hidden = 32;  // channels of the encoder's first group and of the decoder's last one, n_hid
  std::size_t init = 32;    // channels that the decoder makes of codes, n_init

  std::size_t grid() const { return side >> (groups - 1); }  // rows and columns of tokens
  std::size_t values() const { return 3 * side * side; }     // numbers of an image
  // Factor on what a residual block adds: 1 / (number of blocks)^2.
  double gain() const { return 1 / static_cast<double>(groups * blocks * groups * blocks); }
};

// "full" is that of the paper: 256 x 256 pixels, 32 x 32 tokens of 8192 codes.
std::vector<std::string> dvae_names();
// The sizes of that name, or those that a file (its name has a '/' or a '.') describes. Throws Error(usage): an unknown name,
// with a suggestion; a file that cannot be read; a description that is wrong, with the key, its value and what was expected.
DvaeConfig find_dvae(const std::string& name_or_file);

nlohmann::json architecture_of(const DvaeConfig& config);
// Configuration that a model file describes. Throws Error(data) that names `source`.
DvaeConfig parse_dvae_model(const std::string& text, const std::string& source);

}  // namespace bitloom::models
