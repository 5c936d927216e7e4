// The IDX files of MNIST and its relatives, plain or compressed by gzip.
#include <zlib.h>

#include <array>
#include <memory>

#include "core/error.h"
#include "data/readers.h"

namespace bitloom::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t idx_classes = 10;
constexpr std::uint32_t magic_labels = 0x00000801;  // unsigned bytes, 1 dimension
constexpr std::uint32_t magic_images = 0x00000803;  // unsigned bytes, 3 dimensions
// Deflate cannot compress better (zlib's technical details: 1032:1), so a header that claims more is refused before any
// memory is asked for.
constexpr std::uint64_t deflate_limit = 1032;

// A file that is read from front to back; plain files pass through zlib unchanged.
class IdxFile {
 public:
  explicit IdxFile(const fs::path& path) : path_(path.string()), file_(gzopen(path_.c_str(), "rb")) {
    if (!file_) fail(ErrorKind::data, "{}: cannot be opened", path_);
    gzbuffer(file_.get(), 1 << 18);
  }

  // The big-endian 32-bit number that comes next; `what` names it in messages.
  std::uint32_t read_number(const char* what) {
    std::array<std::uint8_t, 4> bytes{};
    read(bytes.data(), bytes.size(), what);
    return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
  }

  void expect_magic(std::uint32_t expected, const char* what) {
    const std::uint32_t magic = read_number("magic number");
    if (magic != expected)
      fail(ErrorKind::data, "{}: magic number {:#010x}, expected {:#010x} ({})", path_, magic, expected, what);
  }

  void read(std::uint8_t* out, std::size_t size, const char* what) {
    std::size_t done = 0;
    while (done < size) {
      const auto piece = static_cast<unsigned>(std::min<std::size_t>(size - done, 1U << 30));
      const int got = gzread(file_.get(), out + done, piece);
      int code = Z_OK;
      const char* reason = gzerror(file_.get(), &code);
      // A gzip stream that is cut off is reported by the code, after the bytes that could still be unpacked.
      if (got < 0 || (code != Z_OK && code != Z_STREAM_END))
        fail(ErrorKind::data, "{}: broken or truncated: {} (in the {})", path_, reason, what);
      if (got == 0) fail(ErrorKind::data, "{}: truncated: the {} end after {} of {} bytes", path_, what, done, size);
      done += static_cast<std::size_t>(got);
    }
  }

  // Everything that the header promised has been read.
  void expect_end() {
    std::uint8_t byte = 0;
    if (gzread(file_.get(), &byte, 1) > 0) fail(ErrorKind::data, "{}: more bytes than its header says", path_);
    int code = Z_OK;
    const char* reason = gzerror(file_.get(), &code);
    if (code != Z_OK && code != Z_STREAM_END) fail(ErrorKind::data, "{}: broken or truncated: {}", path_, reason);
  }

  void expect_room(std::uint64_t claimed) {
    const std::uint64_t factor = gzdirect(file_.get()) == 1 ? 1 : deflate_limit;
    const std::uint64_t size = fs::file_size(path_);
    if (claimed / factor > size)
      fail(ErrorKind::data, "{}: truncated: its header says {} bytes of data, the file has {}", path_, claimed, size);
  }

  const std::string& path() const { return path_; }

 private:
  struct Close {
    void operator()(gzFile file) const noexcept { gzclose(file); }
  };

  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
};

fs::path find_file(const fs::path& folder, const std::string& name) {
  for (const char* suffix : {"", ".gz"}) {
    if (fs::path path = folder / (name + suffix); fs::exists(path)) return path;
  }
  fail(ErrorKind::data, "{}: neither {} nor {}.gz is there", folder.string(), name, name);
}

}  // namespace

Dataset read_idx(const fs::path& folder, bool train) {
  if (!fs::is_directory(folder)) fail(ErrorKind::data, "{}: no such folder (looked for IDX files there)", folder.string());
  const std::string prefix = train ? "train" : "t10k";
  IdxFile images(find_file(folder, prefix + "-images-idx3-ubyte"));
  images.expect_magic(magic_images, "images: unsigned bytes in 3 dimensions");
  const std::uint32_t count = images.read_number("number of images");
  const std::uint32_t height = images.read_number("image height");
  const std::uint32_t width = images.read_number("image width");
  constexpr std::uint32_t side_limit = 4096;
  if (count == 0 || height == 0 || width == 0 || height > side_limit || width > side_limit)
    fail(ErrorKind::data, "{}: {} images of {} x {}, expected at least one, of 1 to {} on a side", images.path(), count, height,
         width, side_limit);

  IdxFile labels(find_file(folder, prefix + "-labels-idx1-ubyte"));
  labels.expect_magic(magic_labels, "labels: unsigned bytes in 1 dimension");
  const std::uint32_t label_count = labels.read_number("number of labels");
  if (label_count != count)
    fail(ErrorKind::data, "{}: {} labels, but {} has {} images", labels.path(), label_count, images.path(), count);

  Dataset dataset{"idx", ImageShape{height, width, 1}, {}, {}, {}};
  for (std::size_t i = 0; i < idx_classes; ++i) dataset.class_names.push_back(std::to_string(i));
  labels.expect_room(count);
  std::vector<std::uint8_t> bytes(count);
  labels.read(bytes.data(), bytes.size(), "labels");
  labels.expect_end();
  dataset.labels.assign(bytes.begin(), bytes.end());
  for (std::size_t i = 0; i < count; ++i) {
    if (dataset.labels[i] >= idx_classes)
      fail(ErrorKind::data, "{}: record {} of {} has label {}, expected 0 to {}", labels.path(), i + 1, count,
           dataset.labels[i], idx_classes - 1);
  }
  images.expect_room(std::uint64_t{count} * dataset.shape.size());
  dataset.pixels.resize(count * dataset.shape.size());
  images.read(dataset.pixels.data(), dataset.pixels.size(), "images");
  images.expect_end();
  return dataset;
}

}  // namespace bitloom::data
