// Who has a worker's name in a shared folder: another run at work, one that is gone, or the same run again. Who is at work is
// not left to time: those that look never count a sign as missing there, and where they do, nobody gives signs.
#include "train/local/presence.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using bitloom::test::has;
using bitloom::test::message_of;
using bitloom::train::missing_signs;
using bitloom::train::Presence;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

constexpr double at_once = 1e-3, too_long = 1e6;  // seconds between signs

// A shared folder, and those of runs.
struct Place {
  Place() {
    for (const char* name : {"shared/workers", "first", "second"}) fs::create_directories(folder / name);
  }
  Json stored() const { return Json::parse(test::read_file(file)); }

  test::TempDir folder;
  fs::path file = folder / "shared/workers/a.json";
};

// Until it is known who has the name.
void take(Presence& presence) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  while (!presence.take() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

}  // namespace

TEST_CASE("a name that another run at work has is refused", "[local]") {
  const Place place;
  Presence first(place.file, place.folder / "first", at_once);
  REQUIRE(first.take());
  first.show(3);
  Presence second(place.file, place.folder / "second", too_long);
  const std::string refusal = message_of(ErrorKind::busy, [&] { take(second); });
  CHECK(has(refusal, "`worker`: 'a' is at work in " + (place.folder / "shared").string() + " already (host "));
  CHECK(has(refusal, ", process " + std::to_string(::getpid()) + ", run folder " + (place.folder / "first").string() + ")"));
  second.leave();  // of what it never had
  CHECK(place.stored()["next"] == 3);
  first.show(4);
  first.leave();
  CHECK_FALSE(fs::exists(place.file));
  CHECK(second.take());
}

TEST_CASE("a name whose holder has been silent for long is taken over, and the holder finds out", "[local]") {
  const Place place;
  Presence silent(place.file, place.folder / "first", too_long);
  REQUIRE(silent.take());
  silent.show(3);
  Presence second(place.file, place.folder / "second", at_once);
  for (int look = 0; look < missing_signs; ++look) REQUIRE_FALSE(second.take());
  take(second);
  CHECK_FALSE(place.stored().contains("next"));  // nobody waits for what the other one was to send
  second.show(7);
  silent.require();  // it has not looked yet
  CHECK(has(message_of(ErrorKind::busy, [&] { silent.show(4); }), "run folder " + (place.folder / "second").string()));
  CHECK(has(message_of(ErrorKind::busy, [&] { silent.require(); }), "'a' is at work in "));
  silent.leave();
  CHECK(place.stored()["next"] == 7);
}

TEST_CASE("the holder of a name looks who has it now and then", "[local]") {
  const Place place;
  Presence first(place.file, place.folder / "first", at_once);
  REQUIRE(first.take());
  // Both were about to begin when neither had the name.
  const Json other = {{"run", "another"}, {"start", "another"}, {"host", "far"}, {"process", 7}, {"folder", "/runs/a"}};
  std::string refusal = "no error";
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  while (refusal == "no error" && std::chrono::steady_clock::now() < end) {
    test::write_file(place.file, other.dump());  // again, for a sign of the first may come right after it
    refusal = message_of(ErrorKind::busy, [&] { first.require(); });
  }
  CHECK(has(refusal, "(host far, process 7, run folder /runs/a)"));
}

TEST_CASE("a run that was killed has its name at once, also under another path", "[local]") {
  const Place place;
  {
    Presence killed(place.file, place.folder / "first", at_once);
    REQUIRE(killed.take());
    killed.show(3);
  }
  REQUIRE(fs::exists(place.file));
  fs::rename(place.folder / "first", place.folder / "moved");
  {
    Presence back(place.file, place.folder / "moved", too_long);
    CHECK(back.take());
    CHECK(place.stored()["next"] == 3);  // others wait for it still
    CHECK(place.stored()["folder"] == (place.folder / "moved").string());
  }
  // A copy of a run folder is the same run; two of them are not at work at once.
  fs::copy(place.folder / "moved", place.folder / "copy", fs::copy_options::recursive);
  Presence back(place.file, place.folder / "moved", too_long), copy(place.file, place.folder / "copy", too_long);
  CHECK(back.take());
  CHECK(copy.take());
  CHECK(has(message_of(ErrorKind::busy, [&] { back.show(4); }), "run folder " + (place.folder / "copy").string()));
}

TEST_CASE("files of older programs do not say whose they are", "[local]") {
  const Place place;
  test::write_file(place.file, R"({"next":5})");
  Presence back(place.file, place.folder / "first", too_long);
  CHECK(back.take());
  CHECK(place.stored()["next"] == 5);
  back.leave();
  // A damaged file may be anybody's.
  test::write_file(place.file, "{");
  test::write_file(place.folder / "second" / train::run_identity_name, "[]");
  Presence second(place.file, place.folder / "second", at_once);
  CHECK_FALSE(second.take());
  take(second);
  CHECK(place.stored()["run"].is_string());
}
