#include "cli/run_folder.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "cli/field_names.h"
#include "cli/model_source.h"
#include "core/error.h"
#include "core/file.h"
#include "core/metrics.h"
#include "core/text.h"
#include "models/model_kind.h"

namespace bitloom::cli {

using Json = nlohmann::json;

std::string default_folder(const std::string& net) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  std::array<char, 32> date{};
  const std::size_t length = std::strftime(date.data(), date.size(), "%Y%m%d-%H%M%S", &parts);
  return fmt::format("runs/{}-{}", std::filesystem::path(net).stem().string(), std::string_view(date.data(), length));
}

std::string shell_word(const std::string& text) {
  const bool is_plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("/._-+=,:@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (is_plain) return text;
  std::string quoted;
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return "'" + quoted + "'";
}

std::string resume_command(const std::string& kind, const std::string& folder) {
  return fmt::format("bitloom train {} --resume --out {}", kind, shell_word(folder));
}

std::string kept_path(const std::string& path) {
  return path.empty() ? path : std::filesystem::absolute(path).lexically_normal().string();
}

std::string kept_tokenizer(const std::string& spec) { return spec == "bytes" || spec == "auto" ? spec : kept_path(spec); }

Continuation continuation_of(const std::string& kind, const std::string& folder) {
  return {resume_command(kind, folder), std::filesystem::path(folder) / options_file};
}

namespace {

std::set<std::string> lines_of(const std::string& ini) {
  std::set<std::string> lines;
  std::istringstream stream(ini);
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  return lines;
}

// Refuses a command line that --resume cannot go on with. stored: the run's options.
void check_resumed(const Options& options, const std::string& out, const std::string& stored) {
  const std::string command = options.command();
  if (const auto kind = stated_kind_of_run(out); kind && !command.ends_with(" " + *kind)) {
    fail(ErrorKind::usage, "--resume: the run in {} is one of `bitloom train {}`; `{}` goes on with it", out, *kind,
         resume_command(*kind, out));
  }
  if (!options.has("init") || !options.is_asked_for("init")) return;
  // The run has begun: another beginning would change nothing but what its options say.
  const std::string given = options.raw("init");
  const std::string key = "init = ";
  for (const std::string& line : lines_of(stored)) {
    if (line.starts_with(key) && !given.empty() && kept_path(line.substr(key.size())) == kept_path(given)) return;
  }
  fail(ErrorKind::usage, "--init: {} with --resume; the run in {} has begun already, and not from it", given, out);
}

}  // namespace

bool read_with_resume(Session& session, std::span<const std::string> args, Options& options) {
  if (!session.comm.together([&] { return options.parse(args); })) {
    session.terminal.line(options.help());
    return false;
  }
  if (options.source("resume") != Options::Source::none && options.raw("resume") != "false") {
    const std::string out = options.raw("out");
    if (out.empty()) fail(ErrorKind::usage, "--resume: needs --out, the folder of the run to continue");
    const std::filesystem::path ini = std::filesystem::path(out) / options_file;
    std::string text;
    session.on_root([&] {  // other ranks may be on other hosts
      if (!std::filesystem::exists(ini)) fail(ErrorKind::usage, "--resume: there is no run in {}", out);
      text = read_text(ini);
      check_resumed(options, out, text);
    });
    options.read_ini(session.comm.broadcast_text(text), ini.string(), Options::Source::run);
  }
  options.finish();
  return true;
}

std::size_t micro_batch_of_run(const std::filesystem::path& folder, std::size_t batch) {
  const std::filesystem::path metrics = folder / metrics_file;
  if (!std::filesystem::exists(metrics)) return 0;
  std::size_t found = 0;
  for (const Json& line : read_metrics(metrics)) {
    const Json number = line.value("micro_batch", Json());
    if (line.value("event", Json()) != "start" || line.value("batch", Json()) != batch) continue;
    if (number.is_number_unsigned()) found = number.get<std::size_t>();
  }
  return found;
}

std::vector<std::string> asked_otherwise(const Options& options, const std::string& ini) {
  // Lines by the option's name, which may be there several times; paths as runs keep them.
  const auto by_name = [](const std::string& text) {
    std::map<std::string, std::set<std::string>> values;
    for (const std::string& line : lines_of(text)) {
      const std::size_t equals = std::min(line.find('='), line.size());
      const std::string name(trim(line.substr(0, equals)));
      if (!name.empty()) values[name].emplace(trim(line.substr(std::min(equals + 1, line.size()))));
    }
    return values;
  };
  const auto absolute = [](const std::set<std::string>& values) {
    std::set<std::string> paths;
    for (const std::string& value : values) paths.insert(kept_path(value));
    return paths;
  };
  const std::map<std::string, std::set<std::string>> of_run = by_name(ini);
  std::map<std::string, std::set<std::string>> asked = by_name(options.to_ini());
  for (const auto& [name, values] : of_run) {
    if (options.has(name) && options.is_asked_for(name) && options.raw(name).empty()) asked[name];  // has no line of its own
  }
  // They say how a run goes on, not what becomes of it.
  const std::set<std::string> harmless = {"checkpoint-seconds", "log-every"};
  std::vector<std::string> others;
  for (const auto& [name, values] : asked) {
    if (!options.is_asked_for(name) || harmless.contains(name)) continue;
    const auto before = of_run.find(name);
    if (before != of_run.end() && (before->second == values || absolute(before->second) == absolute(values))) continue;
    for (const std::string& value : values) others.push_back(fmt::format("{} = {}", name, value));
    if (values.empty()) others.push_back(name + " =");
  }
  return others;
}

Json result_of(const std::vector<Json>& metrics) {
  const auto event = [](const Json& line) { return line.value("event", Json()); };
  const auto last = std::find_if(metrics.rbegin(), metrics.rend(), [&](const Json& line) { return event(line) != "test"; });
  return last != metrics.rend() && event(*last) == "result" ? *last : Json();
}

bool is_untested(const std::vector<Json>& metrics) {
  const auto is = [](const char* event) { return [event](const Json& line) { return line.value("event", Json()) == event; }; };
  if (metrics.empty() || !is("result")(metrics.back())) return false;
  const auto start = std::find_if(metrics.rbegin(), metrics.rend(), is("start"));
  if (start == metrics.rend() || start->value("kind", Json()) != models::cnn_kind) return false;
  const Json images = start->value("test_images", Json());
  return images.is_number_unsigned() && images != 0;
}

void LoggedProgress::line(std::string_view text) {
  terminal_.open_log(log_);
  terminal_.line(with_options(text));
}

void LoggedProgress::update(std::string_view text) {
  terminal_.open_log(log_);
  terminal_.update(with_options(text));
}

}  // namespace bitloom::cli
