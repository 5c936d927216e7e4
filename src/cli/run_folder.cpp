#include "cli/run_folder.h"

#include <array>
#include <ctime>

namespace bitloom::cli {

std::string default_folder(const std::string& net) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  std::array<char, 32> date{};
  const std::size_t length = std::strftime(date.data(), date.size(), "%Y%m%d-%H%M%S", &parts);
  return fmt::format("runs/{}-{}", std::filesystem::path(net).stem().string(), std::string_view(date.data(), length));
}

void LoggedProgress::line(std::string_view text) {
  terminal_.open_log(log_);
  terminal_.line(text);
}

void LoggedProgress::update(std::string_view text) {
  terminal_.open_log(log_);
  terminal_.update(text);
}

}  // namespace bitloom::cli
