#include "cli/teacher.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "cli/image_evaluation.h"
#include "cli/image_model.h"
#include "cli/model_source.h"
#include "cli/options.h"
#include "cli/signals.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/isa.h"
#include "core/text.h"
#include "data/augment.h"
#include "data/soft_labels.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t labels_at_once = 512;  // between two meetings of the ranks

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

// Which of the ranks that have a teacher this one is: other hosts need not have its file.
struct Share {
  bool has_teacher = false;
  std::size_t place = 0, teachers = 0;
};

Share share_of(mpi::Comm& comm, const std::string& teacher) {
  Share share;
  share.has_teacher = comm.is_root();
  try {
    find_model(teacher);
    share.has_teacher = true;
  } catch (const Error&) {
    // Rank 0 has it.
  }
  std::vector<std::int64_t> flags(static_cast<std::size_t>(comm.size()));
  flags[static_cast<std::size_t>(comm.rank())] = share.has_teacher ? 1 : 0;
  comm.sum(std::span(flags));
  share.place = static_cast<std::size_t>(std::accumulate(flags.begin(), flags.begin() + comm.rank(), std::int64_t{0}));
  share.teachers = static_cast<std::size_t>(std::accumulate(flags.begin(), flags.end(), std::int64_t{0}));
  return share;
}

// Soft labels of images begin .. end, each as it is and moved: (end - begin, places, C).
std::vector<std::uint8_t> labels_of_images(const ImageModel& model, const data::Dataset& train, std::size_t begin,
                                           std::size_t end, int step) {
  const std::size_t classes = train.classes(), places = data::labels_per_image(step);
  std::vector<std::vector<std::uint8_t>> moved((end - begin) * places, std::vector<std::uint8_t>(train.shape.size()));
  std::vector<std::uint8_t> room;
  for (std::size_t i = 0; i < moved.size(); ++i) {
    const data::Shift shift = step == 0 ? data::Shift() : data::label_shifts(step)[i % places];
    data::shift(train.image(begin + i / places, room), train.shape, shift.down, shift.across, false, moved[i].data());
  }
  train.check_reads();
  const std::vector<float> probabilities =
      model.probabilities(std::vector<std::span<const std::uint8_t>>(moved.begin(), moved.end()));
  std::vector<std::uint8_t> labels(probabilities.size());
  for (std::size_t i = 0; i < moved.size(); ++i) {
    data::quantise_probabilities(std::span(probabilities).subspan(i * classes, classes),
                                 std::span(labels).subspan(i * classes, classes));
  }
  return labels;
}

// This rank's share of the labels, in rounds in which all ranks meet, so that nobody takes the others for lost and a stop is
// everybody's.
std::vector<std::uint8_t> labels_of_share(Session& session, const std::string& teacher, const Share& share,
                                          const data::Dataset& train, int step) {
  mpi::Comm& comm = session.comm;
  std::optional<ImageModel> model;
  comm.together([&] {
    if (!share.has_teacher) return;
    const auto views = [](layerwise::Views own) {
      own.shift = 0;  // each view takes its time
      own.sure = 1;   // labels are as finely graded for images that are sure
      return own;
    };
    // Half the time where the CPU multiplies it; labels are bytes, which differ by a step now and then.
    model = open_image_model(find_model(teacher), views, multiplies_bf16() ? "bf16" : "f32");
    check_fit(train, model->shape, model->class_names);
  });
  const std::size_t first = share.has_teacher ? train.size() * share.place / share.teachers : 0;
  const std::size_t end = share.has_teacher ? train.size() * (share.place + 1) / share.teachers : 0;
  std::vector<std::uint8_t> labels;
  labels.reserve((end - first) * data::labels_per_image(step) * train.classes());
  const std::size_t at_once = labels_at_once / data::labels_per_image(step);
  const std::size_t most = (train.size() + share.teachers - 1) / share.teachers;
  const Clock::time_point start = Clock::now();
  for (std::size_t done = 0; done < most; done += at_once) {
    std::array<std::int64_t, 1> stops{stop_requested() ? 1 : 0};
    comm.sum(std::span(stops));
    if (stops[0] != 0) {
      fail(ErrorKind::interrupted, "interrupted while the teacher labelled the images; nothing was trained");
    }
    comm.together([&] {
      const std::size_t begin = std::min(first + done, end);
      const std::size_t next = std::min(begin + at_once, end);
      if (begin == next) return;
      const std::vector<std::uint8_t> found = labels_of_images(*model, train, begin, next, step);
      labels.insert(labels.end(), found.begin(), found.end());
    });
    const auto labelled = static_cast<double>(std::min(done + at_once, most));
    session.terminal.update(fmt::format("teacher: {:.0f}% of the images labelled{}, ends in {}",
                                        100 * labelled / static_cast<double>(most), step == 0 ? "" : " at 9 places each",
                                        format_duration(seconds_since(start) * (static_cast<double>(most) / labelled - 1))));
  }
  return labels;
}

// Share of the images whose likeliest class is their label, and the mean probability of their label.
std::pair<double, double> agreement(const data::Dataset& train) {
  double right = 0;
  double sure = 0;
  for (std::size_t i = 0; i < train.size(); ++i) {
    const auto row = data::soft_label(train, i, {});
    const std::size_t label = train.labels[i];
    right += std::ranges::max_element(row) - row.begin() == static_cast<std::ptrdiff_t>(label) ? 1 : 0;
    sure += static_cast<double>(row[label]) / data::soft_label_sum;
  }
  const auto images = static_cast<double>(train.size());
  return {right / images, sure / images};
}

// Those of a teacher that is there.
void add_soft_labels(Session& session, const std::string& teacher, data::Dataset& train, int step) {
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
    if (train.soft_label_step != 0) {
      session.terminal.print("teacher {}: labels of images at 9 places {} pixels apart", teacher, train.soft_label_step);
    }
  } else {
    const Clock::time_point start = Clock::now();
    const std::vector<std::uint8_t> labels = labels_of_share(session, teacher, share_of(comm, teacher), train, step);
    const auto mine = std::as_bytes(std::span(labels));
    std::vector<std::byte> all;
    for (std::vector<std::byte>& part : comm.gather_bytes(mine)) {
      all.insert(all.end(), part.begin(), part.end());
      part = {};
    }
    all = comm.broadcast_bytes(std::move(all));
    train.soft_label_step = step;
    train.soft_labels.resize(all.size());
    std::ranges::transform(all, train.soft_labels.begin(), [](std::byte byte) { return std::to_integer<std::uint8_t>(byte); });
    session.terminal.print("teacher {} labelled {} images in {}{}", found, train.size(), format_duration(seconds_since(start)),
                           step == 0 ? "" : fmt::format(", each at 9 places {} pixels apart", step));
  }
  const auto [right, sure] = agreement(train);
  session.terminal.print("teacher: {:.2f}% of the training images as labelled; their labels have a probability of {:.3f}",
                         100 * right, sure);
}

// Those that a run began with, from its folder. False where they are not there or were of another teacher.
bool restore_soft_labels(Session& session, const fs::path& run, const std::string& teacher, data::Dataset& train) {
  const fs::path file = run / soft_labels_name;
  std::string found;
  session.on_root([&] {
    if (!fs::exists(file) || !fs::exists(run / options_file)) return;
    const std::map<std::string, std::string> options = options_of_run(run);
    const auto before = options.find("teacher");
    if (before != options.end() && before->second == teacher) found = file.string();
  });
  if (session.comm.broadcast_text(found).empty()) return false;
  try {
    take_file_of_root(session, file, train);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data) throw;
    fail(ErrorKind::usage,
         "--resume: {}; expected the images that the run began with (--data, --max-train, --validation, "
         "--split-seed)",
         error.what());
  }
  return true;
}

}  // namespace

void TeacherSettings::declare(Options& options, const std::string& targets) {
  static const std::vector<Options::Need> needs{{"teacher-share", "teacher", {}}, {"teacher-shift", "teacher", {}}};
  options.needs(needs);
  options.text("teacher", net, "RUN|FILE",
               fmt::format("Trained net, a run or a model, whose probabilities are mixed into {}; or a file of them", targets));
  options.count(
      "teacher-shift", shift, 0, 64,
      "Pixels by which images are moved each way for nine labels of the teacher, of which the nearest one counts for an "
      "augmented image (at most the crop of --augment), which takes nine times as long; 0: one label for each image. A run's "
      "soft-labels.safetensors as --teacher saves labelling again");
}

int TeacherSettings::step(const Options& options, int crop_padding) const {
  const int asked = static_cast<int>(shift);
  if (asked > crop_padding && options.asks_for_other("teacher-shift", "augment")) {
    fail(ErrorKind::usage, "--teacher-shift: {}; expected at most the pixels by which crops of --augment move images, {}",
         asked, crop_padding);
  }
  return std::min(crop_padding, asked);
}

void TeacherSettings::label(Session& session, const Options& options, const fs::path& folder, bool resume, int step,
                            data::Dataset& train) {
  if (!resume || !restore_soft_labels(session, folder, net, train)) add_soft_labels(session, net, train, step);
  const auto labelled = static_cast<std::size_t>(train.soft_label_step);
  if (static_cast<std::size_t>(step) != labelled && options.asks_for_other("teacher-shift", "teacher")) {
    fail(ErrorKind::usage, "--teacher-shift: {}; the soft labels that are there are of images moved by {}", shift, labelled);
  }
  shift = labelled;  // as options.ini is to say
  if (resume || !session.comm.is_root()) return;
  const std::vector<std::byte> bytes = data::soft_labels_file(train).serialize();
  labels.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace bitloom::cli
