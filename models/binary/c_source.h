// A trained binary net as one file of C99 that needs nothing else: its weights as constants, and the code of
// models/binary/c/net.c.
#pragma once

#include <string>

#include "layerwise/model.h"

namespace bitloom::models {

struct CSource {
  std::string header, source;
  std::size_t constant_bytes = 0;  // of weights, filters and tables
  std::size_t memory_bytes = 0;    // static, of what is computed on the way
};

// `name` begins what the files declare: NAME_scores(), NAME_classes; `header_file` is how the source includes the header.
// Scores are the bits of Classifier::scores() of the same views. Throws Error(usage) if the name cannot begin an identifier of
// C, and if the views do not fit the images; Error(data) for numbers that are not finite.
CSource c_source(const layerwise::Model& model, const layerwise::Views& views, const std::string& name,
                 const std::string& header_file);

}  // namespace bitloom::models
