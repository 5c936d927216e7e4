// Progress that is kept, to be looked at.
#pragma once

#include <string>
#include <string_view>

#include "core/progress.h"

namespace bitloom::test {

class Lines final : public ProgressSink {
 public:
  void line(std::string_view text) override { text_ += std::string(text) + "\n"; }
  void update(std::string_view) override {}
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace bitloom::test
