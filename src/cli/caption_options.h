// How a command makes tokens of captions.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/options.h"
#include "data/pairs/pairs.h"
#include "data/text/tokenizer.h"

namespace bitloom::cli {

struct CaptionSettings {
  std::string tokenizer = "auto";
  std::size_t vocabulary = 1024;

  void declare(Options& options);
  // Collective: the tokenizer that is named or, for auto, byte-pair encoding of the lower-cased captions of `train`, of
  // `vocabulary` tokens or as many as they give. Throws Error(usage), Error(data).
  std::unique_ptr<data::Tokenizer> make(Session& session, const data::Pairs& train) const;
};

// "3 of 10 captions have more than 32 tokens; the net sees their beginnings", or "" where all fit. Of many, some are looked at.
std::string note_on_cut_captions(const data::Tokenizer& tokenizer, std::size_t captions,
                                 const std::function<const std::string&(std::size_t i)>& caption, std::size_t tokens);

}  // namespace bitloom::cli
