#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/metrics.h"
#include "tests/support/catch.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using nlohmann::json;

TEST_CASE("metrics come back in order", "[metrics]") {
  const test::TempDir folder;
  MetricsWriter writer(folder / "metrics.jsonl");
  CHECK(writer.size() == 0);
  const std::vector<json> lines{
      {{"step", 1}, {"loss", 2.5}}, {{"step", 2}, {"note", "two\nlines, \"quoted\""}}, json::object()};
  for (const json& line : lines) writer.write(line);
  // Before the writer is closed: a report may be made of a run in progress.
  CHECK(read_metrics(folder / "metrics.jsonl") == lines);
  CHECK(test::read_file(folder / "metrics.jsonl").size() == writer.size());
  writer.sync();
}

TEST_CASE("numbers that JSON lacks become null, broken UTF-8 does not stop a run", "[metrics]") {
  const test::TempDir folder;
  MetricsWriter writer(folder / "metrics.jsonl");
  writer.write({{"loss", std::nan("")}, {"limit", INFINITY}});
  writer.write({{"image", "\xff.png"}});
  const std::vector<json> lines = read_metrics(folder / "metrics.jsonl");
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["loss"].is_null());
  CHECK(lines[0]["limit"].is_null());
  CHECK(lines[1]["image"] == "\xEF\xBF\xBD.png");
}

TEST_CASE("a resumed run repeats no line", "[metrics]") {
  const test::TempDir folder;
  const auto path = folder / "metrics.jsonl";
  std::uint64_t checkpoint = 0;
  {
    MetricsWriter writer(path);
    writer.write({{"step", 1}});
    checkpoint = writer.size();
    writer.write({{"step", 2}});
    writer.write({{"step", 3}});
  }
  MetricsWriter writer(path);
  CHECK(writer.size() > checkpoint);
  CHECK(writer.truncate_to(checkpoint) == checkpoint);
  writer.write({{"step", 2}});
  CHECK(read_metrics(path) == std::vector<json>{{{"step", 1}}, {{"step", 2}}});
  // Lines that were lost must not stop a run.
  const std::uint64_t size = writer.size();
  CHECK(writer.truncate_to(size + 1000) == size);
  CHECK(read_metrics(path).size() == 2);
}

TEST_CASE("a last line that a crash tore is left out by the reader and cut off by the writer", "[metrics]") {
  const test::TempDir folder;
  const auto path = folder / "metrics.jsonl";
  const std::string line = R"({"step":1})";
  // The second file has a torn line that is longer than the writer's search step.
  for (const std::string& torn :
       {line.substr(0, 5), R"({"text":")" + std::string(10000, 'x'), std::string("{"), std::string("7")}) {
    test::write_file(path, line + "\n" + torn);
    CHECK(read_metrics(path) == std::vector<json>{{{"step", 1}}});
    MetricsWriter writer(path);
    CHECK(writer.size() == line.size() + 1);
    writer.write({{"step", 2}});
    CHECK(read_metrics(path) == std::vector<json>{{{"step", 1}}, {{"step", 2}}});
  }
  test::write_file(path, line.substr(0, 5));
  CHECK(read_metrics(path).empty());
  CHECK(MetricsWriter(path).size() == 0);
}

TEST_CASE("a damaged line is named", "[metrics]") {
  const test::TempDir folder;
  const auto path = folder / "metrics.jsonl";
  for (const char* bad : {"{\"step\":", "7", "", "nonsense"}) {
    test::write_file(path, std::string("{}\n") + bad + "\n{}\n");
    try {
      read_metrics(path);
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::data);
      CHECK(std::string(error.what()) == "'" + path.string() + "', line 2: not a JSON object");
    }
  }
}

// They were copied level by level, for which the stack has room for some.
TEST_CASE("a line nested very deeply is refused", "[metrics]") {
  const test::TempDir folder;
  const std::string deep = "{\"a\": " + std::string(200000, '[') + std::string(200000, ']') + "}";
  test::write_file(folder / "metrics.jsonl", "{}\n" + deep + "\n");
  const std::string message = test::message_of(ErrorKind::data, [&] { read_metrics(folder / "metrics.jsonl"); });
  CHECK(test::has(message, "line 2: not a JSON object of at most 100 levels"));
}

TEST_CASE("metrics that cannot be written are an io error, and the file keeps whole lines", "[metrics]") {
  const test::TempDir folder;
  CHECK_THROWS_AS(MetricsWriter(folder / "nowhere" / "metrics.jsonl"), Error);
  CHECK_THROWS_AS(MetricsWriter(folder.path()), Error);
  CHECK_THROWS_AS(MetricsWriter("/dev/full"), Error);

  const auto path = folder / "metrics.jsonl";
  MetricsWriter writer(path);
  writer.write({{"step", 1}});
  ErrorKind kind = ErrorKind::internal;
  try {
    const test::FileSizeLimit full(100);
    writer.write({{"text", std::string(1000, 'x')}});
  } catch (const Error& error) {
    kind = error.kind();
  }
  CHECK(kind == ErrorKind::io);
  CHECK(test::read_file(path) == "{\"step\":1}\n");
  writer.write({{"step", 2}});
  CHECK(read_metrics(path).size() == 2);
}

TEST_CASE("a metrics writer can be moved", "[metrics]") {
  const test::TempDir folder;
  MetricsWriter first(folder / "a");
  MetricsWriter second = std::move(first);
  second.write({{"step", 1}});
  MetricsWriter third(folder / "b");
  third = std::move(second);
  third.write({{"step", 2}});
  CHECK(read_metrics(folder / "a").size() == 2);
  CHECK(read_metrics(folder / "b").empty());
}

TEST_CASE("metrics do not go through a symbolic link", "[metrics]") {
  const test::TempDir folder;
  test::write_file(folder / "precious", "no line end");
  std::filesystem::create_symlink(folder / "precious", folder / "metrics.jsonl");
  const std::string message = test::message_of(ErrorKind::io, [&] { MetricsWriter{folder / "metrics.jsonl"}; });
  CHECK(test::has(message, "is a symbolic link"));
  CHECK(test::has(message, "metrics.jsonl"));
  CHECK(test::read_file(folder / "precious") == "no line end");
}

// Lines went to a file without a name, and nobody was told.
TEST_CASE("metrics whose file was deleted or replaced are an error", "[metrics]") {
  const test::TempDir folder;
  const auto path = folder / "metrics.jsonl";
  MetricsWriter writer(path);
  writer.write({{"step", 1}});
  std::filesystem::remove(path);
  CHECK(test::has(test::message_of(ErrorKind::io, [&] { writer.write({{"step", 2}}); }), "was deleted or replaced"));
  CHECK(test::has(test::message_of(ErrorKind::io, [&] { writer.sync(); }), path.string()));
  test::write_file(path, "");
  CHECK(test::has(test::message_of(ErrorKind::io, [&] { writer.write({{"step", 2}}); }), "was deleted or replaced"));
  CHECK(test::read_file(path).empty());
}
