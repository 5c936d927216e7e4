#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <jpeglib.h>

#include "core/random.h"
#include "data/exif.h"
#include "data/readers.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;
namespace fs = std::filesystem;

namespace {

// A smooth picture, each channel with a slope of its own.
Image slopes(std::size_t height, std::size_t width, std::size_t channels) {
  Image image{{height, width, channels}, {}};
  for (std::size_t c = 0; c < channels; ++c) {
    for (std::size_t y = 0; y < height; ++y) {
      for (std::size_t x = 0; x < width; ++x)
        image.pixels.push_back(static_cast<std::uint8_t>(20 + 60 * c + 40 * y / height + 30 * x / width));
    }
  }
  return image;
}

// exif: contents of a segment of the file; none if empty.
void write_jpeg(const fs::path& path, const Image& image, const std::string& exif = "") {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  const auto [height, width, channels] = image.shape;
  info.image_height = static_cast<JDIMENSION>(height);
  info.image_width = static_cast<JDIMENSION>(width);
  info.input_components = static_cast<int>(channels);
  info.in_color_space = channels == 4 ? JCS_CMYK : channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  jpeg_start_compress(&info, TRUE);
  if (!exif.empty()) {
    jpeg_write_marker(&info, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(exif.data()), static_cast<unsigned>(exif.size()));
  }
  std::vector<unsigned char> row(width * channels);
  for (std::size_t y = 0; y < height; ++y) {
    for (std::size_t k = 0; k < row.size(); ++k)
      row[k] = image.pixels[k % channels * height * width + y * width + k / channels];
    JSAMPROW pointer = row.data();
    jpeg_write_scanlines(&info, &pointer, 1);
  }
  jpeg_finish_compress(&info);
  write_file(path, {reinterpret_cast<const char*>(bytes), size});
  jpeg_destroy_compress(&info);
  std::free(bytes);
}

// Segment APP1 of a photograph: a directory of two entries, its maker's number and its orientation.
std::string exif_of(int orientation, bool is_big) {
  std::string text = "Exif";
  text += std::string(2, '\0') + (is_big ? "MM" : "II");
  const auto add = [&](int number, int bytes) {
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(number >> 8 * (is_big ? bytes - 1 - i : i));
  };
  add(42, 2);
  add(12, 4);  // where the directory is, four bytes further than it could
  add(0, 4);
  add(2, 2);
  for (const auto& [tag, value] : {std::pair(0x010f, 77), std::pair(0x0112, orientation)}) {
    add(tag, 2);
    add(3, 2);
    add(1, 4);
    add(value, 2);
    add(0, 2);
  }
  add(0, 4);
  return text;
}

int largest_difference(const Image& a, const Image& b) {
  REQUIRE(a.shape == b.shape);
  REQUIRE(a.pixels.size() == b.pixels.size());
  int largest = 0;
  for (std::size_t i = 0; i < a.pixels.size(); ++i) largest = std::max(largest, std::abs(a.pixels[i] - b.pixels[i]));
  return largest;
}

}  // namespace

TEST_CASE("PNG files come back as they were written") {
  const TempDir folder;
  const Image colour = slopes(13, 21, 3);
  write_png(colour.pixels, colour.shape, folder / "colour.png");
  CHECK(read_image(folder / "colour.png").pixels == colour.pixels);
  const Image grey = slopes(13, 21, 1);
  write_png(grey.pixels, grey.shape, folder / "grey.png");
  CHECK(read_image(folder / "grey.png", 1).pixels == grey.pixels);
  // Grey as colour: three equal planes.
  const Image spread = read_image(folder / "grey.png", 3);
  REQUIRE(spread.shape == ImageShape{13, 21, 3});
  for (std::size_t i = 0; i < spread.pixels.size(); ++i) REQUIRE(spread.pixels[i] == grey.pixels[i % (13 * 21)]);
}

TEST_CASE("JPEG files are read in colour and grey") {
  const TempDir folder;
  const Image colour = slopes(40, 24, 3);
  write_jpeg(folder / "colour.jpg", colour);
  CHECK(largest_difference(read_image(folder / "colour.jpg"), colour) <= 6);
  const Image grey = slopes(40, 24, 1);
  write_jpeg(folder / "grey.jpg", grey);
  CHECK(largest_difference(read_image(folder / "grey.jpg", 1), grey) <= 6);
  // The contents decide, not the name.
  fs::rename(folder / "colour.jpg", folder / "colour.png");
  CHECK(read_image(folder / "colour.png").shape == ImageShape{40, 24, 3});
}

// 16 bits were taken for linear light, and 40000 became 204.
TEST_CASE("PNG files of 16 bits have the tones of those of 8 bits") {
  // 1 x 1, grey, 40000: by another program.
  constexpr unsigned char file[] = {0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48,
                                    0x44, 0x52, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x01, 0x10, 0x00, 0x00, 0x00,
                                    0x00, 0x6a, 0xee, 0x47, 0x16, 0x00, 0x00, 0x00, 0x0b, 0x49, 0x44, 0x41, 0x54, 0x78,
                                    0x9c, 0x63, 0x98, 0xe3, 0x00, 0x00, 0x01, 0x7b, 0x00, 0xdd, 0x40, 0xe6, 0x05, 0x81,
                                    0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82};
  const TempDir folder;
  write_file(folder / "a.png", {reinterpret_cast<const char*>(file), sizeof file});
  CHECK(read_image(folder / "a.png", 1).pixels == std::vector<std::uint8_t>{156});
}

TEST_CASE("JPEG files in the colours of print are said to be that") {
  const TempDir folder;
  write_jpeg(folder / "a.jpg", {{8, 8, 4}, std::vector<std::uint8_t>(8 * 8 * 4, 99)});
  CHECK(has(message_of(ErrorKind::data, [&] { read_image(folder / "a.jpg"); }), "a JPEG file in the colours of print (CMYK)"));
}

// Photographs lay on their side in folders, sheets and predictions.
TEST_CASE("photographs are turned upright as their camera says") {
  // Where the quarters A B / C D that the file has are seen, by row, for orientations 1 to 8 (Exif 2.32, figure 8).
  constexpr std::array<const char*, 8> seen = {"ABCD", "BADC", "DCBA", "CDAB", "ACBD", "CADB", "DBCA", "BDAC"};
  const TempDir folder;
  Image stored{{16, 32, 3}, std::vector<std::uint8_t>(3 * 16 * 32)};
  const auto level = [](char quarter) { return 50 * (quarter - 'A') + 40; };
  for (std::size_t i = 0; i < stored.pixels.size(); ++i) {
    const std::size_t y = i / 32 % 16, x = i % 32;
    stored.pixels[i] = static_cast<std::uint8_t>(level(static_cast<char>('A' + 2 * (y / 8) + x / 16)));
  }
  for (const bool is_big : {false, true}) {
    for (int orientation = 1; orientation <= 8; ++orientation) {
      CAPTURE(is_big, orientation);
      write_jpeg(folder / "a.jpg", stored, exif_of(orientation, is_big));
      const Image image = read_image(folder / "a.jpg");
      const ImageShape shape = orientation < 5 ? stored.shape : ImageShape{32, 16, 3};
      REQUIRE(image.shape == shape);
      const std::string file = read_file(folder / "a.jpg");
      CHECK(image_shape(std::as_bytes(std::span(file)), "a.jpg") == shape);
      for (std::size_t y = 0; y < shape.height; ++y) {
        for (std::size_t x = 0; x < shape.width; ++x) {
          const char quarter =
              seen[static_cast<std::size_t>(orientation - 1)][2 * (2 * y / shape.height) + 2 * x / shape.width];
          REQUIRE(std::abs(image.pixels[y * shape.width + x] - level(quarter)) <= 3);
        }
      }
    }
  }
}

TEST_CASE("PNG files are turned upright by their chunk eXIf") {
  const TempDir folder;
  const Image stored = slopes(16, 32, 3);
  write_png(stored.pixels, stored.shape, folder / "a.png");
  const std::string bytes = read_file(folder / "a.png");
  const auto chunk = [](const std::string& kind, const std::string& data) {
    const std::string checked = kind + data;
    const auto number = [](std::uint32_t value) {
      std::string text;
      for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(value >> static_cast<unsigned>(shift) & 0xffU);
      return text;
    };
    std::uint32_t sum = ~0U;  // CRC-32
    for (const char byte : checked) {
      sum ^= static_cast<unsigned char>(byte);
      for (int bit = 0; bit < 8; ++bit) sum = sum >> 1U ^ ((sum & 1U) != 0 ? 0xedb88320U : 0U);
    }
    return number(static_cast<std::uint32_t>(data.size())) + checked + number(~sum);
  };
  constexpr std::size_t head = 33;  // signature and IHDR
  const std::string turned =
      bytes.substr(0, head) + chunk("eXIf", exif_of(6, true).substr(exif_signature.size())) + bytes.substr(head);
  write_file(folder / "turned.png", turned);
  const Image image = read_image(folder / "turned.png");
  REQUIRE(image.shape == ImageShape{32, 16, 3});
  CHECK(image_shape(std::as_bytes(std::span(turned)), "turned.png") == image.shape);
  // The first stored row is seen at the right.
  for (std::size_t x = 0; x < 32; ++x) CHECK(image.pixels[x * 16 + 15] == stored.pixels[x]);
}

TEST_CASE("what says how a picture is turned may be damaged") {
  const auto orientation_of = [](const std::string& segment) { return exif_orientation(std::as_bytes(std::span(segment))); };
  for (const bool is_big : {false, true}) {
    const std::string whole = exif_of(6, is_big);
    CHECK(orientation_of(whole) == 6);
    const std::size_t value_end = whole.find(is_big ? std::string("\0\6", 2) : std::string("\6\0", 2)) + 2;
    for (std::size_t bytes = 0; bytes < value_end; ++bytes) CHECK(orientation_of(whole.substr(0, bytes)) == 1);
    CHECK(orientation_of(exif_of(0, is_big)) == 1);
    CHECK(orientation_of(exif_of(9, is_big)) == 1);
    // Another signature, order of bytes, version of TIFF; two numbers instead of one.
    const std::size_t entry = whole.find(is_big ? std::string("\x01\x12", 2) : std::string("\x12\x01", 2));
    for (const std::size_t at :
         {std::size_t{0}, std::size_t{6}, std::size_t{7}, std::size_t{is_big ? 9U : 8U}, entry + (is_big ? 7 : 4)}) {
      std::string other = whole;
      ++other[at];
      CHECK(orientation_of(other) == 1);
    }
    Random random(1, Stream::test);
    for (int round = 0; round < 2000; ++round) {
      std::string garbled = whole;
      for (int i = 0; i < 3; ++i) {
        garbled[6 + random.below(static_cast<std::uint32_t>(whole.size() - 6))] = static_cast<char>(random.below(256));
      }
      const int found = orientation_of(garbled);
      REQUIRE((found >= 1 && found <= 8));
    }
  }
}

TEST_CASE("the head of a file gives the size of its picture") {
  const TempDir folder;
  const Image image = slopes(40, 24, 3);
  write_jpeg(folder / "a.jpg", image);
  write_png(image.pixels, image.shape, folder / "a.png");
  for (const char* name : {"a.jpg", "a.png"}) {
    const std::string bytes = read_file(folder / name);
    const auto shape_of = [&](std::size_t length) {
      return image_shape(std::as_bytes(std::span(bytes).first(length)), "a file");
    };
    CHECK(shape_of(bytes.size()) == ImageShape{40, 24, 3});
    std::string other = bytes;
    other[bytes.size() - 50] = '\0';  // the picture itself is not read
    other += "as some programs leave there";
    CHECK(image_shape(std::as_bytes(std::span(other)), "a file") == ImageShape{40, 24, 3});
    for (const std::size_t missing : {1, 2, 50}) {
      INFO(missing);
      CHECK(has(message_of(ErrorKind::data, [&] { shape_of(bytes.size() - missing); }), ": it is cut off"));
    }
    CHECK(has(message_of(ErrorKind::data, [&] { shape_of(bytes.size() / 2); }), "a file: broken "));
    CHECK(has(message_of(ErrorKind::data, [&] { shape_of(10); }), "a file: broken "));
    CHECK(message_of(ErrorKind::data, [&] { shape_of(1); }) == "a file: neither a PNG nor a JPEG file");
  }
}

// The picture is all there, and programs that show it do not miss it.
TEST_CASE("a PNG file may lack its last chunk") {
  const TempDir folder;
  const Image image = slopes(40, 24, 3);
  write_png(image.pixels, image.shape, folder / "a.png");
  const std::string bytes = read_file(folder / "a.png");
  write_file(folder / "a.png", bytes.substr(0, bytes.size() - 12));
  CHECK(image_shape(std::as_bytes(std::span(bytes).first(bytes.size() - 12)), "a file") == image.shape);
  CHECK(read_image(folder / "a.png").pixels == image.pixels);
}

// Cameras put a small picture into a segment, which has an end of its own.
TEST_CASE("the end of a picture within a JPEG file is not that of the file") {
  const TempDir folder;
  write_jpeg(folder / "small.jpg", slopes(8, 8, 3));
  write_jpeg(folder / "a.jpg", slopes(40, 24, 3), "Exif" + std::string(2, '\0') + read_file(folder / "small.jpg"));
  const std::string bytes = read_file(folder / "a.jpg");
  const auto shape_of = [&](std::size_t length) {
    return image_shape(std::as_bytes(std::span(bytes).first(length)), "a file");
  };
  REQUIRE(bytes.find("\xff\xd9") < bytes.size() - 50);
  CHECK(shape_of(bytes.size()) == ImageShape{40, 24, 3});
  for (const std::size_t missing : {1, 2, 50}) {
    INFO(missing);
    CHECK(message_of(ErrorKind::data, [&] { shape_of(bytes.size() - missing); }) == "a file: broken JPEG: it is cut off");
  }
}

TEST_CASE("broken pictures are refused without ending the program") {
  const TempDir folder;
  const Image image = slopes(64, 64, 3);
  write_jpeg(folder / "a.jpg", image);
  write_png(image.pixels, image.shape, folder / "a.png");
  const std::string jpeg = read_file(folder / "a.jpg");
  const std::string png = read_file(folder / "a.png");
  const fs::path path = folder / "broken";
  const auto message = [&](const std::string& bytes) {
    write_file(path, bytes);
    return message_of(ErrorKind::data, [&] { read_image(path); });
  };
  CHECK(message(jpeg.substr(0, jpeg.size() / 2)) == path.string() + ": broken JPEG: Premature end of JPEG file");
  CHECK(has(message(jpeg.substr(0, 40)), ": broken JPEG: "));
  CHECK(has(message(jpeg.substr(0, 4)), ": broken JPEG: "));
  CHECK(has(message(png.substr(0, png.size() / 2)), ": broken PNG: "));
  CHECK(has(message(png.substr(0, 10)), ": broken PNG: "));
  CHECK(message("") == path.string() + ": neither a PNG nor a JPEG file");
  CHECK(message("GIF89a") == path.string() + ": neither a PNG nor a JPEG file");
  CHECK(has(message_of(ErrorKind::data, [&] { read_image(folder / "nowhere.png"); }), "nowhere.png"));
  CHECK(message_of(ErrorKind::usage, [&] { read_image(path, 2); }) == "channels: 2, expected 1 (grey) or 3 (colour)");
  // Every single damaged byte either still gives a picture or an error.
  for (const std::string& whole : {jpeg, png}) {
    int pictures = 0;
    int errors = 0;
    for (std::size_t at = 3; at < whole.size(); at += 7) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ 0x55);
      write_file(path, bytes);
      try {
        pictures += !read_image(path).pixels.empty();
      } catch (const Error& error) {
        errors += error.kind() == ErrorKind::data;
      }
    }
    CHECK(errors > 0);
    CHECK(pictures + errors == static_cast<int>((whole.size() - 3 + 6) / 7));
  }
}

TEST_CASE("resize averages areas where it shrinks and interpolates where it grows") {
  const Image two{{2, 2, 1}, {10, 20, 30, 40}};
  CHECK(resize(two, 1, 1).pixels == std::vector<std::uint8_t>{25});
  CHECK(resize(two, 2, 2).pixels == two.pixels);
  CHECK(resize(two, 1, 2).pixels == std::vector<std::uint8_t>{20, 30});
  // Centres of the outputs lie at -1/4, 1/4, 3/4, 5/4 of the inputs' centres.
  CHECK(resize({{1, 2, 1}, {0, 100}}, 1, 4).pixels == std::vector<std::uint8_t>{0, 25, 75, 100});
  // 3 to 2: each output covers one and a half inputs.
  CHECK(resize({{1, 3, 1}, {0, 90, 30}}, 1, 2).pixels == std::vector<std::uint8_t>{30, 50});
  // Constant pictures stay constant, at every size and at both ends of the range.
  for (const std::uint8_t value : {0, 1, 128, 255}) {
    Image flat{{17, 31, 2}, std::vector<std::uint8_t>(17 * 31 * 2, value)};
    for (const auto& [height, width] : {std::pair{1, 1}, {5, 64}, {33, 7}, {16, 30}, {100, 100}}) {
      const Image result = resize(flat, static_cast<std::size_t>(height), static_cast<std::size_t>(width));
      REQUIRE(result.pixels.size() == static_cast<std::size_t>(height * width * 2));
      CHECK(std::all_of(result.pixels.begin(), result.pixels.end(), [&](std::uint8_t pixel) { return pixel == value; }));
    }
  }
  CHECK(has(message_of(ErrorKind::usage, [&] { resize(two, 0, 5); }), "image size 0 x 5"));
  CHECK(has(message_of(ErrorKind::usage, [&] { resize({{2, 2, 3}, {1}}, 2, 2); }), "cannot be resized"));
}

TEST_CASE("nets get the middle of a picture, as large as their proportions allow") {
  CHECK(middle_part({3024, 4032, 3}, 32, 32) == Part{0, 504, 3024, 3024});
  CHECK(middle_part({4033, 3024, 1}, 32, 32) == Part{504, 0, 3024, 3024});
  CHECK(middle_part({32, 32, 3}, 64, 64) == Part{0, 0, 32, 32});
  CHECK(middle_part({30, 100, 3}, 10, 20) == Part{0, 20, 30, 60});
  CHECK(middle_part({100, 30, 3}, 10, 20) == Part{42, 0, 15, 30});
  CHECK(middle_part({1, 1, 3}, 10, 20) == Part{0, 0, 1, 1});
  CHECK(middle_part({1, 10000, 3}, 20, 10) == Part{0, 4999, 1, 1});  // not half a pixel
  CHECK(middle_part({10000, 1, 3}, 10, 20) == Part{4999, 0, 1, 1});
  const Image image{{2, 3, 2}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}};
  CHECK(part_of(image, {1, 1, 1, 2}).pixels == std::vector<std::uint8_t>{5, 6, 11, 12});
  CHECK(part_of(image, {0, 0, 2, 3}).pixels == image.pixels);
  CHECK(fit(image, 2, 2).pixels == std::vector<std::uint8_t>{1, 2, 4, 5, 7, 8, 10, 11});
  CHECK(fit(image, 1, 1).pixels == std::vector<std::uint8_t>{3, 9});
  CHECK(fit(image, 2, 3).pixels == image.pixels);
}

// They were squeezed to a square.
TEST_CASE("pictures of a folder keep their proportions") {
  const TempDir folder;
  const std::vector<Image> pictures{slopes(20, 90, 3), slopes(77, 31, 3), slopes(1, 1, 3), slopes(16, 16, 3)};
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    const fs::path place = folder / (i % 2 == 0 ? "a" : "b");
    fs::create_directories(place);
    write_png(pictures[i].pixels, pictures[i].shape, place / (std::to_string(i) + ".png"));
  }
  const Dataset set = read_image_folder(folder.path(), {16, 16, 3});
  REQUIRE(set.size() == 4);
  std::size_t k = 0;
  for (const std::size_t i : {0, 2, 1, 3}) {
    const auto read = set.image(k++);
    CHECK(std::vector<std::uint8_t>(read.begin(), read.end()) == fit(pictures[i], 16, 16).pixels);
  }
}

TEST_CASE("a folder of images gives its classes and files in the order of their names") {
  const TempDir folder;
  const Image red{{4, 4, 3}, [] {
                    std::vector<std::uint8_t> pixels(48, 0);
                    std::fill_n(pixels.begin(), 16, std::uint8_t{200});
                    return pixels;
                  }()};
  const Image white{{8, 8, 3}, std::vector<std::uint8_t>(192, 255)};
  for (const char* part : {"train", "test"}) {
    fs::create_directories(folder / part / "b");
    write_png(white.pixels, white.shape, folder / part / "b" / "2.PNG");
    write_png(red.pixels, red.shape, folder / part / "b" / "1.png");
  }
  fs::create_directories(folder / "train" / "a");
  write_jpeg(folder / "train" / "a" / "x.jpeg", white);
  write_file(folder / "train" / "a" / "notes.txt", "skipped");
  write_file(folder / "train" / "a" / ".hidden.png", "skipped");
  const DataSplits splits = load(folder.path().string(), {.height = 6, .width = 5});
  REQUIRE(splits.train.size() == 3);
  CHECK(splits.train.class_names == std::vector<std::string>{"a", "b"});
  CHECK(splits.train.labels == std::vector<std::uint16_t>{0, 1, 1});
  CHECK(splits.train.shape == ImageShape{6, 5, 3});
  CHECK(splits.train.image(1)[0] == 200);
  CHECK(splits.train.image(1)[30] == 0);
  CHECK(splits.train.image(2)[0] == 255);
  // The test folder lacks class a, and its labels still mean the same.
  CHECK(splits.test.labels == std::vector<std::uint16_t>{1, 1});
  CHECK(splits.test.class_names == splits.train.class_names);

  // They were passed over without a word.
  const std::string here = folder.path().string();
  CHECK(note_on_unread(here).empty());
  fs::create_directories(folder / "val" / "b");
  write_png(red.pixels, red.shape, folder / "val" / "b" / "1.png");
  CHECK(note_on_unread(here) == here + ": the images in val/ are not read; those for validation are taken out of train/");
  fs::rename(folder / "test", folder / "tests");
  CHECK(note_on_unread("folder:" + here)
            .ends_with("the images in val/ are not read; a part of train/ is for tests, since there is no " +
                       (folder / "test").string()));
  CHECK(note_on_unread("synth").empty());
  fs::rename(folder / "tests", folder / "test");

  fs::create_directories(folder / "test" / "c");
  CHECK(message_of(ErrorKind::data, [&] { load("folder:" + folder.path().string()); }) ==
        (folder / "test").string() + ": class 'c' is not one of the 2 expected classes");
  fs::remove(folder / "test" / "c");
  write_file(folder / "test" / "b" / "3.png", "not a picture");
  CHECK(message_of(ErrorKind::data, [&] { load("folder:" + folder.path().string()); }) ==
        (folder / "test" / "b" / "3.png").string() + ": neither a PNG nor a JPEG file");
  fs::create_directories(folder / "train" / "0");
  CHECK(message_of(ErrorKind::data, [&] { load("folder:" + folder.path().string()); }) ==
        (folder / "train" / "0").string() + ": no .png, .jpg or .jpeg file there");
}

TEST_CASE("a folder of images without a test set gives a share of its own") {
  const TempDir folder;
  for (int i = 0; i < 10; ++i) {
    const fs::path sub = folder / (i % 2 == 0 ? "even" : "odd");
    fs::create_directories(sub);
    const std::vector<std::uint8_t> pixels(16, static_cast<std::uint8_t>(i));
    write_png(pixels, {4, 4, 1}, sub / (std::to_string(i) + ".png"));
  }
  const DataSplits splits = load(folder.path().string(), {.validation = 3, .height = 2, .width = 2, .channels = 1});
  CHECK(splits.train.size() == 5);
  CHECK(splits.validation.size() == 3);
  CHECK(splits.test.size() == 2);
  std::vector<int> seen;
  for (const Dataset* part : {&splits.train, &splits.validation, &splits.test}) {
    for (std::size_t i = 0; i < part->size(); ++i) seen.push_back(part->image(i)[0]);
  }
  std::sort(seen.begin(), seen.end());
  CHECK(seen == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  // The same with a train/ that no test/ stands beside; and "train" may be a class.
  const TempDir outer;
  fs::create_directory_symlink(folder.path(), outer / "train");
  CHECK(load(outer.path().string(), {.height = 2, .width = 2, .channels = 1}).train.pixels ==
        load(folder.path().string(), {.height = 2, .width = 2, .channels = 1}).train.pixels);
  // Links that lead nowhere, in a circle, or to what is no picture.
  fs::create_symlink("a.png", folder / "odd" / "a.png");
  fs::create_symlink("loop", folder / "loop");
  CHECK(load(folder.path().string()).train.class_names == std::vector<std::string>{"even", "odd"});
  fs::create_directory(folder / "a\nb");
  fs::copy(folder / "even" / "0.png", folder / "a\nb" / "0.png");
  CHECK(has(message_of(ErrorKind::data, [&] { load(folder.path().string()); }), "has control characters"));
  fs::remove_all(folder / "a\nb");
  fs::rename(folder / "odd", folder / "train");
  CHECK(load(folder.path().string()).train.class_names == std::vector<std::string>{"even", "train"});
  const TempDir empty;
  CHECK(message_of(ErrorKind::data, [&] {
          read_image_folder(empty.path(), {2, 2, 1});
        }) == empty.path().string() + ": no sub-folders with images in them");
}
