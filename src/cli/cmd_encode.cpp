// bitloom encode and bitloom reconstruct: images to tokens by a trained discrete VAE, and pictures of what tokens hold.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "cli/command.h"
#include "cli/device.h"
#include "cli/dvae_evaluation.h"
#include "cli/image_sheet.h"
#include "cli/model_source.h"
#include "cli/options.h"
#include "cli/pair_options.h"
#include "cli/system.h"
#include "core/error.h"
#include "core/progress.h"
#include "data/image.h"
#include "data/pairs/pair_batches.h"
#include "models/dvae/model_file.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

// Options of both.
struct CoderSettings {
  std::vector<std::string> model;
  PairOptions data;
  std::string out, split;
  std::string values = "f32", device = "cpu", backend;

  void declare(Options& options, const std::string& file, const std::string& what) {
    options.arguments(model, "MODEL|RUN", 1, 1);
    options.text("out", out, file, what);
    options.choice("split", split, {"all", "train", "validation"}, "Part of the images");
    declare_dtype(options, values);
    declare_device(options, device);
    options.text("backend", backend, "NAME", "Implementation that computes; \"\": the device's own");
    options.group("Data (a run's own where not given)");
    data.declare(options);
  }
};

// Options of a run and of the command line; false if help was asked for.
bool read(Session& session, std::span<const std::string> args, Options& options) {
  if (!options.parse(args)) {
    session.terminal.line(options.help());
    return false;
  }
  if (options.raw("out").empty()) fail(ErrorKind::usage, "--out: missing; expected the name of a file");
  choose_threads(session.comm);
  return true;
}

// The model's file. Then the options of its run are read, and put into the settings; those of another kind would not be
// understood.
fs::path read_run_options(Options& options, CoderSettings& settings) {
  const fs::path file = find_model(settings.model.front());
  require_kind(file, {models::dvae_kind});
  read_pair_options(options, settings.data, settings.model.front());
  require_other_output("--out", settings.out, file);
  return file;
}

OpenDvae open_dvae(Terminal& terminal, const CoderSettings& settings, const fs::path& file) {
  terminal.note(checkpoint_note(file));
  return {file, settings.values, settings.device, settings.backend};
}

constexpr std::size_t encoded_at_once = 32;

void encode_all(Terminal& terminal, const CoderSettings& settings, const fs::path& file, const data::Pairs& pairs) {
  OpenDvae dvae = open_dvae(terminal, settings, file);
  models::ImageTokens tokens{dvae.config().grid(), dvae.config().codes, dvae.model().hash, content_hash(pairs), {}};
  data::for_centre_batches(pairs, data::first_indexes(pairs.size()), dvae.config().side, encoded_at_once,
                           [&](const data::PairBatch& batch, std::size_t done) {
                             const std::vector<std::int32_t> some = dvae.coder().encode(batch.images);
                             tokens.tokens.insert(tokens.tokens.end(), some.begin(), some.end());
                             terminal.update(fmt::format("{} of {} images", done, pairs.size()));
                           });
  models::to_file(tokens).save(settings.out);
  terminal.print("{}: {} images as {} x {} tokens of {} codes ({})", settings.out, tokens.images(), tokens.grid, tokens.grid,
                 tokens.codes, format_bytes(fs::file_size(settings.out)));
}

void draw(Terminal& terminal, const CoderSettings& settings, const fs::path& file, const data::Pairs& pairs, std::size_t wanted,
          std::size_t columns) {
  OpenDvae dvae = open_dvae(terminal, settings, file);
  const std::size_t side = dvae.config().side;
  const std::size_t all = std::min(wanted, pairs.size());
  ImageSheet sheet(all, columns, side, 2);
  double error = 0;
  const std::size_t size = dvae.config().values();
  data::for_centre_batches(pairs, data::first_indexes(all), side, encoded_at_once,
                           [&](const data::PairBatch& batch, std::size_t done) {
                             const std::vector<std::uint8_t>& before = batch.images;
                             const std::vector<std::uint8_t> after = dvae.coder().decode(dvae.coder().encode(before));
                             for (std::size_t i = 0; i < batch.indexes.size(); ++i) {
                               sheet.put(batch.indexes[i], std::span(before).subspan(i * size, size), 0);
                               sheet.put(batch.indexes[i], std::span(after).subspan(i * size, size), 1);
                             }
                             for (std::size_t i = 0; i < before.size(); ++i) {
                               const double distance = (static_cast<int>(before[i]) - static_cast<int>(after[i])) / 255.0;
                               error += distance * distance;
                             }
                             terminal.update(fmt::format("{} of {} images", done, all));
                           });
  sheet.write(settings.out);
  error /= static_cast<double>(all * dvae.config().values());
  terminal.print("{}: {} images, each beside its reconstruction from {} tokens, PSNR {:.2f} dB", settings.out, all,
                 dvae.config().grid() * dvae.config().grid(), -10 * std::log10(std::max(error, 1e-12)));
}

}  // namespace

int encode(Session& session, std::span<const std::string> args) {
  CoderSettings settings;
  settings.split = "all";
  Options options("bitloom encode MODEL|RUN --out FILE [options]",
                  "Writes the tokens that a discrete VAE makes of images, cut square in the centre, as a safetensors file.");
  settings.declare(options, "FILE", "File for the tokens");
  if (!read(session, args, options)) return exit_done;
  session.on_root([&] {
    const fs::path file = read_run_options(options, settings);
    encode_all(session.terminal, settings, file, part_of(settings.data, settings.split, session.terminal));
  });
  return exit_done;
}

int reconstruct(Session& session, std::span<const std::string> args) {
  CoderSettings settings;
  settings.split = "validation";
  std::size_t count = 32, columns = 4;
  Options options("bitloom reconstruct MODEL|RUN --out FILE.png [options]",
                  "Draws images beside what a discrete VAE makes of their tokens.");
  settings.declare(options, "FILE.png", "Picture to write");
  options.group("Picture");
  options.count("count", count, 1, 10000, "Number of images");
  options.count("columns", columns, 1, 100, "Images in a row of the picture");
  if (!read(session, args, options)) return exit_done;
  require_png("--out", options.raw("out"));
  session.on_root([&] {
    const fs::path file = read_run_options(options, settings);
    draw(session.terminal, settings, file, part_of(settings.data, settings.split, session.terminal), count, columns);
  });
  return exit_done;
}

}  // namespace bitloom::cli
