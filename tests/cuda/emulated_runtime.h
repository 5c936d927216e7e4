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

// As long as this exists, something in the stream never ends: who waits for it blindly would hang, which is an error.
class HungStream {
 public:
  HungStream();
  ~HungStream();
  HungStream(const HungStream&) = delete;
  HungStream& operator=(const HungStream&) = delete;
};
bool is_hung();

}  // namespace bitloom::emulated
