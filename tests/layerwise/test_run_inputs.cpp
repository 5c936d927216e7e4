// Where a run takes the outputs of frozen layers from must not show in its result.
#include <fcntl.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/hash.h"
#include "core/metrics.h"
#include "data/pixel_store.h"
#include "layerwise/cache.h"
#include "layerwise/trainer.h"
#include "tests/layerwise/small_run.h"
#include "tests/layerwise/small_stage.h"
#include "tests/support/catch.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

// With fixed copies, so that the outputs of frozen layers can be cached.
RunOptions with_copies(const fs::path& folder, const std::string& frozen, const NetSpec& net = two_layers()) {
  RunOptions options = options_for(folder, net);
  options.train.augment_copies = 2;
  options.frozen = frozen;
  options.cache = folder.parent_path() / "cache";
  options.cache_limit = std::uint64_t{1} << 28U;
  return options;
}

std::string log_of(const RunOptions& options) {
  Lines lines;
  mpi::Comm comm;
  train(simd::kernels(), comm, options, splits(), lines);
  return lines.text();
}

// Summed over the epochs of a stage: what became of records.
std::map<std::string, std::size_t> records_of(const fs::path& folder, const std::string& stage) {
  std::map<std::string, std::size_t> sums;
  for (const auto& line : read_metrics(folder / "metrics.jsonl")) {
    if (line["event"] != "epoch" || line["stage"] != stage) continue;
    for (const auto& [name, value] : line["frozen"].items()) sums[name] += value.get<std::size_t>();
  }
  return sums;
}

// So that nothing that was trained is reused, only outputs of frozen layers.
void forget_stages(const fs::path& cache) {
  for (const auto& entry : fs::directory_iterator(cache)) {
    if (entry.path().extension() == ".blob") fs::remove(entry.path());
  }
}

std::vector<fs::path> record_files(const fs::path& cache) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(cache)) {
    if (entry.path().extension() == ".records") files.push_back(entry.path());
  }
  return files;
}

}  // namespace

TEST_CASE("cached outputs of frozen layers give the net that recomputed ones do", "[trainer][frozen]") {
  for (const char* augment : {"crop2,flip", "crop2,alternating", "none"}) {
    INFO(augment);
    const bool augmented = augment != std::string("none");
    const TempDir folder;
    const auto options = [&](const char* name, const char* frozen) {
      RunOptions result = with_copies(folder / name, frozen);
      result.train.augment = data::parse_augment(augment);
      return result;
    };
    CHECK(has(log_of(options("recomputed", "recompute")), "b: outputs of frozen layers are recomputed: as asked"));
    const TensorFile expected = result_of(folder / "recomputed");
    CHECK(record_files(folder / "cache").empty());
    forget_stages(folder / "cache");

    const std::string log = log_of(options("cached", "cache"));
    CHECK(has(log, "b: outputs of frozen layers are cached: as asked"));
    CHECK(has(log, fmt::format("80 images x {}", augmented ? "2 copies" : "1 copy")));
    CHECK(difference(expected, result_of(folder / "cached")) == "");
    CHECK(record_files(folder / "cache").size() == 2);
    // Three epochs of 80 images, and 40 more that the first thresholds look at: each copy is computed once.
    auto records = records_of(folder / "cached", "b");
    CHECK(records["missing"] == (augmented ? 160 : 80));
    CHECK(records["written"] == records["missing"]);
    CHECK(records["read"] + records["missing"] == 3 * 80 + 40);
    CHECK(records["damaged"] == 0);

    // Another run, interrupted everywhere, finds all of them.
    forget_stages(folder / "cache");
    RunOptions stopped = options("stopped", "cache");
    stopped.stop_after_steps = 3;
    while (has(complaint(ErrorKind::interrupted, stopped), "interrupted at step")) stopped.resume = true;
    CHECK(difference(expected, result_of(folder / "stopped")) == "");
    CHECK(records_of(folder / "stopped", "b")["missing"] == 0);

    forget_stages(folder / "cache");
    CHECK(has(log_of(options("auto", "auto")), "us to compute"));
    CHECK(difference(expected, result_of(folder / "auto")) == "");
  }
}

TEST_CASE("an image that cannot be read leaves no record of one without anything in it", "[trainer][frozen]") {
  const TempDir folder;
  const auto options = [&](const char* name, const char* frozen) {
    RunOptions result = with_copies(folder / name, frozen);
    result.train.augment = data::parse_augment("crop2,flip");
    return result;
  };
  log_of(options("expected", "recompute"));
  forget_stages(folder / "cache");

  constexpr Hash128 store_key{1, 2};
  const data::DataSplits images = splits();
  const std::size_t bytes = images.train.shape.size();
  const auto stored = [&] {
    data::DataSplits same = images;
    same.train.store = data::PixelStore::open(
        folder / "store", std::uint64_t{1} << 30U, store_key, images.train.size(), bytes,
        [&](std::size_t i, std::span<std::uint8_t> out) { std::ranges::copy(images.train.image(i), out.begin()); });
    same.train.pixels.clear();
    for (std::uint32_t i = 0; i < images.train.size(); ++i) same.train.places.push_back(i);
    return same;
  };
  const auto damage_or_mend = [&] {
    const fs::path file = folder / "store" / (store_key.hex() + ".pixels");
    const std::streamoff place = 64 + 3 * (8 + static_cast<std::streamoff>(bytes)) + 8 + 10;
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(place);
    const auto byte = static_cast<char>(~stream.get());
    stream.seekp(place);
    stream.put(byte);
  };
  RunOptions cached = options("cached", "cache");
  int step = 0;
  cached.stop = [&] {  // when layer b has seen one copy of the images
    if (++step == 7) damage_or_mend();
    return false;
  };
  Lines lines;
  mpi::Comm comm;
  CHECK(has(message_of(ErrorKind::io, [&] { train(simd::kernels(), comm, cached, stored(), lines); }),
            "image 3 cannot be read or is damaged"));
  damage_or_mend();
  CHECK_FALSE(record_files(folder / "cache").empty());
  forget_stages(folder / "cache");
  cached.stop = nullptr;
  cached.folder = folder / "again";
  train(simd::kernels(), comm, cached, stored(), lines);
  CHECK(difference(result_of(folder / "expected"), result_of(folder / "again")) == "");
}

TEST_CASE("each image alternates with its mirror image", "[trainer]") {
  const auto trained = [](const char* augment, std::size_t epochs, const data::DataSplits& images) {
    const TempDir folder;
    RunOptions options = options_for(folder / "run");
    options.train.augment = data::parse_augment(augment);
    for (StageSpec& stage : options.net.stages) stage.epochs = epochs;
    Lines lines;
    mpi::Comm comm;
    train(simd::kernels(), comm, options, images, lines);
    return result_of(folder / "run");
  };
  // Images that the first epoch is to see.
  data::DataSplits first = splits();
  std::vector<std::uint8_t> image(first.train.shape.size());
  for (std::size_t i = 0; i < first.train.size(); ++i) {
    if (!data::is_mirrored(TrainOptions{}.seed, i, 0)) continue;
    std::uint8_t* pixels = first.train.pixels.data() + i * image.size();
    std::copy_n(pixels, image.size(), image.begin());
    data::shift(image, first.train.shape, 0, 0, true, pixels);
  }
  CHECK(difference(trained("none", 1, first), trained("alternating", 1, splits())) == "");
  CHECK(difference(trained("none", 2, first), trained("alternating", 2, splits())) != "");
  CHECK(difference(trained("none", 1, splits()), trained("alternating", 1, splits())) != "");
}

TEST_CASE("computing, storing and reading a record are measured", "[trainer][frozen]") {
  StageCase c = stage_cases()[0];
  c.options.augment_copies = 1;
  mpi::Comm comm;
  SmallStage small(c, simd::kernels(), comm);
  const StageInputs& inputs = small.stage().inputs();
  const TempDir folder;
  const Cache cache(folder.path(), std::uint64_t{1} << 30U);
  const std::uint64_t words = inputs.record_words();
  for (const bool from_device : {false, true}) {
    const FrozenCosts costs = inputs.measure(*cache.probe_records(5, words), from_device);
    CHECK(costs.compute_seconds > 0);
    CHECK(costs.write_seconds > 0);
    CHECK(costs.read_seconds > 0);
  }
  RecordFile full(::open("/dev/full", O_RDWR | O_CLOEXEC), "0123456789abcdef", 5, words);
  CHECK(has(message_of(ErrorKind::io, [&] { inputs.measure(full, false); }), "No space left on device"));
}

TEST_CASE("the way that inputs are made may change when a run is resumed", "[trainer][frozen]") {
  const TempDir folder;
  RunOptions options = with_copies(folder / "run", "cache");
  options.stop_after_steps = 7;
  CHECK(has(complaint(ErrorKind::interrupted, options), "interrupted at step 3 of stage 'b'"));
  options.frozen = "recompute";
  train_net(resumed(options));
  const TempDir other;
  train_net(with_copies(other / "run", "recompute"));
  CHECK(difference(result_of(other / "run"), result_of(folder / "run")) == "");
}

TEST_CASE("nets with the same layers below share their cached outputs", "[trainer][frozen]") {
  const TempDir folder;
  train_net(with_copies(folder / "first", "cache"));
  train_net(with_copies(folder / "wider", "cache", two_layers(24, 32)));
  auto records = records_of(folder / "wider", "b");
  CHECK(records["missing"] == 0);
  CHECK(records["read"] == 3 * 80 + 40);
  // Another first layer: nothing of its outputs, all of the encoder's.
  train_net(with_copies(folder / "other", "cache", two_layers(32)));
  CHECK(records_of(folder / "other", "a")["missing"] == 0);
  CHECK(records_of(folder / "other", "b")["missing"] == 160);
  // Other copies.
  RunOptions seeded = with_copies(folder / "seeded", "cache");
  seeded.train.seed = 2;
  train_net(seeded);
  CHECK(records_of(folder / "seeded", "a")["missing"] == 160);
}

TEST_CASE("damaged outputs of frozen layers are noticed and rebuilt", "[trainer][frozen]") {
  const TempDir folder;
  train_net(with_copies(folder / "first", "cache"));
  const TensorFile expected = result_of(folder / "first");
  std::size_t number = 0;
  for (const bool whole_file : {false, true}) {
    forget_stages(folder / "cache");
    for (const fs::path& file : record_files(folder / "cache")) {
      if (whole_file) {
        fs::resize_file(file, fs::file_size(file) - 1);
      } else {
        damage(file);  // in the last record
      }
    }
    const std::string name = fmt::format("damaged{}", number++);
    const std::string log = log_of(with_copies(folder / name, "cache"));
    CHECK(has(log,
              whole_file ? "was damaged and is rebuilt: it holds" : "1 outputs of frozen layers were damaged and have been"));
    CHECK(difference(expected, result_of(folder / name)) == "");
    CHECK(records_of(folder / name, "b")["missing"] == (whole_file ? 160 : 1));
  }
  forget_stages(folder / "cache");
  CHECK_FALSE(has(log_of(with_copies(folder / "repaired", "cache")), "damaged"));
  CHECK(records_of(folder / "repaired", "b")["missing"] == 0);
}

TEST_CASE("a cache that is too small, missing or full leaves outputs to be recomputed", "[trainer][frozen]") {
  const TempDir folder;
  train_net(with_copies(folder / "first", "recompute"));
  const TensorFile expected = result_of(folder / "first");
  const auto tried = [&](const char* name, const auto& change) {
    forget_stages(folder / "cache");
    RunOptions options = with_copies(folder / name, "cache");
    change(options);
    const std::string log = log_of(options);
    CHECK(difference(expected, result_of(folder / name)) == "");
    CHECK(record_files(folder / "cache").empty());
    return log;
  };
  const std::string small = tried("small", [](RunOptions& options) { options.cache_limit = 20000; });
  CHECK(has(small, "b: outputs of frozen layers are recomputed: "));
  CHECK(has(small, "are more than the cache may hold, 19.5 KiB (`cache_limit`)"));
  const std::string none = tried("none", [](RunOptions& options) {
    options.frozen = "auto";
    options.cache.clear();
  });
  CHECK(has(none, "b: outputs of frozen layers are recomputed: there is no cache (`cache` none)"));
  {
    const FileSizeLimit full(45000);  // enough for checkpoints and the model
    CHECK(has(tried("full", [](RunOptions&) {}), "outputs of frozen layers are recomputed"));
  }
  CHECK(has(log_of(options_for(folder / "fresh")), "images are augmented afresh at every epoch (`augment_copies` 0)"));

  RunOptions wrong = with_copies(folder / "wrong", "cache");
  wrong.train.augment_copies = 0;
  CHECK(has(complaint(ErrorKind::usage, wrong), "`frozen`: 'cache' needs images that come again"));
  wrong = with_copies(folder / "wrong", "cache");
  wrong.cache.clear();
  CHECK(has(complaint(ErrorKind::usage, wrong), "`frozen`: 'cache' needs a cache"));
  wrong.frozen = "perhaps";
  CHECK(has(complaint(ErrorKind::usage, wrong), "`frozen`: 'perhaps' is unknown"));
}

TEST_CASE("fixed copies are as many as asked for, and in turn", "[trainer][frozen]") {
  // One copy per epoch and image: a run of as many epochs as copies never sees one twice.
  const TempDir folder;
  RunOptions options = with_copies(folder / "run", "cache");
  options.train.augment_copies = 3;
  train_net(options);
  CHECK(records_of(folder / "run", "b")["missing"] == 3 * 80);
  CHECK(records_of(folder / "run", "b")["read"] == 40);
  const TempDir other;
  train_net(with_copies(other / "run", "recompute"));
  CHECK(difference(result_of(other / "run"), result_of(folder / "run")) != "");
  // Half of the copies are mirror images where flips alternate.
  options.folder = folder / "odd";
  options.train.augment = data::parse_augment("alternating");
  CHECK(has(complaint(ErrorKind::usage, options),
            "`augment_copies`: 3 with alternating flips in stage 'a'; expected an even number"));
}
