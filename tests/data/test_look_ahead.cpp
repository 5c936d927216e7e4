// Batches that another thread makes ready.
#include "data/look_ahead.h"

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using bitloom::data::BatchPlace;
using bitloom::data::LookAhead;
using bitloom::test::message_of;

namespace {

std::string name_of(const BatchPlace& place) { return fmt::format("{}.{}", place.step, place.micro_batch); }

}  // namespace

TEST_CASE("batches are made once, in the order in which a process wants them", "[look_ahead]") {
  std::vector<std::string> made;  // by one thread at a time, which ends before the next call looks
  {
    LookAhead<std::string> batches(5, 2, [&](const BatchPlace& place) {
      made.push_back(name_of(place));
      return made.back();
    });
    for (const BatchPlace& place : {BatchPlace{3, 1}, BatchPlace{3, 3}, BatchPlace{4, 1}}) {
      CHECK(batches.get(place) == name_of(place));
    }
  }
  CHECK(made == std::vector<std::string>{"3.1", "3.3", "4.1", "4.3"});
}

// The images of a net of convolutions: the error of a batch that nobody wanted was thrown for another.
TEST_CASE("an error of what was made ahead in vain is forgotten, of what is wanted it is thrown", "[look_ahead]") {
  LookAhead<std::string> batches(1, 1, [](const BatchPlace& place) {
    if (place.step == 1) fail(ErrorKind::io, "step {} cannot be read", place.step);
    return name_of(place);
  });
  CHECK(batches.get({0, 0}) == "0.0");
  CHECK(batches.get({5, 0}) == "5.0");
  CHECK(batches.get({0, 0}) == "0.0");
  for (int i = 0; i < 2; ++i) {
    CHECK(message_of(ErrorKind::io, [&] { batches.get({1, 0}); }) == "step 1 cannot be read");
  }
  CHECK(batches.get({2, 0}) == "2.0");
  CHECK(message_of(ErrorKind::usage, [&] { batches.get({2, 1}); }) == "micro-batch 1: expected less than the 1 of a step");
}
