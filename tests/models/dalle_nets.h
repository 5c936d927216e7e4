// A small text-to-image transformer for tests.
#pragma once

#include "models/dalle/config.h"

namespace bitloom::test {

// All three kinds of attention.
inline models::DalleConfig small_dalle() {
  models::DalleConfig config;
  config.layers = 3;
  config.heads = 2;
  config.width = 12;
  config.text = 5;
  config.text_vocabulary = 7;
  config.grid = 4;
  config.codes = 6;
  config.dropout = 0;
  return config;
}

}  // namespace bitloom::test
