#include "launch/probe.h"

#include <fmt/format.h>

#include <filesystem>

namespace bitloom::launch {
namespace {

constexpr int leaving_code = 75;  // EX_TEMPFAIL of sysexits.h: nothing that ssh or a shell ends with by itself

// As one word of a shell.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

}  // namespace

std::vector<std::string> agent_command(const std::string& agent) {
  if (std::filesystem::path(agent).filename() != "ssh") return {agent};
  return {agent, "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"};
}

std::vector<std::string> probe_command(const std::string& reached_by, const Host& host, const std::string& notice) {
  // mpirun starts processes of that name by itself: no server for ssh need run here.
  const std::string agent = host.name == "localhost" ? "" : reached_by;
  std::vector<std::string> command = {"true"};
  if (!notice.empty()) {
    const std::string script =
        fmt::format("if timeout {:g} sh -c {} >/dev/null 2>&1; then exit {}; fi", notice_seconds, quoted(notice), leaving_code);
    // The agent gives it to a shell there, of whatever kind.
    command = {"sh", "-c", agent.empty() ? script : quoted(script)};
  }
  if (agent.empty()) return command;
  std::vector<std::string> result = agent_command(agent);
  result.push_back(host.name);
  result.insert(result.end(), command.begin(), command.end());
  return result;
}

Presence presence_of(int code) {
  return code == 0 ? Presence::there : code == leaving_code ? Presence::leaving : Presence::absent;
}

}  // namespace bitloom::launch
