#include "nn/device.h"

#include <charconv>

#include "core/error.h"
#include "core/field.h"

namespace bitloom::nn {

std::string name_of(Device device) { return device.kind == Device::Kind::cpu ? "cpu" : fmt::format("cuda:{}", device.index); }

void check_device(Device device) {
  if (device.kind == Device::Kind::cpu) return;
  if (const std::string problem = gpu_problem(device.index); !problem.empty()) {
    fail_field(ErrorKind::usage, "device", "{}: {}{}", name_of(device), problem, gpu_count() == 0 ? "; expected cpu" : "");
  }
}

Device parse_device(std::string_view argument, std::string_view text) {
  if (text == "cpu") return {};
  if (text == "cuda") return {Device::Kind::cuda, 0};
  if (text.starts_with("cuda:")) {
    Device device{Device::Kind::cuda, 0};
    const auto [end, error] = std::from_chars(text.data() + 5, text.data() + text.size(), device.index);
    if (error == std::errc() && end == text.data() + text.size() && device.index >= 0) return device;
  }
  fail(ErrorKind::usage, "{}: '{}' is not a device; expected cpu, cuda or cuda:N", argument, text);
}

}  // namespace bitloom::nn
