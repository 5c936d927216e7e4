// Text that a GPT draws as it is trained.
#include <fmt/format.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/text_samples.h"
#include "core/clock.h"
#include "core/safetensors.h"
#include "models/gpt/model_file.h"
#include "tests/cli/gpt_run.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

// (step, text) of a run's metrics.
std::vector<std::pair<std::uint64_t, std::string>> texts_of(const std::filesystem::path& run) {
  std::vector<std::pair<std::uint64_t, std::string>> texts;
  std::istringstream lines(read_file(run / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json event = nlohmann::json::parse(line);
    if (event.at("event") == "samples") texts.emplace_back(event.at("step"), event.at("text"));
  }
  return texts;
}

// Makes of a GPT's model one that draws the same token again and again, and never the end of a document.
void write_endless(const std::filesystem::path& model, const std::filesystem::path& out) {
  TensorFile file = TensorFile::load(model);
  const std::size_t width = file.get("norm.bias").size();
  const auto end = static_cast<std::size_t>(models::tokenizer_of_file(TensorReader::open(model), "model")->end_of_text());
  // Hidden states are then this one, whose product with the token's own row is the logit.
  std::vector<float> away;
  for (const float x : file.get("embedding.tokens").as<float>().subspan(end * width, width)) away.push_back(-1e5F * x);
  file.put("norm.gain", {width}, std::vector<float>(width, 0.0F));
  file.put("norm.bias", {width}, away);
  file.save(out);
}

}  // namespace

TEST_CASE("a GPT draws texts as it is trained, which changes nothing of what it learns", "[gpt]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const Args sampled = {"--sample-every", "5", "--sample-prompt", "1 and", "--sample-tokens", "20"};
  const Outcome shown = run_program(folder.path(), with(quick_gpt("shown"), sampled));
  INFO(shown.out << shown.err);
  REQUIRE(shown.code == 0);
  const auto texts = texts_of(folder / "shown");
  REQUIRE(texts.size() == 3);  // after steps 5, 10 and 12, the last
  CHECK(texts[0].first == 5);
  CHECK(texts[2].first == 12);
  for (const auto& [step, text] : texts) {
    INFO(step);
    CHECK(text.starts_with("1 and"));
    CHECK(text.size() > 5);
    CHECK(has(shown.out, "\n  \"" + cli::in_one_line(text, 140) + "\"\n"));
  }
  REQUIRE(run_program(folder.path(), with(quick_gpt("silent"), {"--sample-every", "0"})).code == 0);
  CHECK(texts_of(folder / "silent").empty());
  CHECK(same_tensors(folder / "shown/model.safetensors", folder / "silent/model.safetensors"));

  // A run that goes on draws the texts of later steps alone.
  {
    const Hold hold(folder.path(), 7);
    Background background(folder.path(), with(with(quick_gpt("stopped"), sampled), Hold::option()));
    REQUIRE(background.wait_for("  \"1 and"));
    background.signal(SIGTERM);
    CHECK(background.wait().code == 4);
  }
  REQUIRE(run_program(folder.path(), {"train", "gpt", "--resume", "--out", "stopped"}).code == 0);
  CHECK(texts_of(folder / "stopped") == texts);

  const Outcome automatic = run_program(folder.path(), quick_gpt("automatic"));
  REQUIRE(automatic.code == 0);
  CHECK(!texts_of(folder / "automatic").empty());
  REQUIRE(run_program(folder.path(), {"report", "shown"}).code == 0);
  CHECK(has(read_file(folder / "shown/report.html"), "Text by step"));

  // Runs on one page: what differs is shown, what does not is not.
  REQUIRE(run_program(folder.path(), {"report", "shown", "silent/", "--out", "both.html"}).code == 0);
  const std::string page = read_file(folder / "both.html");
  for (const char* part : {"<h1>2 runs</h1>", ">shown<", ">silent<", ">sample-every<", "Loss by time"}) CHECK(has(page, part));
  CHECK(!has(page, ">batch<"));
  CHECK(run_program(folder.path(), {"report", "shown", "absent"}).code == 3);
  const Outcome pictured = run_program(folder.path(), {"report", "shown", "silent", "--picture", "both.svg"});
  CHECK(pictured.code == 2);
  CHECK(has(pictured.err, "--picture: 'both.svg'; expected one run, not 2"));

  // Rank 0 draws where two processes share the sequences; none does where the net is in parts.
  const Outcome both = run_ranks(folder.path(), 2, with(quick_gpt("both"), sampled));
  INFO(both.out << both.err);
  REQUIRE(both.code == 0);
  CHECK(texts_of(folder / "both").size() == 3);
  const Outcome parts = run_ranks(folder.path(), 2, with(quick_gpt("parts"), {"--pipeline", "2"}));
  INFO(parts.out << parts.err);
  REQUIRE(parts.code == 0);
  CHECK(texts_of(folder / "parts").empty());
  const Args in_parts = with(quick_gpt("refused"), {"--pipeline", "2"});
  CHECK(run_ranks(folder.path(), 2, with(in_parts, {"--sample-tokens", "9"})).code == 2);
  const Outcome refused = run_ranks(folder.path(), 2, with(in_parts, sampled));
  CHECK(refused.code == 2);
  CHECK(has(refused.err, "--sample-every: 5 has no effect where processes have parts of the net"));
}

TEST_CASE("options of texts that cannot be are refused", "[gpt]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const auto refused = [&](const Args& more) {
    const Outcome done = run_program(folder.path(), with(quick_gpt("run"), more));
    CHECK(done.code == 2);
    return done.err;
  };
  CHECK(has(refused({"--sample-every", "often"}), "--sample-every: 'often'; expected auto or a number of steps"));
  CHECK(has(refused({"--sample-every", "0", "--sample-prompt", "a"}), "--sample-prompt"));
  CHECK(has(refused({"--sample-tokens", "0"}), "--sample-tokens"));
}

// The first worker alone looked at its options, and the others waited for it.
TEST_CASE("of workers that train by themselves the first draws texts, and all refuse what cannot be", "[gpt]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const Args local = {"--exchange", "local", "--inner-steps", "4"};
  const Outcome done = run_ranks(folder.path(), 2, with(with(quick_gpt("run"), local), {"--sample-every", "6"}));
  INFO(done.out << done.err);
  REQUIRE(done.code == 0);
  CHECK(texts_of(folder / "run").size() == 2);
  const Outcome refused = run_ranks(folder.path(), 2, with(with(quick_gpt("other"), local), {"--sample-every", "often"}));
  CHECK(refused.code == 2);
  CHECK(has(refused.err, "--sample-every: 'often'"));
}

// The others waited for the end in one call, for up to 60 s: with a shorter watchdog such runs died at every text.
TEST_CASE("a process may draw a text for longer than the others wait for it without a sign of life", "[gpt][mpi]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  REQUIRE(run_program(folder.path(), with(quick_gpt("net", 1), {"--sample-every", "0"})).code == 0);
  write_endless(folder / "net/model.safetensors", folder / "endless.safetensors");
  constexpr double some = 20000;
  const Clock::time_point start = Clock::now();
  REQUIRE(
      run_program(folder.path(), {"sample", "endless.safetensors", "--prompt", "1", "--tokens", fmt::format("{:.0f}", some)})
          .code == 0);
  constexpr double watchdog = 8;
  auto tokens = static_cast<std::size_t>(2 * watchdog * some / seconds_since(start));
  // Longer texts until one takes long enough, start-up included: a machine may be faster by then, or less busy.
  for (double taken = 0; taken < watchdog + 2; tokens *= 2) {
    std::filesystem::remove_all(folder / "run");
    const Args slow = {"--init",
                       "endless.safetensors",
                       "--learning-rate",
                       "1e-6",
                       "--sample-every",
                       "1",
                       "--watchdog-seconds",
                       fmt::format("{}", watchdog),
                       "--sample-tokens",
                       fmt::format("{}", tokens)};
    const Clock::time_point begin = Clock::now();
    const Outcome outcome = run_ranks(folder.path(), 2, with(quick_gpt("run", 1), slow));
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    taken = seconds_since(begin);
    const auto texts = texts_of(folder / "run");
    REQUIRE(texts.size() == 1);
    CHECK(texts.front().second.size() >= tokens);  // none was left out
  }
}

TEST_CASE("a text in one line keeps whole characters") {
  CHECK(cli::in_one_line("a\nb\tc", 10) == "a b c");
  CHECK(cli::in_one_line("\xc3\xa4\xc3\xb6\xc3\xbc", 3) == "\xc3\xa4\xc3\xb6\xc3\xbc");
  CHECK(cli::in_one_line("\xc3\xa4\xc3\xb6\xc3\xbc", 2) == "\xc3\xa4\xc3\xb6...");
}
