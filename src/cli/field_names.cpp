#include "cli/field_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace bitloom::cli {
namespace {

// Fields of options that are not called as their options are; of all others the option's name has '-' for '_'.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> renamed_fields{
    {{"error_feedback", "residuals"}, {"fan_in", "tree"}, {"flip_limit", "flips-per-update"}}};

std::string option_called(std::string_view field) {
  for (const auto& [name, option] : renamed_fields) {
    if (field == name) return fmt::format("--{}", option);
  }
  std::string option = fmt::format("--{}", field);
  std::replace(option.begin(), option.end(), '_', '-');
  return option;
}

bool may_be_in_field(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; }

}  // namespace

std::string with_options(std::string_view message) {
  std::string text;
  while (!message.empty()) {
    const std::size_t begin = std::min(message.find('`'), message.size());
    text += message.substr(0, begin);
    message.remove_prefix(begin);
    if (message.empty()) break;
    const std::size_t end = std::min(message.find('`', 1), message.size());
    const std::string_view name = message.substr(1, end - 1);
    if (end < message.size() && !name.empty() && std::all_of(name.begin(), name.end(), &may_be_in_field)) {
      text += option_called(name);
      message.remove_prefix(end + 1);
    } else {  // a command
      text += message.substr(0, end);
      message.remove_prefix(end);
    }
  }
  return text;
}

std::string option_of_field(const std::string& field) {
  // Fields that are not called as their options are.
  static const std::map<std::string, std::string> named{
      {"data.images", "training images (--data, --max-train, --validation, --split-seed)"},
      {"data.content", "the training images' content (--data, --max-train, --validation, --split-seed)"},
      {"data.soft_labels", "the teacher's soft labels (--teacher)"},
      {"encoder", "the encoder's fitted filters (--data, --seed, --set encoder.KEY)"},
      {"net.name", "--net"},
      {"net.mirror", "--set net.mirror"},
      {"net.shift", "--set net.shift"},
      {"net.sure", "--set net.sure"},
      {"net.head_bits", "--set net.head_bits"},
      {"net.classifier", "the layers of the ensemble (--net)"},
      {"options.head_rate", "--head-learning-rate"},
      {"options.offset_rate", "--threshold-learning-rate"},
      {"options.learn_weights", "whether weights learn (--freeze-weights)"},
      {"options.flip_limit", "--flips-per-update"},
      {"options.partial.quorum", "--quorum"},
      {"options.partial.deadline", "--deadline"},
      {"options.partial.late", "--late"},
      {"options.exchange.budget", "--bytes-per-update"},
      {"options.exchange.compression.0", "--compression"},
      {"options.exchange.compression.1", "--last-messages"},
      {"options.exchange.threshold", "--threshold"},
      {"options.exchange.residuals", "--residuals (by number)"},
      {"options.exchange.statistics_every", "--statistics-every"},
      {"options.exchange.value_bits", "--value-bits"},
      {"options.exchange.urgency.0", "--bias-threshold-scale"},
      {"options.exchange.urgency.1", "--head-threshold-scale"},
      {"options.exchange.version", "the version of sparse messages (--exchange)"}};
  if (const auto found = named.find(field); found != named.end()) return found->second;
  const auto rest = [&](std::string_view prefix) { return field.substr(prefix.size()); };
  if (field.starts_with("net.stages.") && field.ends_with(".epochs")) {
    const std::string stage = rest("net.stages.");
    return fmt::format("--epochs of {}", stage.substr(0, stage.rfind('.')));
  }
  if (field.starts_with("net.stages.")) return "--set " + rest("net.stages.");
  if (field.starts_with("net.layers.")) return "--set " + rest("net.layers.");
  if (field.starts_with("net.")) return "--set " + rest("net.");
  return option_called(field.starts_with("options.") ? rest("options.") : field);
}

std::string option_of_float_field(const std::string& field, const FieldOptions& named) {
  for (const std::string& name : {field, field.substr(0, field.find('.'))}) {
    if (const auto found = named.find(name); found != named.end()) return found->second;
  }
  return option_called(field.starts_with("net.") ? std::string_view(field).substr(4) : field);
}

}  // namespace bitloom::cli
