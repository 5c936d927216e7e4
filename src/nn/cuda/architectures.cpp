#include "nn/cuda/architectures.h"

#include <fmt/ranges.h>

#include <charconv>
#include <optional>
#include <vector>

namespace bitloom::nn::cuda {
namespace {

struct Architecture {
  int major = 0, minor = 0;
  char kind = ' ';      // 'a': that GPU alone; 'f': those of its family; ' ': any
  bool has_ptx = true;  // compiled for later GPUs when it is loaded
};

// The architecture that "90a-real", say, names; none if it names none.
std::optional<Architecture> parse(std::string_view text) {
  Architecture architecture;
  if (text.ends_with("-real")) {
    architecture.has_ptx = false;
    text.remove_suffix(std::string_view("-real").size());
  } else if (text.ends_with("-virtual")) {
    text.remove_suffix(std::string_view("-virtual").size());
  }
  if (text.ends_with('a') || text.ends_with('f')) {
    architecture.kind = text.back();
    text.remove_suffix(1);
  }
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 10) return std::nullopt;
  architecture.major = number / 10;
  architecture.minor = number % 10;
  return architecture;
}

bool runs(const Architecture& architecture, int major, int minor) {
  const bool is_same_major = architecture.major == major;
  if (architecture.kind == 'a') return is_same_major && architecture.minor == minor;
  if (is_same_major && architecture.minor <= minor) return true;  // both kinds of code
  return architecture.has_ptx && architecture.kind == ' ' && architecture.major < major;
}

std::string text_of(const Architecture& architecture) {
  const std::string number = fmt::format("{}.{}", architecture.major, architecture.minor);
  if (architecture.kind != ' ') return number + architecture.kind;
  return architecture.has_ptx ? number + " and later" : number;
}

}  // namespace

std::string code_problem(int major, int minor, std::string_view architectures) {
  std::vector<std::string> compiled_for;
  for (std::size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
    end = architectures.find(',', begin);
    const std::optional<Architecture> architecture = parse(architectures.substr(begin, end - begin));
    if (!architecture || runs(*architecture, major, minor)) return "";
    compiled_for.push_back(text_of(*architecture));
  }
  return fmt::format(
      "it has compute capability {}.{}, and this program was compiled for {}: configure it with "
      "-DCMAKE_CUDA_ARCHITECTURES={}{}",
      major, minor, fmt::join(compiled_for, ", "), major, minor);
}

}  // namespace bitloom::nn::cuda
