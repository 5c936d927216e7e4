#include "report/tensorboard.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/protobuf.h"
#include "report/run_log.h"

namespace bitloom::report {
namespace {

using nlohmann::json;

// Field numbers, by message.
namespace event_field {
constexpr unsigned wall_time = 1, step = 2, file_version = 3, summary = 5;
}
namespace summary_field {
constexpr unsigned value = 1;
}
namespace value_field {
constexpr unsigned tag = 1, simple_value = 2, image = 4, tensor = 8, metadata = 9;
}
namespace image_field {
constexpr unsigned height = 1, width = 2, colorspace = 3, encoded = 4;
}
namespace metadata_field {
constexpr unsigned plugin_data = 1, plugin_name = 1;
}
namespace tensor_field {
constexpr unsigned dtype = 1, shape = 2, dim = 2, size = 1, string_val = 8;
}
constexpr int dt_string = 7, rgb = 3;

// CRC-32C (Castagnoli) of the polynomial 0x1EDC6F41, reflected, as records have it: rotated, plus a constant.
std::uint32_t masked_crc(std::string_view bytes) {
  static const std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> all{};
    for (std::uint32_t i = 0; i < all.size(); ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1U ^ ((value & 1U) != 0 ? 0x82F63B78U : 0U);
      all[i] = value;
    }
    return all;
  }();
  std::uint32_t crc = ~0U;
  for (const char c : bytes) crc = table[(crc ^ static_cast<unsigned char>(c)) & 0xFFU] ^ crc >> 8U;
  crc = ~crc;
  return (crc >> 15U | crc << 17U) + 0xA282EAD8U;
}

std::string little_endian(std::uint64_t value, unsigned bytes) {
  std::string text;
  for (unsigned i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xFFU);
  return text;
}

// A record of an event file: length, its sum, the message, its sum.
std::string record(const ProtoMessage& event) {
  const std::string length = little_endian(event.bytes().size(), 8);
  return length + little_endian(masked_crc(length), 4) + event.bytes() + little_endian(masked_crc(event.bytes()), 4);
}

// Seconds since 1970 of "2026-11-26T05:22:08Z"; 0 for anything else.
double seconds_of(const std::string& time) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
  if (std::sscanf(time.c_str(), "%d-%d-%dT%d:%d:%dZ", &year, &month, &day, &hour, &minute, &second) != 6) return 0;
  // Days since 1970 of the proleptic Gregorian calendar, years beginning in March.
  const int y = month <= 2 ? year - 1 : year;
  const int shifted = (month + 9) % 12;
  const int days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * shifted + 2) / 5 + day - 1 - 719468;
  return 86400.0 * days + 3600.0 * hour + 60.0 * minute + second;
}

// Whether a key says what a line is of, not what it measures.
bool is_place(std::string_view key) {
  for (const std::string_view place : {"step", "steps", "epoch", "epochs", "seconds", "event", "stage", "layer", "mistakes"}) {
    if (key == place) return true;
  }
  return false;
}

void add_numbers(const std::string& tag, const json& value, ProtoMessage& summary) {
  if (value.is_number() || value.is_boolean()) {
    const double number = value.is_boolean() ? (value.get<bool>() ? 1 : 0) : value.get<double>();
    ProtoMessage point;
    point.text(value_field::tag, tag);
    point.real32(value_field::simple_value, static_cast<float>(number));
    summary.message(summary_field::value, point);
  } else if (value.is_object()) {
    for (const auto& [key, each] : value.items()) {
      if (!is_place(key)) add_numbers(tag + "/" + key, each, summary);
    }
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      const std::string layer = value[i].is_object() ? text(value[i], "layer") : "";
      add_numbers(layer.empty() ? fmt::format("{}/{}", tag, i) : tag + "/" + layer, value[i], summary);
    }
  }
}

void add_text(const std::string& tag, const std::string& words, ProtoMessage& summary) {
  ProtoMessage plugin, metadata, size, shape, tensor, value;
  plugin.text(metadata_field::plugin_name, "text");
  metadata.message(metadata_field::plugin_data, plugin);
  size.integer(tensor_field::size, 1);
  shape.message(tensor_field::dim, size);
  tensor.integer(tensor_field::dtype, dt_string);
  tensor.message(tensor_field::shape, shape);
  tensor.text(tensor_field::string_val, words);
  value.text(value_field::tag, tag);
  value.message(value_field::tensor, tensor);
  value.message(value_field::metadata, metadata);
  summary.message(summary_field::value, value);
}

// Width and height stand in the first chunk of a PNG file, most significant byte first.
void add_picture(const EventPicture& picture, ProtoMessage& summary) {
  const auto size_at = [&](std::size_t at) {
    std::int64_t size = 0;
    for (std::size_t i = 0; i < 4; ++i) size = size << 8 | static_cast<unsigned char>(picture.png[at + i]);
    return size;
  };
  constexpr std::size_t header_end = 24;
  if (picture.png.size() < header_end) return;
  ProtoMessage image, value;
  image.integer(image_field::height, size_at(20));
  image.integer(image_field::width, size_at(16));
  image.integer(image_field::colorspace, rgb);
  image.text(image_field::encoded, picture.png);
  value.text(value_field::tag, picture.tag);
  value.message(value_field::image, image);
  summary.message(summary_field::value, value);
}

std::string event(double time, double step, const ProtoMessage& summary) {
  ProtoMessage message;
  message.real64(event_field::wall_time, time);
  message.integer(event_field::step, static_cast<std::int64_t>(step));
  message.message(event_field::summary, summary);
  return record(message);
}

// The step of a line, counted over all stages.
class Steps {
 public:
  double of(const json& line) {
    const std::string stage = text(line, "stage");
    if (stage != stage_) before_ += last_;
    if (stage != stage_) last_ = 0;
    stage_ = stage;
    if (const double step = number(line, "step"); std::isfinite(step)) last_ = step;
    return before_ + last_;
  }

 private:
  std::string stage_;
  double before_ = 0, last_ = 0;
};

}  // namespace

std::string tensorboard_events(const std::vector<json>& metrics, const std::vector<EventPicture>& pictures) {
  double start = 0;
  double now = 0;
  for (const json& line : metrics) {
    if (start == 0 && line.is_object() && text(line, "event") == "start") start = seconds_of(text(line, "time"));
  }
  ProtoMessage version;
  version.real64(event_field::wall_time, start);
  version.text(event_field::file_version, "brain.Event:2");
  std::string file = record(version);
  Steps steps;
  for (const json& line : metrics) {
    if (!line.is_object()) continue;
    const std::string name = text(line, "event");
    if (name.empty() || name == "start") continue;  // which says what the run is, once
    const double step = steps.of(line);
    if (const double seconds = number(line, "seconds"); std::isfinite(seconds)) now = std::fmax(now, seconds);
    ProtoMessage summary;
    add_numbers(name, line, summary);
    if (const std::string words = text(line, "text"); !words.empty()) add_text(name, words, summary);
    if (!summary.bytes().empty()) file += event(start + now, step, summary);
  }
  for (const EventPicture& picture : pictures) {
    ProtoMessage summary;
    add_picture(picture, summary);
    if (!summary.bytes().empty()) file += event(start + now, picture.step, summary);
  }
  return file;
}

}  // namespace bitloom::report
