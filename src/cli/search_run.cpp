#include "cli/search_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/model_source.h"
#include "cli/signals.h"
#include "core/error.h"
#include "core/file.h"
#include "core/safetensors.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* shared_folder = "shared";  // of what the variants have in common

// What a rank tells of the variants that it trained: their accuracies, and the files of their runs.
struct Outcomes {
  TensorFile file;  // metadata: accuracy by variant; tensors: VARIANT/FILE
  std::string error;
  ErrorKind kind = ErrorKind::internal;
  bool interrupted = false;

  // The first one counts.
  void fail(const std::string& variant, const char* what, ErrorKind of) {
    if (!error.empty()) return;
    error = fmt::format("{}: {}", variant, what);
    kind = of;
  }
  void add(const std::string& variant, double accuracy, const fs::path& folder) {
    file.metadata[variant] = fmt::format("{}", accuracy);
    for (const char* name : {model_file, config_file, metrics_file, options_file, net_file, log_file}) {
      if (!fs::exists(folder / name)) continue;
      const std::vector<std::byte> bytes = read_bytes(folder / name);
      const std::span<const std::uint8_t> numbers(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
      file.put(variant + "/" + name, {bytes.size()}, numbers);
    }
  }
};

// The settings for the run of a variant, while this lives.
class Preparation {
 public:
  // begun: its folder holds a part of it.
  Preparation(TrainSettings& settings, const Variant& variant, const fs::path& folder, bool begun)
      : settings_(settings), resume_(settings.resume) {
    settings.searches.clear();  // of options.ini, too
    settings.run.net = variant.net;
    settings.run.folder = folder;
    settings.resume = settings.run.resume = resume_ && begun;
  }
  ~Preparation() { settings_.resume = settings_.run.resume = resume_; }
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

 private:
  TrainSettings& settings_;
  bool resume_;
};

// Of the variants, one by one with all ranks.
std::vector<double> train_in_turn(Session& session, TrainSettings& settings, const std::vector<Variant>& variants,
                                  const fs::path& folder, const TrainOne& train) {
  std::vector<double> accuracies;
  for (const Variant& variant : variants) {
    const fs::path own = folder / variant.name;
    session.terminal.print("\n{}", variant.name);
    // Run folders need not be visible elsewhere.
    std::string state;
    session.on_root([&] {
      state = accuracy_of_finished(own, settings.resume);
      if (state.empty() && fs::exists(own / options_file)) state = "begun";
    });
    state = session.comm.broadcast_text(state);
    if (!state.empty() && state != "begun") {
      accuracies.push_back(std::stod(state));
      continue;
    }
    const Preparation preparation(settings, variant, own, state == "begun");
    accuracies.push_back(train(session, settings).validation.accuracy());
  }
  return accuracies;
}

// This rank's part of the variants.
Outcomes train_own(Session& session, TrainSettings& settings, const std::vector<Variant>& variants, const fs::path& folder,
                   const TrainOne& train) {
  Outcomes outcomes;
  mpi::Comm alone;
  Session own{alone, session.terminal, session.command_line, {}};
  const auto ranks = static_cast<std::size_t>(session.comm.size());
  for (auto v = static_cast<std::size_t>(session.comm.rank()); v < variants.size(); v += ranks) {
    const Variant& variant = variants[v];
    try {
      const fs::path run = folder / variant.name;
      const std::string finished = accuracy_of_finished(run, settings.resume);
      if (!finished.empty()) {
        outcomes.add(variant.name, std::stod(finished), run);
        continue;
      }
      session.terminal.print("\n{}", variant.name);
      const Preparation preparation(settings, variant, run, fs::exists(run / options_file));
      outcomes.add(variant.name, train(own, settings).validation.accuracy(), run);
    } catch (const Error& error) {
      outcomes.interrupted |= error.kind() == ErrorKind::interrupted;
      if (outcomes.interrupted) return outcomes;
      outcomes.fail(variant.name, error.what(), error.kind());
    } catch (const std::exception& error) {
      outcomes.fail(variant.name, error.what(), ErrorKind::io);
    }
  }
  return outcomes;
}

// Each by a rank of its own, over what they have in common.
std::vector<double> train_spread(Session& session, TrainSettings& settings, const std::vector<Variant>& variants,
                                 const fs::path& folder, const TrainOne& train) {
  std::size_t shared = variants.front().net.stages.size();
  for (const Variant& variant : variants) {
    shared = std::min(shared, layerwise::shared_stages(variants.front().net, variant.net));
  }
  bool finished = settings.resume;  // nothing is to be done but ranking
  session.on_root([&] {
    for (const Variant& variant : variants) finished = finished && fs::exists(folder / variant.name / model_file);
  });
  session.comm.broadcast(std::span<bool>(&finished, 1));
  if (!finished && shared > 0 && shared < variants.front().net.stages.size()) {
    session.terminal.print("\n{} stage{} that all variants share", shared, shared == 1 ? "" : "s");
    bool begun = fs::exists(folder / shared_folder / options_file);  // as rank 0 sees it
    session.comm.broadcast(std::span<bool>(&begun, 1));
    const Preparation preparation(settings, variants.front(), folder / shared_folder, begun);
    settings.run.stages = shared;
    const layerwise::RunResult result = train(session, settings);
    settings.run.trained = result.trained;
    TensorFile encoder;
    result.model.encoder.save(encoder);
    settings.run.encoder = encoder.serialize();  // another machine might fit another one
    settings.run.stages = 0;
  }
  // Ranks end at different times, and those that wait are not lost.
  const mpi::Settings before = session.comm.settings();
  mpi::Settings patient = before;
  patient.watchdog_seconds = 0;
  session.comm.configure(patient);
  const Outcomes own = train_own(session, settings, variants, folder, train);
  const bool interrupted = session.comm.flag_any(own.interrupted);
  session.comm.check(interrupted ? "" : own.error, own.kind);
  const std::vector<std::byte> bytes = own.file.serialize();
  const auto all = session.comm.gather_bytes(bytes);
  session.comm.configure(before);
  std::vector<double> accuracies(variants.size(), std::numeric_limits<double>::quiet_NaN());
  session.on_root([&] {
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const TensorFile file = TensorFile::parse(all[rank], fmt::format("variants of rank {}", rank), Checksum::required);
      for (std::size_t v = 0; v < variants.size(); ++v) {
        const auto found = file.metadata.find(variants[v].name);
        if (found != file.metadata.end()) accuracies[v] = std::stod(found->second);
      }
      for (const auto& [name, tensor] : file.tensors) {
        const fs::path path = folder / name;
        if (fs::exists(path)) continue;  // the rank is on this host
        fs::create_directories(path.parent_path());
        write_atomically(path, std::as_bytes(tensor.as<std::uint8_t>()));
      }
    }
    if (!interrupted) fs::remove_all(folder / shared_folder);
  });
  if (interrupted) fail(ErrorKind::interrupted, "interrupted; everything is in {}", folder.string());
  return accuracies;
}

}  // namespace

void train_variants(Session& session, TrainSettings& settings, const std::vector<Variant>& variants,
                    const std::map<std::string, std::string>& files, const TrainOne& train) {
  const fs::path folder = settings.run.folder;
  std::unique_ptr<FileLock> lock;
  session.on_root([&] {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) fail(ErrorKind::io, "--out: {} cannot be created: {}", folder.string(), error.message());
    lock = std::make_unique<FileLock>(folder / lock_file);
    if (settings.resume) return;
    for (const auto& [name, text] : files) write_atomically(folder / name, text);
  });
  const bool spread = settings.spread && session.comm.size() > 1;
  const std::vector<double> accuracies = spread ? train_spread(session, settings, variants, folder, train)
                                                : train_in_turn(session, settings, variants, folder, train);
  session.on_root([&] {
    const nlohmann::json ranking = rank_variants(variants, accuracies);
    write_atomically(folder / search_file, ranking.dump(2) + "\n");
    session.terminal.print("\nvalidation accuracy");
    for (const auto& row : ranking) {
      session.terminal.print("  {:>6.2f}%  {}", 100 * row["validation_accuracy"].get<double>(), row["name"].get<std::string>());
    }
  });
}

}  // namespace bitloom::cli
