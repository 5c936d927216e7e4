// Trains the variants of a search, one after the other or each on a rank of its own.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/safetensors.h"
#include "layerwise/run.h"
#include "layerwise/search.h"

namespace bitloom::layerwise {
namespace {

namespace fs = std::filesystem;

constexpr const char* shared_folder = "shared";  // folder of stages that the variants have in common

// The validation accuracy that the model in a run folder remembers, as text; "" if there is none.
std::string accuracy_of_finished(const fs::path& folder) {
  if (!fs::exists(folder / run::model_name)) return "";
  const Model model = Model::load(folder / run::model_name);
  const auto found = model.notes.find("validation_accuracy");
  return found == model.notes.end() ? "" : found->second;
}

// Results of the variants that a rank trained: their accuracies, and the files of their runs.
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
  void add(const std::string& variant, double accuracy, const fs::path& folder, const std::vector<std::string>& files) {
    file.metadata[variant] = fmt::format("{}", accuracy);
    for (const std::string& name : files) {
      if (!fs::exists(folder / name)) continue;
      file.put_raw(variant + "/" + name, read_bytes(folder / name));
    }
  }
};

// Makes the folder of a finished run of what another rank has of it. There may be what a rank had begun here, before the search
// went on with others.
void put_results(const TensorFile& results, const std::string& variant, const fs::path& folder,
                 const std::vector<std::string>& files) {
  fs::create_directories(folder);
  const auto put = [&](const std::string& name) {
    const auto found = results.tensors.find(variant + "/" + name);
    if (found == results.tensors.end()) {
      fs::remove(folder / name);
    } else {
      write_atomically(folder / name, std::as_bytes(found->second.as<std::uint8_t>()));
    }
  };
  for (const std::string& name : files) {
    if (name != run::model_name) put(name);
  }
  put(run::model_name);  // last: it says that all is there
  run::remove_checkpoints(folder);
  fs::remove(folder / encoder_name);
}

// One round: a run for each variant, in sub-folders of a folder.
class Round {
 public:
  Round(mpi::Comm& comm, const SearchOptions& options, const fs::path& folder, const std::vector<Variant>& variants,
        const TrainOne& train, ProgressSink& progress)
      : comm_(comm), options_(options), variants_(variants), train_(train), progress_(progress), folder_(folder) {}

  // Accuracies of the variants, on all ranks.
  std::vector<double> execute();

 private:
  RunOptions run_of(const Variant& variant, const fs::path& folder, bool begun) const;
  std::vector<double> train_in_turn();
  void train_shared_stages();
  Outcomes train_own() const;
  std::vector<double> train_spread();
  mpi::Comm& comm_;
  const SearchOptions& options_;
  const std::vector<Variant>& variants_;
  const TrainOne& train_;
  ProgressSink& progress_;
  const fs::path folder_;
  // With variants spread over ranks: stages that all share, and the encoder, which another machine might fit otherwise.
  std::map<std::string, std::vector<std::byte>> trained_;
  std::vector<std::byte> encoder_;
};

// begun: the folder holds a part of it.
RunOptions Round::run_of(const Variant& variant, const fs::path& folder, bool begun) const {
  RunOptions run = options_.run;
  run.net = variant.net;
  run.folder = folder;
  run.resume = options_.run.resume && begun;
  run.trained = trained_;
  run.encoder = encoder_;
  return run;
}

// One variant after the other, each by all ranks.
std::vector<double> Round::train_in_turn() {
  std::vector<double> accuracies;
  for (const Variant& variant : variants_) {
    const fs::path own = folder_ / variant.name;
    progress_.line("\n" + variant.name);
    // Run folders need not be visible elsewhere.
    std::string state;
    run::on_root(comm_, [&] {
      if (options_.run.resume) state = accuracy_of_finished(own);
      if (state.empty() && fs::exists(own / options_.begun_file)) state = "begun";
    });
    state = comm_.broadcast_text(state);
    if (!state.empty() && state != "begun") {
      accuracies.push_back(std::stod(state));
      continue;
    }
    accuracies.push_back(train_(comm_, run_of(variant, own, state == "begun")).validation.accuracy());
  }
  return accuracies;
}

// This rank's part of the variants.
Outcomes Round::train_own() const {
  Outcomes outcomes;
  mpi::Comm alone;
  const auto ranks = static_cast<std::size_t>(comm_.size());
  for (auto v = static_cast<std::size_t>(comm_.rank()); v < variants_.size(); v += ranks) {
    const Variant& variant = variants_[v];
    try {
      const fs::path run = folder_ / variant.name;
      const std::string finished = options_.run.resume ? accuracy_of_finished(run) : "";
      double accuracy = 0;
      if (!finished.empty()) {
        accuracy = std::stod(finished);
      } else {
        progress_.line("\n" + variant.name);
        accuracy = train_(alone, run_of(variant, run, fs::exists(run / options_.begun_file))).validation.accuracy();
      }
      outcomes.add(variant.name, accuracy, run, options_.result_files);
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

void Round::train_shared_stages() {
  const std::size_t stages = variants_.front().net.stages.size();
  std::size_t shared = stages;
  for (const Variant& variant : variants_) shared = std::min(shared, shared_stages(variants_.front().net, variant.net));
  bool finished = options_.run.resume;  // nothing is to be done but ranking
  run::on_root(comm_, [&] {
    for (const Variant& variant : variants_) finished = finished && fs::exists(folder_ / variant.name / run::model_name);
  });
  comm_.broadcast(std::span<bool>(&finished, 1));
  if (finished || shared == 0 || shared == stages) return;
  progress_.line(fmt::format("\n{} stage{} that all variants share", shared, shared == 1 ? "" : "s"));
  bool begun = fs::exists(folder_ / shared_folder / options_.begun_file);  // as rank 0 sees it
  comm_.broadcast(std::span<bool>(&begun, 1));
  RunOptions run = run_of(variants_.front(), folder_ / shared_folder, begun);
  run.stages = shared;
  const RunResult result = train_(comm_, run);
  trained_ = result.trained;
  TensorFile encoder;
  result.model.encoder.save(encoder);
  encoder_ = encoder.serialize();
}

// Each by a rank of its own, over what they have in common.
std::vector<double> Round::train_spread() {
  train_shared_stages();
  // Ranks end at different times, and those that wait are not lost.
  const mpi::Settings before = comm_.settings();
  mpi::Settings patient = before;
  patient.watchdog_seconds = 0;
  comm_.configure(patient);
  const Outcomes own = train_own();
  const bool interrupted = comm_.flag_any(own.interrupted);
  comm_.configure(before);
  comm_.check(interrupted ? "" : own.error, own.kind);
  const std::vector<std::byte> bytes = own.file.serialize();
  const auto all = comm_.gather_bytes(bytes);
  const std::vector<std::string> hosts = mpi::host_names(comm_);
  std::vector<double> accuracies(variants_.size(), std::numeric_limits<double>::quiet_NaN());
  run::on_root(comm_, [&] {
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const TensorFile file = TensorFile::parse(all[rank], fmt::format("variants of rank {}", rank), Checksum::required);
      for (std::size_t v = 0; v < variants_.size(); ++v) {
        const std::string& name = variants_[v].name;
        const auto found = file.metadata.find(name);
        if (found == file.metadata.end()) continue;
        accuracies[v] = std::stod(found->second);
        const bool is_here = hosts[rank] == mpi::host_name() && fs::exists(folder_ / name / run::model_name);
        if (!is_here) put_results(file, name, folder_ / name, options_.result_files);
      }
    }
    if (!interrupted) fs::remove_all(folder_ / shared_folder);
  });
  if (interrupted) fail(ErrorKind::interrupted, "interrupted; everything is in {}", options_.run.folder.string());
  return accuracies;
}

std::vector<double> Round::execute() {
  // The last net that is left is trained by all.
  const bool spread = options_.spread && comm_.size() > 1 && (options_.rounds == 1 || variants_.size() > 1);
  std::vector<double> accuracies = spread ? train_spread() : train_in_turn();
  comm_.broadcast(std::span<double>(accuracies));
  // As models remember them, so that a search that goes on ranks those that are finished as it did before.
  for (double& accuracy : accuracies) accuracy = std::stod(fmt::format("{:.4f}", accuracy));
  return accuracies;
}

// The ranking of a round of `variants` that a search which goes on has finished; null without one. The runs of it need not be
// visible everywhere.
nlohmann::json finished_round(mpi::Comm& comm, const fs::path& folder, const std::vector<Variant>& variants, bool resume) {
  std::string text;
  run::on_root(comm, [&] {
    if (resume && fs::exists(folder / search_file)) text = read_text(folder / search_file);
  });
  text = comm.broadcast_text(text);
  if (text.empty()) return nullptr;
  nlohmann::json ranking = nlohmann::json::parse(text, nullptr, false);
  const auto is_ranked = [&](const Variant& variant) {
    return std::count_if(ranking.begin(), ranking.end(), [&](const nlohmann::json& row) {
             return row.is_object() && row.contains("name") && row["name"] == variant.name &&
                    row.contains("validation_accuracy") && row["validation_accuracy"].is_number();
           }) == 1;
  };
  if (!ranking.is_array() || ranking.size() != variants.size() || !std::all_of(variants.begin(), variants.end(), is_ranked)) {
    fail(ErrorKind::data,
         "{}: expected the validation accuracy of each of the round's {} nets; without the file it is ranked again",
         (folder / search_file).string(), variants.size());
  }
  return ranking;
}

void tell(const nlohmann::json& ranking, ProgressSink& progress) {
  progress.line("\nvalidation accuracy");
  for (const auto& row : ranking) {
    progress.line(
        fmt::format("  {:>6.2f}%  {}", 100 * row["validation_accuracy"].get<double>(), row["name"].get<std::string>()));
  }
}

}  // namespace

void search(mpi::Comm& comm, const SearchOptions& options, const std::vector<Variant>& variants, const TrainOne& train,
            ProgressSink& progress) {
  check_rounds(variants, options.rounds);
  const fs::path& folder = options.run.folder;
  std::unique_ptr<FileLock> lock;
  run::on_root(comm, [&] {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) fail(ErrorKind::io, "`out`: {} cannot be created: {}", folder.string(), error.message());
    lock = std::make_unique<FileLock>(folder / run::lock_name);
    if (options.run.resume) return;
    for (const auto& [name, text] : options.files) write_atomically(folder / name, text);
  });
  std::vector<Variant> left = variants;
  nlohmann::json all = nlohmann::json::array();
  for (std::size_t round = 1; round <= options.rounds; ++round) {
    const bool is_last = round == options.rounds;
    const std::size_t divisor = std::size_t{1} << (options.rounds - round);
    std::vector<Variant> contenders = left;
    for (Variant& contender : contenders) contender.net = with_fewer_epochs(contender.net, divisor);
    if (!is_last) {
      progress.line(
          fmt::format("\nround {} of {}: {} nets, about 1/{} of the epochs", round, options.rounds, left.size(), divisor));
    } else if (round > 1) {
      progress.line(fmt::format("\nround {} of {}: {} net{}, all epochs", round, options.rounds, left.size(),
                                left.size() == 1 ? "" : "s"));
    }
    const fs::path own = is_last ? folder : folder / fmt::format("{}{}", round_prefix, round);
    nlohmann::json ranking = is_last ? nlohmann::json() : finished_round(comm, own, left, options.run.resume);
    if (ranking.is_null()) {
      ranking = rank_variants(left, Round(comm, options, own, contenders, train, progress).execute());
      run::on_root(comm, [&] {
        if (!is_last) write_atomically(own / search_file, ranking.dump(2) + "\n");
      });
    }
    left = better_half(left, ranking);
    run::on_root(comm, [&] { tell(ranking, progress); });
    // Those that go on are ranked by a later round.
    if (!is_last) ranking.erase(ranking.begin(), ranking.begin() + static_cast<std::ptrdiff_t>(left.size()));
    for (nlohmann::json& row : ranking) {
      if (options.rounds > 1) row["round"] = round;
    }
    ranking.insert(ranking.end(), all.begin(), all.end());
    all = std::move(ranking);
  }
  run::on_root(comm, [&] { write_atomically(folder / search_file, all.dump(2) + "\n"); });
}

}  // namespace bitloom::layerwise
