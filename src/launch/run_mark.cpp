#include "launch/run_mark.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <tuple>

#include "core/progress_file.h"

namespace bitloom::launch {

bool Mark::is_beyond(const Mark& other) const {
  return std::tie(stage, step, evaluated) > std::tie(other.stage, other.step, other.evaluated);
}

Mark read_mark(const std::filesystem::path& folder) {
  using Json = nlohmann::json;
  Mark mark;
  std::ifstream file(folder / progress_file_name);
  mark.text.assign(std::istreambuf_iterator<char>(file), {});
  const Json json = Json::parse(mark.text, nullptr, false);
  if (!json.is_object()) return mark;
  const auto number = [&](const char* name) {
    const auto found = json.find(name);
    return found != json.end() && found->is_number_unsigned() ? found->get<std::size_t>() : 0;
  };
  if (const auto start = json.find("start"); start != json.end() && start->is_string()) mark.start = start->get<std::string>();
  mark.stage = number("stage");
  mark.step = number("step");
  mark.evaluated = number("evaluated");
  mark.has_begun = json.contains("began_step");
  mark.began_stage = number("began_stage");
  mark.began_step = number("began_step");
  return mark;
}

}  // namespace bitloom::launch
