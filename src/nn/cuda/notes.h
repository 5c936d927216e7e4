// Notes to the user on how ops are computed: that a library has nothing for a shape, so that something slower takes
// its place. Each is said once.
#pragma once

#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace bitloom::nn::cuda {

class Notes {
 public:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    std::string text = fmt::format(format, std::forward<Args>(args)...);
    if (said_.size() < most && said_.insert(text).second) new_.push_back(std::move(text));
  }
  // Those since the last call.
  std::vector<std::string> take() { return std::exchange(new_, {}); }

 private:
  static constexpr std::size_t most = 64;  // a net of more such shapes is known to be slow by then
  std::set<std::string> said_;
  std::vector<std::string> new_;
};

}  // namespace bitloom::nn::cuda
