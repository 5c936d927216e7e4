#include "layerwise/input_placement.h"

#include <omp.h>

#include <array>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/field.h"
#include "core/memory.h"
#include "layerwise/record_share.h"
#include "run/folder.h"

namespace bitloom::layerwise {
namespace {

constexpr std::uint64_t probe_records = 16;
constexpr std::uint64_t filled_samples = 256;

double microseconds(double seconds) { return 1e6 * seconds; }

std::string figures_of(const FrozenCosts& costs, std::uint64_t bytes) {
  return fmt::format(
      "{} images x {} {}, {}, {:.0f}% of it there; per image {:.1f} us to compute, {:.1f} us to store, {:.1f} us "
      "to read: cached {}, recomputed {} of processor time in {} {}",
      costs.images, costs.copies, costs.copies == 1 ? "copy" : "copies", format_bytes(bytes), 100 * costs.filled,
      microseconds(costs.compute_seconds), microseconds(costs.write_seconds), microseconds(costs.read_seconds),
      format_duration(costs.cache_total()), format_duration(costs.recompute_total()), costs.epochs,
      costs.epochs == 1 ? "epoch" : "epochs");
}

}  // namespace

void check_frozen_option(const RunOptions& options) {
  const std::string& frozen = options.frozen;
  if (frozen != "auto" && frozen != "cache" && frozen != "recompute") {
    fail_field(ErrorKind::usage, "frozen", "'{}' is unknown; expected auto, cache or recompute", frozen);
  }
  if (frozen != "cache") return;
  for (const StageSpec& stage : options.net.stages) {
    const TrainOptions train = for_stage(options.train, stage);
    if (train.augment.none() || train.augment_copies != 0) continue;
    fail_field(ErrorKind::usage, "frozen",
               "'cache' needs images that come again; expected `augment_copies` of 1 or more, or no augmentation, but stage "
               "'{}' has {}",
               stage.name, data::to_string(train.augment));
  }
  if (options.cache.empty() || options.cache_limit == 0) {
    fail_field(ErrorKind::usage, "frozen",
               "'cache' needs a cache; expected another `cache` than none and a `cache_limit` above 0");
  }
}

// Decides on rank 0 where the stage takes its inputs from: returns whether from the cache, and says why.
bool InputPlacement::plan(const Stage& stage) {
  const auto say = [&](const char* choice, const std::string& reason) {
    progress_.line(fmt::format("{}: outputs of frozen layers are {}: {}", stage.spec().name, choice, reason));
  };
  const auto recompute = [&](const std::string& reason) {
    say("recomputed", reason);
    return false;
  };
  if (frozen_ == "recompute") return recompute("as asked (`frozen` recompute)");
  if (stage.inputs().copies() == 0) return recompute("images are augmented afresh at every epoch (`augment_copies` 0)");
  if (cache_ == nullptr) return recompute("there is no cache (`cache` none)");

  const std::uint64_t records = stage.inputs().records();
  const std::uint64_t bytes = RecordFile::file_bytes(records, stage.inputs().record_words());
  if (bytes > cache_->limit()) {
    return recompute(fmt::format("{} are more than the cache may hold, {} (`cache_limit`)", format_bytes(bytes),
                                 format_bytes(cache_->limit())));
  }
  const auto found = cache_->find_records(key(stage), records, stage.inputs().record_words());
  const double filled = found == nullptr ? 0 : found->filled_share(filled_samples);
  const auto missing_bytes = static_cast<std::uint64_t>((1 - filled) * static_cast<double>(bytes));
  if (frozen_ == "auto" && missing_bytes > cache_->free_space()) {
    return recompute(fmt::format("{} are more than the {} that are free in {}", format_bytes(missing_bytes),
                                 format_bytes(cache_->free_space()), cache_->folder().string()));
  }
  // Records that do not stay in memory come from the device.
  const bool from_device = bytes > available_memory() / 2;
  const auto probe = cache_->probe_records(probe_records, stage.inputs().record_words());
  FrozenCosts costs = stage.inputs().measure(*probe, from_device);
  costs.images = images_.size();
  costs.copies = stage.inputs().copies();
  const std::size_t steps_left = stage.total_steps() - stage.step_number();
  costs.epochs = (steps_left + stage.steps_per_epoch() - 1) / stage.steps_per_epoch();
  costs.filled = filled;
  const bool cache = frozen_ == "cache" || costs.cache_total() < costs.recompute_total();
  say(cache ? "cached" : "recomputed", (frozen_ == "cache" ? "as asked (`frozen` cache); " : "") + figures_of(costs, bytes));
  return cache;
}

std::string InputPlacement::key(const Stage& stage) const { return stage.inputs().records_hash(data_hash_).hex(); }

void InputPlacement::place(Stage& stage, const std::function<void()>& alive) {
  bool cached = false;
  run::on_root(comm_, [&] {
    try {
      cached = plan(stage);
    } catch (const Error& error) {
      progress_.line(fmt::format("cache: {}; outputs of frozen layers are recomputed", error.what()));
    }
  });
  if (!comm_.flag_any(cached)) return;
  std::unique_ptr<RecordFile> records;
  std::string trouble = "it cannot take them";
  try {
    if (cache_ != nullptr) {
      records = cache_->open_records(key(stage), stage.inputs().records(), stage.inputs().record_words());
    }
  } catch (const Error& error) {
    trouble = error.what();
  }
  const bool all = !comm_.flag_any(records == nullptr);
  if (records == nullptr) {
    progress_.line(fmt::format("cache: {}; outputs of frozen layers are recomputed", trouble));
  } else if (!all) {
    progress_.line("cache: not every process has one; those without recompute the outputs of frozen layers");
  }
  share(stage, records.get(), alive);
  stage.inputs().use(std::move(records));
}

// Collective: what hosts lack of the records, they get from others where that is faster than to compute it.
void InputPlacement::share(Stage& stage, RecordFile* records, const std::function<void()>& alive) {
  const std::vector<std::uint64_t> reads = records == nullptr ? std::vector<std::uint64_t>{} : stage.records_to_read();
  const auto compute_seconds = [&] {
    try {
      const auto probe = cache_->probe_records(probe_records, stage.inputs().record_words());
      return stage.inputs().measure(*probe, false).compute_seconds / omp_get_max_threads();
    } catch (const Error&) {
      return 0.0;  // a device that stores nothing: what would come is not kept
    }
  };
  const std::vector<RecordShare> shares = share_records(comm_, {records, reads, compute_seconds, alive});
  if (records != nullptr) records->take_counts();  // not those of training
  if (shares.empty()) return;
  const std::vector<std::string> names = mpi::host_names(comm_);
  for (const RecordShare& share : shares) {
    if (!comm_.is_root()) continue;
    const char* left = share.received == 0                ? "all are recomputed"
                       : share.received < share.elsewhere ? "the others are recomputed"
                                                          : "all there is";
    progress_.line(fmt::format(
        "{}: rank {} on host {} lacks {} outputs of frozen layers, of which others have {}: at {}/s {} to get, {} to compute; "
        "got {} in {}, {}",
        stage.spec().name, share.rank, names[static_cast<std::size_t>(share.rank)], share.missing, share.elsewhere,
        format_bytes(static_cast<std::uint64_t>(share.bytes_per_second)), format_duration(share.send_seconds),
        format_duration(share.compute_seconds), share.received, format_duration(share.seconds), left));
  }
}

nlohmann::json InputPlacement::report(const Stage& stage) {
  RecordFile* file = stage.inputs().file();
  const RecordCounts counts = file == nullptr ? RecordCounts{} : file->take_counts();
  std::array<std::int64_t, 4> sums{};
  const std::array<std::uint64_t, 4> parts{counts.read, counts.missing, counts.damaged, counts.written};
  for (std::size_t i = 0; i < parts.size(); ++i) sums[i] = static_cast<std::int64_t>(parts[i]);
  comm_.sum(std::span(sums));
  std::array<std::int64_t, 1> error{file == nullptr ? 0 : file->error()};
  comm_.max(error);
  if (sums[2] != 0) {
    progress_.line(
        fmt::format("cache: {} outputs of frozen layers were damaged and have been rebuilt: their checksums did not "
                    "match",
                    sums[2]));
  }
  if (error[0] != 0 && !error_told_) {
    progress_.line(fmt::format("cache: outputs of frozen layers cannot be stored: {}; what is missing is recomputed",
                               std::strerror(static_cast<int>(error[0]))));
    error_told_ = true;
  }
  return {{"read", sums[0]}, {"missing", sums[1]}, {"damaged", sums[2]}, {"written", sums[3]}};
}

}  // namespace bitloom::layerwise
