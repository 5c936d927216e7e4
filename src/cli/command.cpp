#include "cli/command.h"

#include "cli/options.h"

namespace bitloom::cli {

bool parse_or_show_help(Session& session, std::span<const std::string> args, Options& options) {
  if (!options.parse(args)) {
    session.terminal.line(options.help());
    return false;
  }
  options.finish();
  return true;
}

}  // namespace bitloom::cli
