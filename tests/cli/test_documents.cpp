// README.md and EXAMPLES.md: their commands are run as a reader would, in order, in one folder with one cache, and do what they
// are there to show.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom::test;

namespace fs = std::filesystem;

namespace {

struct Block {
  std::string language;  // text after ``` in its first line; empty: commands of a shell
  std::vector<std::string> lines;
};

std::vector<Block> blocks_of(const std::string& document) {
  std::vector<Block> blocks;
  std::istringstream lines(document);
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) {
      inside = !inside;
      if (inside) blocks.push_back({line.substr(3), {}});
    } else if (inside) {
      blocks.back().lines.push_back(line);
    }
  }
  return blocks;
}

// Where a command cannot run as it stands, or is not to: `from` becomes `to`.
struct Change {
  const char* from;
  const char* to;
};

// Result that a command is there to show. `command` is how it begins or what it contains.
struct Expectation {
  const char* command;
  int code = 0;
  std::vector<const char*> says = {};  // in its output
  std::vector<const char*> does_not_say = {};
  std::vector<const char*> makes = {};  // files
  double accuracy = 0;                  // its last "test accuracy" is at least this, in per cent
};

const std::vector<Change> changes = {
    // Building is what made this test. What the script then runs is here in full.
    {"scripts/quickstart", "mpirun -n 2 $bitloom train binary --net tiny --data synth --out runs/quickstart"},
    // A small set in the same format instead of 162 MB.
    {"scripts/get-cifar10", "$bitloom data synth --train 300 --test 200 --out data/cifar-10-batches-bin"},
    {"--steps 600", "--steps 60 --warmup 6"},
    {"cmake --preset cuda && cmake --build build/cuda", "$bitloom info"},
    {"mpirun -n 8 build/cuda/bin/bitloom", "CUDA_VISIBLE_DEVICES= $bitloom"},
    {"build/cuda/bin/bitloom", "CUDA_VISIBLE_DEVICES= $bitloom"},
};

const char* const reused = "from the cache";

std::vector<Expectation> readme_expectations() {
  return {
      {.command = "scripts/quickstart", .does_not_say = {reused}, .makes = {"runs/quickstart/model.safetensors"}},
      {.command = "eval runs/quickstart", .says = {"checker", "test accuracy 87.90%"}},
      {.command = "inspect runs/quickstart", .says = {"bit-MACs", "layer2"}},
      {.command = "report runs/quickstart", .makes = {"runs/quickstart.html"}},
      {.command = "export runs/quickstart",
       .says = {"quickstart_scores()"},
       .makes = {"runs/quickstart.c", "runs/quickstart.h"}},
      {.command = "--net cifar-small", .code = 4, .makes = {"runs/cifar/checkpoint.safetensors"}},
      {.command = "--resume --out runs/cifar",
       .says = {"layer2 epoch 8/8"},
       .makes = {"runs/cifar/model.safetensors"},
       .accuracy = 15},
      {.command = "eval runs/cifar", .says = {"test accuracy"}},
      {.command = "report runs/cifar", .makes = {"runs/cifar.html"}},
      {.command = "train cnn", .says = {"net 'tiny'"}, .makes = {"runs/float/model.safetensors"}},
      {.command = "train gpt", .says = {"step 60/60", "validation loss"}, .makes = {"runs/gpt/model.safetensors"}},
      {.command = "sample runs/gpt", .says = {"The "}},
      {.command = "report runs/gpt", .makes = {"runs/gpt.html"}},
      {.command = "--out runs/two", .says = {"2 processes"}, .does_not_say = {reused}, .accuracy = 30},
      {.command = "--out runs/sparse", .says = {"launch: done after 1 start"}, .does_not_say = {reused}, .accuracy = 25},
      {.command = "plan --net tiny", .says = {"16 hosts with links of 10Mbit/20ms", "price"}},
  };
}

std::vector<Expectation> examples_expectations() {
  return {
      {.command = "info --measure", .says = {"cores"}},
      {.command = "data sheet", .makes = {"data/sheet.png"}},
      {.command = "--out data/shapes", .makes = {"data/shapes/test_batch.bin"}},
      {.command = "data info", .says = {"2000"}},
      {.command = "train binary --config", .does_not_say = {reused}, .makes = {"runs/first/options.ini"}, .accuracy = 20},
      {.command = "eval runs/first", .says = {"test accuracy", " views of each"}},
      {.command = "predict runs/first", .says = {"data/sheet.png"}},
      {.command = "--out data/first.onnx",
       .says = {"data/first.onnx: ONNX", "image, bytes (N, 3, 32, 32)"},
       .makes = {"data/first.onnx"}},
      {.command = "--to qonnx", .says = {"image, bytes (1, 3, 32, 32)", "the mean of 1 votes"}, .makes = {"data/first.qonnx"}},
      {.command = "--out data/pictures", .makes = {"data/pictures/train/square/00000.png"}},
      {.command = "--out runs/pictures", .does_not_say = {reused}, .accuracy = 15},
      {.command = "predict runs/pictures data", .says = {"data/pictures/test/ring/00000.png: "}},
      {.command = "predict runs/pictures -", .says = {"\"file\":\"data/pictures/test/ring/00001.png\"", "\"ring\":0."}},
      {.command = "layer2.width=64,128,256", .says = {"layer1: not trained, taken from the cache", "layer2.width=256"}},
      {.command = "report runs/search --out", .makes = {"runs/search.html"}},
      {.command = "--tensorboard", .makes = {"data/board/runs/search/layer2.width=64/events.out.tfevents.0.bitloom"}},
      {.command = "--out runs/spread", .says = {"layer2.width=128"}},
      {.command = "--out runs/exact", .does_not_say = {reused}, .accuracy = 20},
      {.command = "inspect runs/exact --flips", .says = {"lower it by themselves"}, .makes = {"runs/exact/flips.json"}},
      {.command = "--out runs/taught", .says = {"runs/first/model.safetensors labelled 1800 images"}, .does_not_say = {reused}},
      {.command = "--out runs/copies", .says = {"outputs of frozen layers are cached"}, .does_not_say = {reused}},
      {.command = "--out data/net.c", .says = {"net_scores()"}, .makes = {"data/net.c", "data/net.h"}},
      {.command = "data/net data/noise.ppm", .says = {"data/noise.ppm: "}},
      {.command = "--out runs/control", .does_not_say = {reused}, .accuracy = 12},
      {.command = "--out runs/cnn\n", .makes = {"runs/cnn/model.safetensors"}, .accuracy = 25},
      {.command = "eval runs/cnn", .says = {"test accuracy"}},
      {.command = "predict runs/cnn", .says = {"data/sheet.png"}},
      {.command = "report runs/cnn", .makes = {"runs/cnn.html"}},
      {.command = "--out runs/cnn-own", .says = {"bf16"}, .accuracy = 20},
      {.command = "--out runs/cnn-taught", .says = {"runs/cnn-own/model.safetensors labelled 1800 images"}, .accuracy = 18},
      {.command = "--out runs/cnn-two", .says = {"in 2 processes"}, .accuracy = 18},
      {.command = "--out runs/cnn-stages", .says = {"2 processes: 1 data-parallel x 2 stages (1f1b)"}, .accuracy = 18},
      {.command = "--out runs/cnn-launched", .says = {"launch: done after 1 start"}, .accuracy = 18},
      {.command = "--out runs/cnn-local",
       .says = {"joins the 3 workers of this job", "launch: done after 1 start"},
       .accuracy = 14},
      {.command = "plan cnn --net airbench94 --dtype bf16\n", .says = {"4 bits of activations"}},
      {.command = "plan cnn --net airbench94 --dtype bf16 --ranks 8", .says = {"8 x 1 x 1", "--exchange local"}},
      {.command = "export runs/cnn", .makes = {"data/exported-cnn/model.safetensors"}},
      {.command = "import cnn", .makes = {"data/imported-cnn.safetensors"}},
      {.command = "--out runs/hosts", .says = {"launch: done after 1 start"}},
      {.command = "simulate", .says = {"200"}},
      {.command = "tokenizer train", .makes = {"data/pages.bpe"}},
      {.command = "tokenizer info", .says = {"600"}},
      {.command = "data text", .makes = {"data/pages"}},
      {.command = "--out runs/gpt-bpe", .says = {"step 40/40"}},
      {.command = "eval runs/gpt-bpe", .says = {"perplexity"}},
      {.command = "--init runs/gpt-bpe", .says = {"step 20/20"}},
      {.command = "--resume --steps 30", .says = {"step 30/30"}},
      {.command = "--out runs/gpt-dropout", .says = {"step 20/20"}},
      {.command = "--out runs/gpt-deep", .says = {"step 10/10"}},
      {.command = "--out runs/gpt-two", .says = {"step 20/20"}},
      {.command = "--out runs/gpt-factors", .says = {"step 20/20"}},
      {.command = "--out runs/gpt-hosts",
       .says = {"parameters sharded by 2", "gradients go by factors of rank 8", "step 20/20"}},
      {.command = "for w in 1 2; do",
       .says = {"local steps: worker 1 sends 10% of what it learns in 10 steps"},
       .makes = {"runs/gpt-local-1/model.safetensors", "runs/gpt-local-2/model.safetensors"}},
      {.command = "--out runs/gpt-local-job",
       .says = {"joins the 3 workers of this job", "step 20/20", "launch: done after 1 start"},
       .makes = {"runs/gpt-local-job/exchange/states/00000002.safetensors"}},
      {.command = "--out runs/gpt-local-pairs",
       .says = {"joins the 2 workers of this job", "2 processes: 2 data-parallel", "step 20/20"}},
      {.command = "--log-events 2", .says = {"2 stages (1f1b) x 2 tensor-parallel", "step 20/20"}},
      {.command = "--resume --steps 24", .says = {"parameters sharded", "going on from step 20", "step 24/24"}},
      {.command = "report runs/gpt-grid", .makes = {"runs/gpt-grid.html"}},
      {.command = "eval runs/gpt-grid", .says = {"perplexity"}},
      {.command = "sample runs/gpt-grid", .says = {"A net"}},
      {.command = "selftest", .says = {"76 of 76 layouts agree"}},
      {.command = "--out runs/gpt-launched", .says = {"2 data-parallel x 2 stages", "step 20/20"}},
      {.command = "plan gpt --net gpt2-124m --memory", .says = {"GiB"}},
      {.command = "plan gpt --net gpt2-355m", .says = {"best first", "tokens/s"}},
      {.command = "plan gpt --net gpt2-124m --batch 64",
       .says = {"by factors of a rank", "links of 10Mbit/100ms: local steps"}},
      {.command = "plan gpt --net 8.3b", .says = {"16 x 4 x 8", "bubble"}, .does_not_say = {"does not fit"}},
      {.command = "plan shape \"amoebanet-d(18,208)\"", .says = {"best first", "images/s"}},
      {.command = "plan shape transformer-103", .says = {"1 x 8 x 1"}, .does_not_say = {"does not fit"}},
      {.command = "--out runs/gpt-bytes", .says = {"step 20/20"}},
      {.command = "export runs/gpt-bytes",
       .makes = {"data/exported/model.safetensors", "data/exported/config.json", "data/exported/tokenizer.json"}},
      {.command = "--to gguf", .says = {"matrices in q8_0"}, .makes = {"data/exported.gguf"}},
      {.command = "--out data/gpt.onnx", .says = {"past_key_values.N.key", "matrices in f32"}, .makes = {"data/gpt.onnx"}},
      {.command = "import gpt", .makes = {"data/imported.safetensors"}},
      {.command = "verify", .says = {"data/imported.safetensors"}},
      {.command = "--out data/scenes\n", .says = {"held out: "}, .makes = {"data/scenes/held-out.jsonl"}},
      {.command = "data pairs data/scenes --check-scenes",
       .says = {"200 pairs", "all               100.00%"},
       .makes = {"data/scenes.png"}},
      {.command = "--out data/scenes-held-out\n", .makes = {"data/scenes-held-out/captions.jsonl"}},
      {.command = "data clean", .makes = {"data/clean.jsonl"}},
      {.command = "fewbit", .makes = {"data/gelu.png"}},
      {.command = "train dvae", .says = {"step 60/60", "validation PSNR"}, .makes = {"runs/dvae/model.safetensors"}},
      {.command = "eval runs/dvae", .says = {"lower bound", "perplexity"}},
      {.command = "encode runs/dvae", .makes = {"data/scenes-tokens.safetensors"}},
      {.command = "reconstruct runs/dvae", .makes = {"data/scenes-grid.png"}},
      {.command = "report runs/dvae", .makes = {"runs/dvae.html"}},
      {.command = "--out runs/dalle-shards",
       .says = {"4 data-parallel, parameters sharded by 2", "factors of rank 8"},
       .makes = {"runs/dalle-shards/model.safetensors"}},
      {.command = "--out runs/dalle-grid",
       .says = {"2 stages (1f1b) x 2 tensor-parallel"},
       .makes = {"runs/dalle-grid/model.safetensors"}},
      {.command = "--out runs/dalle\n",
       .says = {"step 60/60", "validation loss"},
       .makes = {"runs/dalle/model.safetensors", "runs/dalle/samples/step-60.png"}},
      {.command = "report runs/dalle", .makes = {"runs/dalle.html"}},
      {.command = "eval runs/dalle", .says = {"another's caption"}},
      {.command = "train clip", .says = {"step 60/60", "retrieval at the end"}, .makes = {"runs/clip/model.safetensors"}},
      {.command = "report runs/clip", .makes = {"runs/clip.html"}},
      {.command = "eval runs/clip", .says = {"caption of an image"}},
      {.command = "sample runs/dalle --prompt ", .says = {"8 of 16 images", "images/s"}, .makes = {"data/drawn.png"}},
      {.command = "sample runs/dalle --prompts", .says = {"prompts", "images/s"}, .makes = {"data/drawn/captions.jsonl"}},
      {.command = "data pairs data/drawn", .says = {"colour and shape"}},
      {.command = "$bitloom compare", .says = {"Frechet distance in 16 features of runs/clip", "blurred by 1 pixels"}},
      {.command = "data pairs data/scenes --overlap", .says = {"are near one of data/scenes-held-out"}},
      {.command = "export runs/dvae",
       .makes = {"data/exported-dvae/encoder.safetensors", "data/exported-dvae/decoder.safetensors"}},
      {.command = "import dvae", .says = {"16 x 16 pixels become 4 x 4 tokens of 32 codes"}},
      {.command = "export runs/dalle", .makes = {"data/exported-dalle/model.safetensors"}},
      {.command = "import dalle", .makes = {"data/imported-dalle.safetensors"}},
      {.command = "export runs/clip", .makes = {"data/exported-clip/model.safetensors"}},
      {.command = "import clip", .makes = {"data/imported-clip.safetensors"}},
      {.command = "plan dalle", .says = {"12 x 64 x 3968^2", "1024 x 1 x 1"}, .does_not_say = {"does not fit"}},
      {.command = "--out runs/gpu\n", .code = 2, .says = {"--device: cuda"}},
      {.command = "--out runs/gpus\n", .code = 2, .says = {"--device: cuda"}},
  };
}

// A folder like a clone of this repository with its program built.
void make_clone(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(source_folder())) {
    const std::string name = entry.path().filename().string();
    if (name != "build" && name != "data" && name != "runs" && name != ".git") fs::create_symlink(entry.path(), folder / name);
  }
  fs::create_directories(folder / "build/release/bin");
  fs::create_symlink(BITLOOM_PROGRAM, folder / "build/release/bin/bitloom");
}

// Percentage in the last line "test accuracy NN.NN%", or -1.
double test_accuracy(const std::string& output) {
  static const std::regex line("test accuracy +([0-9.]+)%");
  double last = -1;
  for (std::sregex_iterator found(output.begin(), output.end(), line), end; found != end; ++found)
    last = std::stod((*found)[1]);
  return last;
}

class Reader {
 public:
  Reader() { make_clone(folder_.path()); }

  const fs::path& folder() const { return folder_.path(); }

  void read(const fs::path& document, const std::vector<Expectation>& expectations) {
    std::vector<int> met(expectations.size(), 0);
    std::string last;  // output
    bool first = true;
    for (const Block& block : blocks_of(read_file(source_folder() / document))) {
      for (const std::string& line : block.lines) {
        if (line.empty() || line.starts_with('#')) continue;
        INFO(document.string() << ": " << line);
        if (block.language == "text") {
          CHECK(has(last, line));  // the output that the document shows
          continue;
        }
        CHECK(block.language.empty());
        const Outcome outcome = run_line(line);
        last = outcome.out + outcome.err;
        INFO(last);
        const Expectation* expected = nullptr;
        for (std::size_t i = 0; i < expectations.size(); ++i) {
          if ((line + "\n").find(expectations[i].command) == std::string::npos) continue;
          CHECK(expected == nullptr);
          expected = &expectations[i];
          ++met[i];
        }
        // Only what prepares the others goes without an expectation.
        CHECK((expected != nullptr || line.find("bitloom ") == std::string::npos));
        REQUIRE(outcome.code == (expected == nullptr ? 0 : expected->code));
        if (expected != nullptr) check(*expected, last);
        first = false;
      }
    }
    CHECK_FALSE(first);
    for (std::size_t i = 0; i < expectations.size(); ++i) {
      INFO(expectations[i].command);
      CHECK(met[i] == 1);
    }
  }

 private:
  Outcome run_line(std::string line) {
    for (const Change& change : changes) {
      const std::size_t at = line.find(change.from);
      if (at != std::string::npos) line.replace(at, std::string(change.from).size(), change.to);
    }
    if (line.starts_with("bitloom=")) assignments_ = line + "\n";
    // A run that a clock would stop is stopped when it has begun, however fast the machine is.
    static const std::regex timed("^timeout --signal INT [0-9]+ \\$bitloom ");
    std::smatch found;
    if (std::regex_search(line, found, timed)) {
      std::istringstream words(line.substr(static_cast<std::size_t>(found.length())));
      std::vector<std::string> args;
      for (std::string word; words >> word;) args.push_back(word);
      const Hold hold(folder_.path(), 1);
      Background run(folder_.path(), with(args, Hold::option()));
      REQUIRE(run.wait_for("layer1: "));
      run.signal(SIGINT);
      Outcome outcome = run.wait();
      fs::remove(folder_ / "hold");  // nobody who runs the commands has it
      return outcome;
    }
    return run_shell(folder_.path(), "set -e -o pipefail\n" + assignments_ + line);
  }

  void check(const Expectation& expected, const std::string& output) const {
    for (const char* text : expected.says) CHECK(has(output, text));
    for (const char* text : expected.does_not_say) CHECK_FALSE(has(output, text));
    for (const char* file : expected.makes) {
      INFO(file);
      CHECK(fs::exists(folder_ / file));
    }
    if (expected.accuracy > 0) CHECK(test_accuracy(output) >= expected.accuracy);
  }

  TempDir folder_;
  std::string assignments_ = "bitloom=build/release/bin/bitloom\n";
};

}  // namespace

// tests/CMakeLists.txt has its name: it begins early.
TEST_CASE("the commands of README and EXAMPLES do what they are there to show", "[documents]") {
  Reader reader;
  reader.read("README.md", readme_expectations());
  reader.read("src/cli/EXAMPLES.md", examples_expectations());

  // git ignores what they make.
  for (const auto& entry : fs::directory_iterator(reader.folder())) {
    const std::string name = entry.path().filename().string();
    INFO(name);
    const bool ours = name == "build" || name == "data" || name == "runs" || name == "cache" || name.starts_with("program-");
    CHECK((ours || fs::exists(source_folder() / name)));
  }
}
