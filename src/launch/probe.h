// Asking hosts whether they are there, and whether they are about to be taken away.
#pragma once

#include <string>
#include <vector>

#include "launch/hosts.h"

namespace bitloom::launch {

// Each question has this long for the notice, on top of what it takes to reach a host; so has a run that asks by itself, or it
// would stop on a host which is taken again at once.
inline constexpr double notice_seconds = 5;

enum class Presence { absent, leaving, there };

// The agent and its options, which go before the name of a host: ssh asks nobody for a password, and gives up on a host that
// does not answer within seconds instead of minutes.
std::vector<std::string> agent_command(const std::string& agent);

// A program that asks a host through an agent (AGENT HOST COMMAND), or this machine for an empty one. `notice` is a shell
// command that ends with 0 on a host that is about to be taken away, or empty; it counts as saying no after notice_seconds. The
// host "localhost" needs no agent.
std::vector<std::string> probe_command(const std::string& agent, const Host& host, const std::string& notice);
// Meaning of its exit code.
Presence presence_of(int code);

}  // namespace bitloom::launch
