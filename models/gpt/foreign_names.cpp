#include "models/gpt/foreign_names.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "nn/floats.h"

namespace bitloom::models {

std::string ForeignNames::of(std::string_view ours) const {
  constexpr std::string_view blocks = "blocks.";
  const bool is_of_block = ours.starts_with(blocks);
  const std::size_t dot = is_of_block ? ours.find('.', blocks.size()) : 0;
  const std::string_view part = is_of_block ? ours.substr(dot + 1) : ours;
  const std::span<const ForeignName> table = is_of_block ? of_block : outer;
  const auto found = std::ranges::find(table, part, &ForeignName::ours);
  if (found == table.end()) fail(ErrorKind::internal, "no name for the parameter '{}' in {}", ours, program);
  if (!is_of_block) return std::string(found->theirs);
  return fmt::format("{}.{}.{}", block, ours.substr(blocks.size(), dot - blocks.size()), found->theirs);
}

std::vector<std::size_t> unpadded_shape(const nn::Parameter& parameter, const GptConfig& config) {
  const auto lengths = parameter.shape.lengths();
  std::vector<std::size_t> shape(lengths.begin(), lengths.end());
  if (parameter.name == "embedding.tokens") shape.front() = config.vocabulary;
  return shape;
}

std::vector<float> unpadded_values(nn::Engine& engine, const nn::Parameter& parameter, const GptConfig& config) {
  std::vector<float> values = nn::to_floats(engine, parameter.value);
  if (parameter.name == "embedding.tokens") values.resize(config.vocabulary * config.width);
  return values;
}

}  // namespace bitloom::models
