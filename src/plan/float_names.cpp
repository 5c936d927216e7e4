#include "plan/float_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/suggest.h"
#include "core/text.h"
#include "models/gpt/config.h"

namespace bitloom::plan {
namespace {

FloatModel gpt(std::string_view name) {
  models::GptConfig config = models::config_of(models::find_gpt(name));
  config.vocabulary = 50257;
  FloatModel model = describe_gpt(config);
  model.name = fmt::format("GPT {}", name);
  return model;
}

constexpr PaperModel papers[] = {
    {"GPT 1.2B", 1.213e9, [] { return gpt("1.2b"); }},
    {"GPT 2.5B", 2.490e9, [] { return gpt("2.5b"); }},
    {"GPT 4.2B", 4.199e9, [] { return gpt("4.2b"); }},
    {"GPT 8.3B", 8.317e9, [] { return gpt("8.3b"); }},
    {"AmoebaNet-D (18,208)", 82e6, [] { return describe_amoebanet_d(18, 208); }},
    {"AmoebaNet-D (18,416)", 318e6, [] { return describe_amoebanet_d(18, 416); }},
    {"AmoebaNet-D (18,544)", 542e6, [] { return describe_amoebanet_d(18, 544); }},
    {"AmoebaNet-D (36,544)", 1.05e9, [] { return describe_amoebanet_d(36, 544); }},
    {"AmoebaNet-D (72,512)", 1.8e9, [] { return describe_amoebanet_d(72, 512); }},
    {"Transformer-3", 282.2e6, [] { return describe_transformer(3); }},
    {"Transformer-13", 785.8e6, [] { return describe_transformer(13); }},
    {"Transformer-103", 5.3e9, [] { return describe_transformer(103); }},
    {"Transformer-415", 21.0e9, [] { return describe_transformer(415); }},
    {"Transformer-1663", 83.9e9, [] { return describe_transformer(1663); }},
    {"T(6,8192,16)", 0.4e9, [] { return describe_translation(6, 8192, 16); }},
    {"T(24,8192,16)", 1.3e9, [] { return describe_translation(24, 8192, 16); }},
    {"T(12,16384,32)", 1.3e9, [] { return describe_translation(12, 16384, 32); }},
    {"T(32,16384,32)", 3e9, [] { return describe_translation(32, 16384, 32); }},
    {"T(64,16384,32)", 6e9, [] { return describe_translation(64, 16384, 32); }},
};

// A number in the name of a family's model: a multiple of `step` from `step` to `most`.
struct Size {
  const char* name;
  const char* meaning;
  std::int64_t most = 0, step = 1;
};

struct Family {
  const char* name;
  std::string_view begin, end;  // around the sizes
  std::array<Size, 3> sizes;    // those that have a name
  FloatModel (*describe)(std::span<const std::size_t> sizes);
};

constexpr Family families[] = {
    // Three groups of cells; the narrowest convolutions have an eighth of the filters.
    {"amoebanet-d(L,F)",
     "amoebanet-d(",
     ")",
     {{{"L", "normal cells", 3000, 3}, {"F", "filters", 16384, 8}, {}}},
     [](std::span<const std::size_t> sizes) { return describe_amoebanet_d(sizes[0], sizes[1]); }},
    {"transformer-L",
     "transformer-",
     "",
     {{{"L", "layers", 10000}, {}, {}}},
     [](std::span<const std::size_t> sizes) { return describe_transformer(sizes[0]); }},
    {"t(L,H,A)",
     "t(",
     ")",
     {{{"L", "layers of the encoder and of the decoder", 10000}, {"H", "width inside", 1048576}, {"A", "heads", 1024}}},
     [](std::span<const std::size_t> sizes) { return describe_translation(sizes[0], sizes[1], sizes[2]); }},
};

FloatModel make(const Family& family, std::string_view name, std::string_view numbers) {
  std::vector<Size> expected;
  std::vector<std::string> ranges;
  for (const Size& size : family.sizes) {
    if (size.name == nullptr) continue;
    expected.push_back(size);
    ranges.push_back(fmt::format("{} ({}) {} to {}{}", size.name, size.meaning, size.step, size.most,
                                 size.step == 1 ? "" : fmt::format(" in steps of {}", size.step)));
  }
  const std::vector<std::string> given = split(numbers, ',');
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < std::min(given.size(), expected.size()); ++i) {
    const std::int64_t size = parse_int(given[i]).value_or(0);
    if (size >= 1 && size <= expected[i].most && size % expected[i].step == 0) sizes.push_back(static_cast<std::size_t>(size));
  }
  if (sizes.size() != expected.size() || given.size() != expected.size()) {
    fail(ErrorKind::usage, "model '{}'; expected {} with {}", name, family.name, fmt::join(ranges, ", "));
  }
  return family.describe(sizes);
}

std::vector<std::string> names_of_papers() {
  std::vector<std::string> names;
  for (const PaperModel& paper : papers) names.emplace_back(paper.name);
  return names;
}

// As models are looked for: "AmoebaNet-D (18,208)" is "amoebanet-d(18,208)", "GPT 8.3B" is "gpt8.3b".
std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (c != ' ') text += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return text;
}

}  // namespace

std::span<const PaperModel> paper_models() { return papers; }

FloatModel find_model(std::string_view name) {
  const std::string wanted = plain(name);
  std::vector<std::string> known;
  for (const Family& family : families) {
    known.emplace_back(family.name);
    if (!wanted.starts_with(family.begin) || !wanted.ends_with(family.end)) continue;
    const std::size_t length = wanted.size() - family.begin.size() - family.end.size();
    return make(family, name, std::string_view(wanted).substr(family.begin.size(), length));
  }
  for (const models::NamedGpt& named : models::named_gpts()) {
    known.emplace_back(named.name);
    if (wanted == named.name || wanted == fmt::format("gpt{}", named.name)) return gpt(named.name);
  }
  const std::string near = closest(wanted, known);
  fail(ErrorKind::usage, "unknown model '{}'{}; there are {}; in papers' tables {}", name,
       near.empty() ? "" : fmt::format("; did you mean '{}'?", near), fmt::join(known, ", "),
       fmt::join(names_of_papers(), ", "));
}

}  // namespace bitloom::plan
