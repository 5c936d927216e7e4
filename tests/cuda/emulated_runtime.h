// Controls of the emulated GPU for tests.
#pragma once

namespace bitloom::emulated {

// As after a kernel that failed, as long as this exists: the device refuses what it is asked for.
class BrokenDevice {
 public:
  BrokenDevice();
  ~BrokenDevice();
  BrokenDevice(const BrokenDevice&) = delete;
  BrokenDevice& operator=(const BrokenDevice&) = delete;
};

}  // namespace bitloom::emulated
