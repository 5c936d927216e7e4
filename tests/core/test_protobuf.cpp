#include "core/protobuf.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace bitloom;

namespace {

std::string bytes(const std::vector<int>& values) { return {values.begin(), values.end()}; }

}  // namespace

TEST_CASE("the wire format is that of its documentation") {
  // https://protobuf.dev/programming-guides/encoding: Test1 with a = 150, Test2 with b = "testing", Test3 with c = that Test1.
  ProtoMessage one, two, three;
  one.integer(1, 150);
  CHECK(one.bytes() == bytes({0x08, 0x96, 0x01}));
  two.text(2, "testing");
  CHECK(two.bytes() == bytes({0x12, 0x07, 0x74, 0x65, 0x73, 0x74, 0x69, 0x6e, 0x67}));
  three.message(3, one);
  CHECK(three.bytes() == bytes({0x1a, 0x03, 0x08, 0x96, 0x01}));
  // Negative numbers take ten bytes, tags of fields from 16 on two.
  ProtoMessage negative, far, longer;
  negative.integer(1, -2);
  CHECK(negative.bytes() == bytes({0x08, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}));
  far.integer(20, 2);
  CHECK(far.bytes() == bytes({0xa0, 0x01, 0x02}));
  longer.text(1, std::string(300, 'x'));
  CHECK(longer.bytes() == bytes({0x0a, 0xac, 0x02}) + std::string(300, 'x'));
  // Opening a field writes all but its bytes, which follow.
  ProtoMessage opened;
  opened.open(1, 300);
  CHECK(opened.bytes() + std::string(300, 'x') == longer.bytes());
  // Numbers of a fixed size, the lowest byte first.
  ProtoMessage real;
  real.real32(2, 1.5F);
  real.real64(1, -2.0);
  CHECK(real.bytes() == bytes({0x15, 0, 0, 0xc0, 0x3f, 0x09, 0, 0, 0, 0, 0, 0, 0, 0xc0}));
}
