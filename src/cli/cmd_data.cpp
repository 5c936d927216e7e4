// bitloom data synth, info and sheet.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "cli/command.h"
#include "cli/image_sheet.h"
#include "cli/make_folder.h"
#include "cli/model_source.h"
#include "core/error.h"
#include "core/text.h"
#include "data/image.h"
#include "data/readers.h"
#include "data/synthetic.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

void print_set(Terminal& terminal, const char* which, const data::Dataset& set) {
  if (set.size() == 0) return;
  terminal.print("\n{}: {} images, hash {}", which, set.size(), data::content_hash(set));
  std::vector<std::size_t> counts(set.classes(), 0);
  for (const std::uint16_t label : set.labels) ++counts[label];
  std::size_t width = 0;
  for (const std::string& name : set.class_names) width = std::max(width, name.size());
  for (std::size_t i = 0; i < counts.size(); ++i) terminal.print("  {:<{}}  {}", set.class_names[i], width, counts[i]);
}

// A row per class with its first `columns` images, one pixel between them; images missing are black.
void write_sheet(const data::Dataset& set, std::size_t columns, const fs::path& file) {
  const std::size_t step_y = set.shape.height + 1;
  const std::size_t step_x = set.shape.width + 1;
  const data::ImageShape shape{step_y * set.classes() - 1, step_x * columns - 1, set.shape.channels};
  std::vector<std::uint8_t> pixels(shape.size(), 0);
  std::vector<std::size_t> placed(set.classes(), 0);
  std::vector<std::uint8_t> room;
  for (std::size_t i = 0; i < set.size(); ++i) {
    const std::size_t row = set.labels[i];
    if (placed[row] == columns) continue;
    const std::uint8_t* source = set.image(i, room).data();
    for (std::size_t c = 0; c < shape.channels; ++c) {
      for (std::size_t y = 0; y < set.shape.height; ++y, source += set.shape.width) {
        const std::size_t target = (c * shape.height + row * step_y + y) * shape.width + placed[row] * step_x;
        std::copy_n(source, set.shape.width, pixels.begin() + static_cast<std::ptrdiff_t>(target));
      }
    }
    ++placed[row];
  }
  set.check_reads();
  data::write_png(pixels, shape, file);
}

// FOLDER/CLASS/00000.png, ...: as users have pictures of their own.
void write_pictures(const data::Dataset& set, const fs::path& folder) {
  std::vector<std::size_t> placed(set.classes(), 0);
  std::vector<std::uint8_t> room;
  for (const std::string& name : set.class_names) make_folder("--out", folder / name);
  for (std::size_t i = 0; i < set.size(); ++i) {
    const std::size_t label = set.labels[i];
    data::write_png(set.image(i, room), set.shape, folder / set.class_names[label] / fmt::format("{:05}.png", placed[label]++));
  }
}

// Throws Error(usage) if pictures or files of CIFAR-10 in a folder would stay beside those that are written, and be read with
// them.
void check_replaced(const fs::path& folder, bool is_cifar10, const data::Dataset& train, const data::Dataset& test) {
  const auto refuse = [&](const fs::path& file) {
    fail(ErrorKind::usage, "--out: {} would stay among the new files; expected a new folder", file.string());
  };
  for (const std::string& name : data::cifar10_files()) {
    if (!is_cifar10 && fs::exists(folder / name)) refuse(folder / name);
  }
  for (const auto& [part, set] : {std::pair("train", &train), std::pair("test", &test)}) {
    for (std::size_t label = 0; label < set->classes(); ++label) {
      const auto written = is_cifar10 ? 0 : std::count(set->labels.begin(), set->labels.end(), label);
      std::error_code ignored;
      for (const auto& entry : fs::directory_iterator(folder / part / set->class_names[label], ignored)) {
        const auto number = parse_int(entry.path().stem().string());
        const bool is_written = entry.path().extension() == ".png" && number && *number >= 0 && *number < written;
        if (!is_written && data::is_image_name(entry.path())) refuse(entry.path());
      }
    }
  }
}

}  // namespace

int data_synth(Session& session, std::span<const std::string> args) {
  std::string out;
  std::string format = "cifar10";
  std::size_t train = 10000;
  std::size_t test = 2000;
  std::size_t seed = 1;
  bool force = false;
  Options options(
      "bitloom data synth --out FOLDER [options]",
      "Writes the built-in data set, procedural 32 x 32 colour pictures of ten classes, as CIFAR-10 binary files or as PNG\n"
      "files in train/CLASS and test/CLASS, as one's own pictures may lie.");
  options.text("out", out, "FOLDER", "Folder for the files, new or empty");
  options.choice("format", format, {"cifar10", "pictures"}, "Files to write");
  options.count("train", train, 5, 100000000, "Number of training images");
  options.count("test", test, 1, 100000000, "Number of test images");
  options.count("seed", seed, 0, any_count, "Seed of the series of images");
  options.flag("force", force, "Replacement of files of the same names");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  if (out.empty()) fail(ErrorKind::usage, "--out: missing; expected a folder");
  session.on_root([&] {
    if (!force && fs::exists(out) && !(fs::is_directory(out) && fs::is_empty(out))) {
      fail(ErrorKind::usage,
           "--out: {} is there already and not an empty folder; --force replaces the files of a data set in it", out);
    }
    const data::Dataset training = data::make_synthetic(seed, train);
    const data::Dataset testing = data::make_synthetic(seed, test, data::synthetic_test_first);
    check_replaced(out, format == "cifar10", training, testing);
    if (format == "cifar10") {
      data::write_cifar10(training, testing, out);
    } else {
      write_pictures(training, fs::path(out) / "train");
      write_pictures(testing, fs::path(out) / "test");
    }
    session.terminal.print("{}: {} training and {} test images, seed {}", out, train, test, seed);
  });
  return exit_done;
}

int data_info(Session& session, std::span<const std::string> args) {
  std::vector<std::string> spec;
  DataOptions data;
  Options options("bitloom data info SPEC [options]",
                  "Shows the images per class, their shape and a hash of the contents. SPEC: synth, synth:SEED, a folder, or\n"
                  "KIND:FOLDER with KIND cifar10, cifar100, idx or folder.");
  options.arguments(spec, "SPEC", 1, 1);
  data.declare_folders(options);
  if (!parse_or_show_help(session, args, options)) return exit_done;
  session.on_root([&] {
    data::LoadOptions load = load_options(data);
    load.test_alone = true;
    const data::DataSplits splits = data::load(spec.front(), load);
    const data::ImageShape& shape = splits.train.shape;
    check_image_size(data, spec.front(), shape);
    session.terminal.print("{}: {} x {} pixels, {} colour{}, {} classes", splits.train.name, shape.height, shape.width,
                           shape.channels, shape.channels == 1 ? "" : "s", splits.train.classes());
    print_set(session.terminal, "train", splits.train);
    if (splits.train.size() == 0) session.terminal.line("\ntrain: no images, so that nets can be measured but not trained");
    print_set(session.terminal, "test", splits.test);
    session.terminal.note(data::note_on_unread(spec.front()));
  });
  return exit_done;
}

int data_sheet(Session& session, std::span<const std::string> args) {
  std::vector<std::string> spec;
  std::string out;
  std::string split = "train";
  std::size_t columns = 16;
  DataOptions data;
  Options options("bitloom data sheet SPEC --out FILE.png [options]",
                  "Draws the first images of each class, a row per class, as a PNG.");
  options.arguments(spec, "SPEC", 1, 1);
  options.text("out", out, "FILE", "Picture to write");
  options.choice("split", split, {"train", "test"}, "Part of the data set");
  options.count("columns", columns, 1, 1000, "Images per class");
  data.declare_folders(options);
  if (!parse_or_show_help(session, args, options)) return exit_done;
  if (out.empty()) fail(ErrorKind::usage, "--out: missing; expected the name of a PNG file");
  require_png("--out", out);
  session.on_root([&] {
    data::LoadOptions load = load_options(data);
    load.test_alone = split == "test";
    const data::DataSplits splits = data::load(spec.front(), load);
    check_image_size(data, spec.front(), splits.train.shape);
    write_sheet(split == "train" ? splits.train : splits.test, columns, out);
    session.terminal.print("{}", out);
  });
  return exit_done;
}

}  // namespace bitloom::cli
