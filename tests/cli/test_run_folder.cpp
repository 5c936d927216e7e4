// Options that a run keeps, and how others that are asked for are told from them.
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/run_folder.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

using IniLines = std::vector<std::string>;

// Options of the command line that differ from those of a run.
IniLines options_asked_otherwise(const Args& args, const std::string& ini) {
  std::string images, teacher;
  std::vector<std::string> changes;
  std::size_t batch = 8;
  cli::Options options("bitloom train binary", "");
  options.text("data", images, "SPEC", "Images");
  options.text("teacher", teacher, "RUN", "Teacher");
  options.list("set", changes, "KEY=VALUE", "Changes of the net");
  options.count("batch", batch, 1, 100, "Images per update");
  REQUIRE(options.parse(args));
  options.read_ini(ini, "options.ini", cli::Options::Source::run);
  options.finish();
  return cli::asked_otherwise(options, ini);
}

std::string absolute_text(const std::string& path) { return std::filesystem::absolute(path).lexically_normal().string(); }

}  // namespace

// Some of an option's values were taken for all of them, and an empty one for none.
TEST_CASE("other options than those of a run are told from the same ones", "[run]") {
  const std::string ini =
      fmt::format("data = {}\nteacher = /taught\nset = a=1\nset = b=2\nbatch = 8\n", absolute_text("pictures"));
  const auto others = [&](const Args& args) { return options_asked_otherwise(args, ini); };
  CHECK(others({}).empty());
  CHECK(others({"--batch", "8", "--data", "pictures", "--teacher", "/taught", "--set", "b=2", "--set", "a=1"}).empty());
  CHECK(others({"--data", absolute_text("pictures")}).empty());
  CHECK(others({"--batch", "9"}) == IniLines{"batch = 9"});
  CHECK(others({"--data", "photos"}) == IniLines{"data = photos"});
  CHECK(others({"--set", "a=1"}) == IniLines{"set = a=1"});
  CHECK(others({"--set", "a=1", "--set", "b=3"}) == IniLines{"set = a=1", "set = b=3"});
  CHECK(others({"--teacher", ""}) == IniLines{"teacher ="});
  CHECK(options_asked_otherwise({"--teacher", ""}, "batch = 8\n").empty());
  CHECK(options_asked_otherwise({"--teacher", "taught"}, "batch = 8\n") == IniLines{"teacher = taught"});
}

TEST_CASE("runs keep absolute paths, and names that are none as they are", "[run]") {
  CHECK(cli::kept_path("a/../b") == absolute_text("b"));
  CHECK(cli::kept_path("").empty());
  CHECK(cli::kept_tokenizer("pairs") == absolute_text("pairs"));
  CHECK(cli::kept_tokenizer("bytes") == "bytes");
  CHECK(cli::kept_tokenizer("auto") == "auto");
}
