// PNG through libpng's simplified API, JPEG through libjpeg-turbo.
#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>  // jpeglib.h needs it and does not include it
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <jpeglib.h>

#include <jerror.h>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "data/exif.h"
#include "data/image.h"

namespace bitloom::data {
namespace {

namespace fs = std::filesystem;

using Bytes = std::span<const std::byte>;

// A few bytes can claim a picture of terabytes; nobody trains on more than this.
constexpr std::uint64_t pixel_limit = std::uint64_t{1} << 27;

// A decoded picture: height x width x 3, interleaved.
struct Interleaved {
  std::size_t height = 0;
  std::size_t width = 0;
  std::vector<std::uint8_t> rgb;
};

void check_size(std::size_t height, std::size_t width, const std::string& path) {
  if (height == 0 || width == 0 || std::uint64_t{height} * width > pixel_limit)
    fail(ErrorKind::data, "{}: {} x {} pixels, expected 1 to {} in all", path, width, height, pixel_limit);
}

void allocate(Interleaved& picture, std::size_t height, std::size_t width, const std::string& path) {
  check_size(height, width, path);
  picture.height = height;
  picture.width = width;
  picture.rgb.resize(height * width * 3);
}

ImageShape shape_to_be_seen(std::size_t height, std::size_t width, int orientation) {
  if (is_on_its_side(orientation)) std::swap(height, width);
  return {height, width, 3};
}

void turn_upright(Interleaved& picture, int orientation) {
  if (orientation == 1) return;
  picture.rgb = upright(picture.rgb, picture.height, picture.width, 3, orientation);
  if (is_on_its_side(orientation)) std::swap(picture.height, picture.width);
}

// An opened PNG file, whose head was read.
struct PngReader {
  PngReader(Bytes file, const std::string& path) {
    png.version = PNG_IMAGE_VERSION;
    if (png_image_begin_read_from_memory(&png, file.data(), file.size()) == 0)
      fail(ErrorKind::data, "{}: broken PNG: {}", path, png.message);
    png.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;  // as 8 bits are taken, where the file does not say; else 16 bits were linear
  }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
  ~PngReader() { png_image_free(&png); }

  png_image png{};
};

// Calls visit(kind, data) for the chunks of a PNG file that are whole, until one returns false. Gives where it stopped.
template <typename Visit>
std::size_t for_each_chunk(Bytes file, Visit&& visit) {
  constexpr std::size_t signature = 8, around = 12;  // bytes; of a chunk without its data
  std::size_t at = signature;
  while (at + around <= file.size()) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 4; ++i) length = length << 8U | std::to_integer<std::size_t>(file[at + i]);
    if (length > file.size() - at - around) break;
    const std::string_view kind(reinterpret_cast<const char*>(file.data()) + at + 4, 4);
    if (!visit(kind, file.subspan(at + 8, length))) break;
    at += around + length;
  }
  return at;
}

// Throws for a file that was cut off, in the middle of a chunk or before those of the picture. Some lack the last one alone.
void check_png_end(Bytes file, const std::string& path) {
  bool has_picture = false, has_end = false;
  const std::size_t stopped = for_each_chunk(file, [&](std::string_view kind, Bytes) {
    has_picture |= kind == "IDAT";
    has_end = kind == "IEND";
    return !has_end;
  });
  if (!has_end && (!has_picture || stopped != file.size())) fail(ErrorKind::data, "{}: broken PNG: it is cut off", path);
}

int png_orientation(Bytes file) {
  int orientation = 1;
  for_each_chunk(file, [&](std::string_view kind, Bytes data) {
    if (kind != "eXIf") return kind != "IEND";
    orientation = tiff_orientation(data);
    return false;
  });
  return orientation;
}

ImageShape png_shape(Bytes file, const std::string& path) {
  const PngReader reader(file, path);
  check_png_end(file, path);
  check_size(reader.png.height, reader.png.width, path);
  return shape_to_be_seen(reader.png.height, reader.png.width, png_orientation(file));
}

Interleaved decode_png(Bytes file, const std::string& path) {
  PngReader reader(file, path);
  png_image& png = reader.png;
  png.format = PNG_FORMAT_RGB;
  Interleaved picture;
  allocate(picture, png.height, png.width, path);
  const png_color black{0, 0, 0};
  if (png_image_finish_read(&png, &black, picture.rgb.data(), 0, nullptr) == 0)
    fail(ErrorKind::data, "{}: broken PNG: {}", path, png.message);
  turn_upright(picture, png_orientation(file));
  return picture;
}

// libjpeg reports errors through a callback that must not return. It jumps back into the member function that called the
// library, and those hold nothing that would need a destructor; allocation and exceptions happen outside of them.
class JpegDecoder {
 public:
  JpegDecoder() {
    info_.err = jpeg_std_error(&errors_);
    info_.client_data = this;
    errors_.error_exit = &JpegDecoder::on_error;
    errors_.emit_message = &JpegDecoder::on_message;
  }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;
  ~JpegDecoder() { jpeg_destroy_decompress(&info_); }  // does nothing if it was never created

  bool start(Bytes file) {
    if (setjmp(back_) != 0) return false;
    jpeg_create_decompress(&info_);
    jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(file.data()), file.size());
    jpeg_save_markers(&info_, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(&info_, TRUE);
    is_of_print_ = info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
    if (is_of_print_) return false;
    for (jpeg_saved_marker_ptr marker = info_.marker_list; marker != nullptr && orientation_ == 1; marker = marker->next) {
      orientation_ = exif_orientation(std::as_bytes(std::span(marker->data, marker->data_length)));
    }
    info_.out_color_space = JCS_RGB;
    info_.dct_method = JDCT_ISLOW;  // integer: the same bytes on every machine
    jpeg_calc_output_dimensions(&info_);
    return true;
  }
  std::size_t height() const { return info_.output_height; }
  std::size_t width() const { return info_.output_width; }
  // out: height x width x 3.
  bool decode(std::uint8_t* out) {
    if (setjmp(back_) != 0) return false;
    jpeg_start_decompress(&info_);
    while (info_.output_scanline < info_.output_height) {
      JSAMPROW row = out + std::size_t{info_.output_scanline} * info_.output_width * 3;
      jpeg_read_scanlines(&info_, &row, 1);
    }
    jpeg_finish_decompress(&info_);
    return true;
  }
  // Why start() or decode() returned false.
  [[noreturn]] void refuse(const std::string& path) const {
    if (is_of_print_) fail(ErrorKind::data, "{}: a JPEG file in the colours of print (CMYK); expected RGB or grey", path);
    fail(ErrorKind::data, "{}: broken JPEG: {}", path, message_.data());
  }
  int orientation() const { return orientation_; }

 private:
  static void on_error(j_common_ptr info) {
    auto* self = static_cast<JpegDecoder*>(info->client_data);
    info->err->format_message(info, self->message_.data());
    std::longjmp(self->back_, 1);
  }
  // Warnings (level -1) about missing or garbled picture data are errors here: libjpeg would fill in grey. Others, such as
  // stray bytes between segments, are common in the wild and harmless.
  static void on_message(j_common_ptr info, int level) {
    if (level >= 0) return;
    constexpr std::array damage{int{JWRN_HIT_MARKER}, int{JWRN_JPEG_EOF}, int{JWRN_HUFF_BAD_CODE}, int{JWRN_MUST_RESYNC},
                                int{JWRN_ARITH_BAD_CODE}};
    if (std::find(damage.begin(), damage.end(), info->err->msg_code) != damage.end()) on_error(info);
  }

  jpeg_decompress_struct info_{};
  jpeg_error_mgr errors_{};
  std::jmp_buf back_{};
  std::array<char, JMSG_LENGTH_MAX> message_{};
  int orientation_ = 1;
  bool is_of_print_ = false;
};

// Throws for a file that was cut off: no end of the image follows its first scan. Pictures of its own that a segment holds, as
// cameras make them, are stepped over.
void check_jpeg_end(Bytes file, const std::string& path) {
  constexpr std::byte marker{0xff}, end_of_image{0xd9}, start_of_scan{0xda};
  bool in_scan = false;
  for (std::size_t at = 2; at + 1 < file.size();) {
    if (file[at] != marker || file[at + 1] == marker) {
      ++at;
      continue;
    }
    const std::byte kind = file[at + 1];
    at += 2;
    if (kind == end_of_image) return;
    if (in_scan || at + 2 > file.size()) continue;
    in_scan = kind == start_of_scan;
    at += std::to_integer<std::size_t>(file[at]) << 8U | std::to_integer<std::size_t>(file[at + 1]);
  }
  fail(ErrorKind::data, "{}: broken JPEG: it is cut off", path);
}

ImageShape jpeg_shape(Bytes file, const std::string& path) {
  JpegDecoder decoder;
  if (!decoder.start(file)) decoder.refuse(path);
  check_jpeg_end(file, path);
  check_size(decoder.height(), decoder.width(), path);
  return shape_to_be_seen(decoder.height(), decoder.width(), decoder.orientation());
}

Interleaved decode_jpeg(Bytes file, const std::string& path) {
  JpegDecoder decoder;
  if (!decoder.start(file)) decoder.refuse(path);
  Interleaved picture;
  allocate(picture, decoder.height(), decoder.width(), path);
  if (!decoder.decode(picture.rgb.data())) decoder.refuse(path);
  turn_upright(picture, decoder.orientation());
  return picture;
}

struct ImageFormat {
  std::array<unsigned char, 3> signature;  // the first bytes of the file
  Interleaved (*decode)(Bytes file, const std::string& path);
  ImageShape (*shape)(Bytes file, const std::string& path);
};

constexpr std::array<ImageFormat, 2> formats{
    {{{0x89, 'P', 'N'}, &decode_png, &png_shape}, {{0xff, 0xd8, 0xff}, &decode_jpeg, &jpeg_shape}}};

const ImageFormat& format_of(Bytes file, const std::string& path) {
  for (const ImageFormat& format : formats) {
    if (file.size() >= format.signature.size() &&
        std::memcmp(file.data(), format.signature.data(), format.signature.size()) == 0)
      return format;
  }
  fail(ErrorKind::data, "{}: neither a PNG nor a JPEG file", path);
}

// Weights of ITU-R BT.601, which JPEG uses as well, in 256ths.
std::uint8_t grey(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((77 * rgb[0] + 150 * rgb[1] + 29 * rgb[2] + 128) >> 8);
}

}  // namespace

Image read_image(const fs::path& path, std::size_t channels) {
  if (channels != 1 && channels != 3) fail(ErrorKind::usage, "channels: {}, expected 1 (grey) or 3 (colour)", channels);
  // Not mapped: a file that somebody makes shorter meanwhile would end the process.
  const std::vector<std::byte> file = read_bytes(path);
  const Interleaved picture = format_of(file, path.string()).decode(file, path.string());
  Image image{{picture.height, picture.width, channels}, std::vector<std::uint8_t>(picture.height * picture.width * channels)};
  const std::size_t plane = picture.height * picture.width;
  for (std::size_t i = 0; i < plane; ++i) {
    const std::uint8_t* rgb = picture.rgb.data() + 3 * i;
    if (channels == 1) {
      image.pixels[i] = grey(rgb);
    } else {
      for (std::size_t c = 0; c < 3; ++c) image.pixels[c * plane + i] = rgb[c];
    }
  }
  return image;
}

ImageShape image_shape(std::span<const std::byte> file, const std::string& name) {
  return format_of(file, name).shape(file, name);
}

bool is_image_name(const fs::path& path) {
  const std::string extension = lower_case(path.extension().string());
  return extension == ".png" || extension == ".jpg" || extension == ".jpeg";
}

void write_png(std::span<const std::uint8_t> pixels, const ImageShape& shape, const fs::path& path) {
  if ((shape.channels != 1 && shape.channels != 3) || pixels.size() != shape.size() || pixels.empty())
    fail(ErrorKind::usage, "{}: a PNG of {} x {} x {} cannot be made of {} bytes", path.string(), shape.channels, shape.height,
         shape.width, pixels.size());
  const std::size_t plane = shape.height * shape.width;
  std::vector<std::uint8_t> interleaved(pixels.size());
  for (std::size_t c = 0; c < shape.channels; ++c) {
    for (std::size_t i = 0; i < plane; ++i) interleaved[i * shape.channels + c] = pixels[c * plane + i];
  }
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(shape.width);
  png.height = static_cast<png_uint_32>(shape.height);
  png.format = shape.channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::string file(size, '\0');
  if (png_image_write_to_memory(&png, file.data(), &size, 0, interleaved.data(), 0, nullptr) == 0)
    fail(ErrorKind::io, "{}: the PNG cannot be made: {}", path.string(), png.message);
  file.resize(size);
  write_atomically(path, file);
}

}  // namespace bitloom::data
