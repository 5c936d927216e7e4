// Images of a set that cannot be used, told together, so that nobody mends a set one by one.
#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/error.h"

namespace bitloom::data {

class BadImages {
 public:
  // f(), whose Error(data) is kept as what is wrong with image i. Several threads may call it at once.
  template <typename F>
  void attempt(std::size_t i, F&& f) {
    try {
      f();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;
      keep(i, error.what());
    }
  }

  // Throws what was wrong with the only one of `images` images, or Error(data) with their number and the first of them.
  void check(std::size_t images) const {
    if (count_ == 0) return;
    if (count_ == 1) throw Error(ErrorKind::data, first_.begin()->second);
    std::string text = fmt::format("{} of {} images cannot be used:", count_, images);
    for (const auto& [i, message] : first_) text += fmt::format("\n  {}", message);
    if (count_ > first_.size()) text += fmt::format("\n  and {} more", count_ - first_.size());
    throw Error(ErrorKind::data, text);
  }

 private:
  void keep(std::size_t i, std::string message) {
    constexpr std::size_t told = 20;
    const std::scoped_lock lock(mutex_);
    ++count_;
    first_.emplace(i, std::move(message));
    if (first_.size() > told) first_.erase(std::prev(first_.end()));
  }

  std::mutex mutex_;
  std::size_t count_ = 0;
  std::map<std::size_t, std::string> first_;
};

}  // namespace bitloom::data
