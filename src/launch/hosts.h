// Which machines a run may use: host files as Open MPI reads them, and Slurm's lists of hosts.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace bitloom::launch {

struct Host {
  std::string name;
  std::size_t slots = 1;  // processes that it takes

  bool operator==(const Host&) const = default;
};

// "node[01-04,7],login" to node01, node02, node03, node04, node7, login (slurm.conf(5), NodeName). Throws a usage error that
// begins with `where` for anything else.
std::vector<std::string> expand_hosts(const std::string& where, const std::string& text);

// A host, or a list of hosts as above, per line, followed by "slots=N"; '#' begins a comment. A host that comes again has the
// slots of all its lines. Throws a data error if the file cannot be read, and usage errors that name file and line.
std::vector<Host> read_hostfile(const std::filesystem::path& path);

}  // namespace bitloom::launch
