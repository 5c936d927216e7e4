#include "launch/mpirun_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

namespace bitloom::launch {
namespace {

constexpr std::size_t most_lines = 20;
constexpr std::size_t most_text = 65536;

}  // namespace

std::vector<std::string> OutputTail::add(const std::string& text) {
  std::vector<std::string> lines;
  partial_ += text;
  for (std::size_t end = partial_.find('\n'); end != std::string::npos; end = partial_.find('\n')) {
    lines.push_back(partial_.substr(0, end));
    partial_.erase(0, end + 1);
  }
  for (const std::string& line : lines) {
    if (line.empty()) continue;
    all_ += line + "\n";
    last_.push_back(line);
    if (last_.size() > most_lines) last_.erase(last_.begin());
  }
  if (all_.size() > most_text) all_.erase(0, all_.size() - most_text);
  return lines;
}

// Its messages stand between lines of dashes; short ones begin with its name or that of the process that speaks.
bool LauncherTalk::holds(const std::string& line) {
  constexpr std::size_t rule = 60;
  if (line.size() >= rule && line.find_first_not_of('-') == std::string::npos) {
    inside_ = !inside_;
    return true;
  }
  return inside_ || line.starts_with("mpirun: ") || line.starts_with("prterun: ") || line.starts_with("mpirun detected ") ||
         line.find("more processes have sent help message") != std::string::npos ||
         line.find("more process has sent help message") != std::string::npos ||
         line.find("Set MCA parameter \"orte_base_help_aggregate\"") != std::string::npos;
}

// Open MPI 4's words, and those of 5 where they are the same, broken anywhere into lines.
std::string cause_of_end(const std::string& output) {
  std::string text = output;
  std::replace(text.begin(), text.end(), '\n', ' ');
  text = std::regex_replace(text, std::regex(" +"), " ");
  constexpr std::size_t sentence = 600;
  // The groups of a pattern in the sentence that begins so; empty if there is none.
  const auto words = [&](const char* begin, const char* pattern) {
    const std::size_t start = text.find(begin);
    const std::string part = start == std::string::npos ? "" : text.substr(start, sentence);
    std::smatch match;
    std::vector<std::string> found;
    if (std::regex_search(part, match, std::regex(pattern))) found.assign(match.begin() + 1, match.end());
    return found;
  };
  if (const auto w =
          words("process rank", R"(^process rank (\d+) with PID \d+ on node (\S+) exited on signal (\d+ ?\([^)]*\)))");
      !w.empty()) {
    return fmt::format("rank {} on {}: signal {}", w[0], w[1], w[2]);
  }
  if (const auto w = words("MPI_ABORT was invoked",
                           R"(^MPI_ABORT was invoked on rank (\d+) in communicator .{1,80}? with errorcode (\d+))");
      !w.empty()) {
    return fmt::format("rank {}: exit code {}", w[0], w[1]);
  }
  if (const auto w = words("Process name:", R"(^Process name: \[\[\d+,\d+\],(\d+)\] Exit code: (\d+))"); !w.empty()) {
    return fmt::format("rank {}: exit code {}", w[0], w[1]);
  }
  if (const auto w = words("lost communication with a remote daemon", R"(Remote daemon: \S+ on node (\S+))"); !w.empty()) {
    return fmt::format("host {} is gone", w[0]);
  }
  return "";
}

}  // namespace bitloom::launch
