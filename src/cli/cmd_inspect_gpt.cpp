// bitloom inspect of a GPT: architecture, parameters by part, tokenizer.
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/inspect_gpt.h"
#include "cli/net_table.h"
#include "core/safetensors.h"
#include "models/gpt/model_file.h"

namespace bitloom::cli {
namespace {

using Json = nlohmann::json;

// Parameters of equal name in all blocks, in the net's order.
Json parts_of(models::Gpt& net) {
  Json parts = Json::array();
  for (const nn::Parameter* parameter : nn::parameters_of(net)) {
    std::string name = parameter->name;
    if (name.starts_with("blocks.")) name = "block: " + name.substr(name.find('.', std::string("blocks.").size()) + 1);
    const auto same = std::find_if(parts.begin(), parts.end(), [&](const Json& part) { return part["name"] == name; });
    if (same == parts.end()) {
      const auto lengths = parameter->shape.lengths();
      parts.push_back({{"name", name},
                       {"shape", std::vector<std::size_t>(lengths.begin(), lengths.end())},
                       {"count", 1},
                       {"parameters", parameter->shape.size()}});
    } else {
      (*same)["count"] = (*same)["count"].get<std::size_t>() + 1;
      (*same)["parameters"] = (*same)["parameters"].get<std::size_t>() + parameter->shape.size();
    }
  }
  return parts;
}

}  // namespace

Json describe_gpt(const std::filesystem::path& path) {
  const TensorReader file = TensorReader::open(path, Checksum::required);
  const models::GptConfig config = models::config_of(file.metadata, path.string());
  const auto tokenizer = models::tokenizer_of_file(file, path.string());
  models::Gpt net(config);
  Json json = to_json(config);
  json["kind"] = models::gpt_kind;
  json["padded_vocabulary"] = config.padded_vocabulary();
  json["parameters"] = config.parameters();
  json["parameter_bytes"] = config.parameters() * sizeof(float);
  json["macs_per_token"] = static_cast<std::uint64_t>(net.cost({1, config.context}) / 2 / static_cast<double>(config.context));
  json["parts"] = parts_of(net);
  json["tokenizer"] = {{"kind", tokenizer->kind()}, {"tokens", tokenizer->size()}, {"hash", data::tokenizer_hash(*tokenizer)}};
  json["file"] = path.string();
  json["file_bytes"] = std::filesystem::file_size(path);
  return json;
}

void print_gpt(Terminal& terminal, const Json& json) {
  const auto count = [&](const char* key) { return json[key].get<std::uint64_t>(); };
  terminal.print("GPT: {} layers of width {}, {} heads, context {}, {}, dropout {}", count("layers"), count("width"),
                 count("heads"), count("context"), json["activation"].get<std::string>(), json["dropout"].get<double>());
  const Json& tokenizer = json["tokenizer"];
  terminal.print("tokenizer: {}, {} tokens, {}; tables of {} rows\n", tokenizer["kind"].get<std::string>(),
                 tokenizer["tokens"].get<std::uint64_t>(), tokenizer["hash"].get<std::string>(), count("padded_vocabulary"));
  std::vector<std::vector<std::string>> rows{{"part", "shape", "times", "parameters"}};
  for (const Json& part : json["parts"]) {
    rows.push_back({part["name"], fmt::format("{}", fmt::join(part["shape"].get<std::vector<std::size_t>>(), " x ")),
                    fmt::format("{}", part["count"].get<std::size_t>()),
                    format_count(part["parameters"].get<std::uint64_t>())});
  }
  rows.push_back({"all", "", "", format_count(count("parameters"))});
  terminal.line(table(rows));
  terminal.print("parameters: {} ({} in f32)", count("parameters"), format_bytes(count("parameter_bytes")));
  terminal.print("per token of a full context: {} multiply-adds", format_count(count("macs_per_token")));
  terminal.print("file: {} ({})", json["file"].get<std::string>(), format_bytes(count("file_bytes")));
}

}  // namespace bitloom::cli
