// A trained GPT in a grid of processes, none of which has it whole: the losses, answers, logits and texts of one process.
#include "models/gpt/forward.h"

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/gpt/evaluate.h"
#include "models/gpt/model_file.h"
#include "models/gpt/sampler.h"
#include "tests/models/gpt_nets.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"

using namespace bitloom;
using namespace bitloom::models;
using bitloom::test::world;

namespace {

using Ids = std::vector<std::int32_t>;

// Heads for 1 to 4 processes.
GptConfig config() {
  GptConfig config = test::small_gpt();
  config.layers = 3;
  config.heads = 12;
  config.width = 48;
  config.vocabulary = 257;
  return config;
}

// A net with its file, which rank 0 has.
struct Whole {
  Whole() : gpt(config()) {
    if (world().is_root()) save_gpt(gpt.engine, gpt.net, *data::load_tokenizer("bytes")).save(folder / "model");
  }
  test::SharpGpt gpt;
  test::TempDir folder;
};

struct Placed {
  Placed(const Whole& whole, const mpi::GridShape& shape)
      : grid(world(), shape),
        loaded(load_gpt(engine, grid, whole.folder / "model")),
        forward(engine, *loaded.net, grid, loaded.parts) {}

  nn::Engine engine{{}, "cpu"};
  mpi::Grid grid;
  LoadedGpt loaded;
  GptForward forward;
};

}  // namespace

TEST_CASE("a GPT in a grid measures and draws as one process does", "[gpt_forward]") {
  Whole whole;
  const GptForward one(whole.gpt.engine, whole.gpt.net);
  const Ids text = test::random_tokens(300, 257, 1);
  const TokenReader read = [&](std::uint64_t begin, std::span<std::int32_t> out) {
    // Rank 0 alone has the text.
    REQUIRE((world().is_root() || world().size() == 1));
    std::copy_n(text.begin() + static_cast<std::ptrdiff_t>(begin), out.size(), out.begin());
  };
  const TokenReader read_alone = [&](std::uint64_t begin, std::span<std::int32_t> out) {
    std::copy_n(text.begin() + static_cast<std::ptrdiff_t>(begin), out.size(), out.begin());
  };
  const PerplexityOptions windows{10, 3};
  const Perplexity expected = evaluate_perplexity(one, text.size(), read_alone, windows);
  std::vector<ClozePassage> passages;
  for (std::size_t i = 0; i < 11; ++i) passages.push_back({test::random_tokens(5 + 3 * i, 257, i), 1 + i % 3});
  const Ids prompt = test::random_tokens(9, 257, 2);
  // Half of them right.
  for (std::size_t i = 0; i < passages.size(); i += 2) {
    ClozePassage& passage = passages[i];
    passage.target = 1;
    SampleOptions greedy;
    greedy.temperature = 0;
    greedy.tokens = 1;
    const std::span<const std::int32_t> before(passage.tokens.data(), passage.tokens.size() - 1);
    passage.tokens.back() = sample(one, before, greedy)[0][0];
  }
  const ClozeAccuracy told = evaluate_cloze(one, passages, 2);
  REQUIRE(told.right >= 6);
  REQUIRE(told.right < told.passages);
  const std::vector<float> logits = token_logits(one, prompt);
  SampleOptions options;
  options.tokens = 60;  // more than a context
  options.count = 5;
  options.seed = 3;
  const auto drawn = sample(one, prompt, options);
  for (const mpi::GridShape& shape : mpi::shapes_of(world().size())) {
    INFO(mpi::described(shape));
    Placed placed(whole, shape);
    const Perplexity found = evaluate_perplexity(placed.forward, text.size(), read, windows);
    if (shape.tensor == 1) {
      CHECK(found.loss == expected.loss);
    } else {
      CHECK(std::abs(found.loss / expected.loss - 1) < 1e-6);
    }
    CHECK(found.tokens == expected.tokens);
    CHECK(found.windows == expected.windows);
    CHECK(found.is_complete);
    CHECK(evaluate_cloze(placed.forward, passages, 2).correct == told.correct);
    CHECK(test::compare(token_logits(placed.forward, prompt), logits, 1e-5) == "");
    for (const bool cache : {true, false}) {
      options.cache = cache;
      // Some data ranks have a group less.
      for (options.at_once = 0; options.at_once < 3; ++options.at_once) CHECK(sample(placed.forward, prompt, options) == drawn);
    }
  }
}

TEST_CASE("no process of a grid has a whole GPT", "[gpt_forward]") {
  Whole whole;
  const auto bytes = [](Placed& placed) { return placed.engine.pool().count(nn::Use::parameters).peak; };
  for (const mpi::GridShape& shape : mpi::shapes_of(world().size())) {
    if (shape.data > 1) continue;
    INFO(mpi::described(shape));
    Placed placed(whole, shape);
    const std::uint64_t all = config().parameters() * sizeof(float);
    // Positions, norms and biases are whole in each process of a group; the table is on the first and on the last stage.
    const double share = 1.0 / world().size();
    const auto table = static_cast<double>(config().padded_vocabulary() * config().width * sizeof(float));
    const double most = static_cast<double>(all) * share + table + 0.1 * static_cast<double>(all);
    CHECK(static_cast<double>(bytes(placed)) < (world().size() == 1 ? 1.01 * static_cast<double>(all) : most));
  }
}

TEST_CASE("a request to stop of one process stops all of a grid", "[gpt_forward]") {
  Whole whole;
  Placed placed(whole, {1, world().size(), 1});
  const int last = world().size() - 1;
  SampleOptions options;
  options.tokens = 20;
  std::size_t seen = 0;
  const auto drawn = sample(placed.forward, Ids{1, 2}, options,
                            [&](std::size_t, std::int32_t) { return ++seen < 4 || world().rank() != last; });
  CHECK(drawn[0].size() == 4);
  const Ids text = test::random_tokens(300, 257, 1);
  std::size_t rounds = 0;
  const Perplexity found = evaluate_perplexity(
      placed.forward, text.size(),
      [&](std::uint64_t begin, std::span<std::int32_t> out) {
        std::copy_n(text.begin() + static_cast<std::ptrdiff_t>(begin), out.size(), out.begin());
      },
      {10, 1}, [&](std::uint64_t, std::uint64_t) { return ++rounds < 2 || world().rank() != last; });
  CHECK_FALSE(found.is_complete);
  CHECK(found.windows == 2 * placed.forward.passes_at_once());
}

TEST_CASE("what is wrong with a GPT's file all processes of a grid say", "[gpt_forward]") {
  Whole whole;
  const auto message = [&] { return test::message_of(ErrorKind::data, [&] { Placed(whole, {1, 1, world().size()}); }); };
  TensorFile file;
  if (world().is_root()) {
    file = TensorFile::load(whole.folder / "model", Checksum::required);
    file.put("norm.gain", {47}, std::vector<float>(47));
    file.save(whole.folder / "model");
  }
  CHECK(test::has(message(), "the tensor 'norm.gain' is F32[47], expected F32[48]"));
  if (world().is_root()) {
    file.tensors.erase("norm.gain");
    file.save(whole.folder / "model");
  }
  CHECK(test::has(message(), "has no tensor 'norm.gain'"));
  if (world().is_root()) std::filesystem::resize_file(whole.folder / "model", 5000);
  CHECK(test::has(message(), "is not a good safetensors file"));
  // Everybody is still there.
  CHECK(world().flag_any(world().rank() == 0));
}
