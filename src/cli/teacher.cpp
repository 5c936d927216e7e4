#include "cli/teacher.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cli/image_evaluation.h"
#include "cli/image_model.h"
#include "cli/model_source.h"
#include "cli/signals.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "data/soft_labels.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t images_at_once = 512;

bool holds_soft_labels(const fs::path& path) {
  if (fs::is_directory(path)) return false;
  return TensorMapping::open(path).tensors.contains(data::soft_labels_tensor);
}

void take_file_of_root(Session& session, const fs::path& path, data::Dataset& train) {
  std::vector<std::byte> bytes;
  session.on_root([&] { bytes = read_bytes(path); });
  bytes = session.comm.broadcast_bytes(std::move(bytes));
  session.comm.together([&] { data::take_soft_labels(TensorFile::parse(bytes, path.string()), path.string(), train); });
}

// Those of images [first, end).
std::vector<std::uint8_t> labels_by(Session& session, const ImageModel& model, const data::Dataset& train, std::size_t first,
                                    std::size_t end) {
  const std::size_t classes = train.classes();
  std::vector<std::uint8_t> labels((end - first) * classes);
  std::vector<std::vector<std::uint8_t>> rooms(images_at_once);
  const Clock::time_point start = Clock::now();
  for (std::size_t begin = first; begin < end; begin += images_at_once) {
    if (stop_requested())
      fail(ErrorKind::interrupted, "interrupted while the teacher labelled the images; nothing was trained");
    std::vector<std::span<const std::uint8_t>> images;
    for (std::size_t i = begin; i < std::min(begin + images_at_once, end); ++i)
      images.push_back(train.image(i, rooms[i - begin]));
    train.check_reads();
    const std::vector<float> probabilities = model.probabilities(images);
    for (std::size_t i = 0; i < images.size(); ++i) {
      data::quantise_probabilities({probabilities.data() + i * classes, classes},
                                   std::span(labels).subspan((begin - first + i) * classes, classes));
    }
    const std::size_t done = begin - first + images.size();
    session.terminal.update(fmt::format(
        "teacher: {} of {} images labelled, ends in {}", done, end - first,
        format_duration(seconds_since(start) * static_cast<double>(end - first - done) / static_cast<double>(done))));
  }
  return labels;
}

// Share of the images whose likeliest class is their label, and the mean probability of their label.
std::pair<double, double> agreement(const data::Dataset& train) {
  const std::size_t classes = train.classes();
  double right = 0;
  double sure = 0;
  for (std::size_t i = 0; i < train.size(); ++i) {
    const auto row = std::span(train.soft_labels).subspan(i * classes, classes);
    const std::size_t label = train.labels[i];
    right += std::ranges::max_element(row) - row.begin() == static_cast<std::ptrdiff_t>(label) ? 1 : 0;
    sure += static_cast<double>(row[label]) / data::soft_label_sum;
  }
  const auto images = static_cast<double>(train.size());
  return {right / images, sure / images};
}

}  // namespace

void add_soft_labels(Session& session, const std::string& teacher, data::Dataset& train) {
  mpi::Comm& comm = session.comm;
  std::string found;
  bool is_file = false;
  session.on_root([&] {
    try {
      is_file = fs::exists(teacher) && holds_soft_labels(teacher);
      if (!is_file) found = find_model(teacher).string();
    } catch (const Error& error) {
      fail(error.kind(), "--teacher: {}", error.what());
    }
  });
  is_file = comm.broadcast_text(is_file ? "file" : "") == "file";
  if (is_file) {
    take_file_of_root(session, teacher, train);
  } else {
    std::vector<std::byte> mine;
    const Clock::time_point start = Clock::now();
    comm.together([&] {
      const auto views = [](layerwise::Views own) {
        own.shift = 0;  // each view takes its time
        return own;
      };
      const ImageModel model = open_image_model(find_model(teacher), views);
      check_fit(train, model.shape, model.class_names);
      const auto rank = static_cast<std::size_t>(comm.rank());
      const auto ranks = static_cast<std::size_t>(comm.size());
      const std::vector<std::uint8_t> labels =
          labels_by(session, model, train, train.size() * rank / ranks, train.size() * (rank + 1) / ranks);
      const auto bytes = std::as_bytes(std::span(labels));
      mine.assign(bytes.begin(), bytes.end());
    });
    std::vector<std::byte> all;
    for (const std::vector<std::byte>& part : comm.gather_bytes(mine)) all.insert(all.end(), part.begin(), part.end());
    all = comm.broadcast_bytes(std::move(all));
    train.soft_labels.resize(all.size());
    std::ranges::transform(all, train.soft_labels.begin(), [](std::byte byte) { return std::to_integer<std::uint8_t>(byte); });
    session.terminal.print("teacher {} labelled {} images in {}", found, train.size(), format_duration(seconds_since(start)));
  }
  const auto [right, sure] = agreement(train);
  session.terminal.print("teacher: {:.2f}% of the training images as labelled; their labels have a probability of {:.3f}",
                         100 * right, sure);
}

void restore_soft_labels(Session& session, const fs::path& run, data::Dataset& train) {
  take_file_of_root(session, run / soft_labels_name, train);
}

}  // namespace bitloom::cli
