// Rounds through a shared folder: which messages a reply has, who waits for whom, and what damaged files do.
#include "train/local/folder_exchange.h"

#include <filesystem>
#include <string>

#include "core/error.h"
#include "core/file.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::train;
using bitloom::test::has;
using bitloom::test::message_of;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

constexpr double deadline = 60;

FolderOptions options_of(const fs::path& folder, const std::string& worker) {
  FolderOptions options;
  options.folder = folder;
  options.worker = worker;
  return options;
}

FolderExchange exchange_of(const fs::path& folder, const std::string& worker) {
  return {options_of(folder, worker), Json{{"net", "tiny"}}, Json{{"tokens", 1}}, {}};
}

mpi::Bundle message(std::uint64_t round, std::uint32_t index, std::int64_t value) {
  mpi::Bundle bundle;
  bundle.update = round;
  bundle.workers = 1;
  bundle.totals = {100};
  bundle.vectors = {{8, {index}, {value}}};
  return bundle;
}

void damage(const fs::path& file) {
  std::string bytes = test::read_file(file);
  bytes[bytes.size() - 1] = static_cast<char>(bytes.back() ^ 1);
  test::write_file(file, bytes);
}

}  // namespace

TEST_CASE("a round ends when the messages of all that are to come are there", "[local]") {
  const test::TempDir folder;
  FolderExchange a = exchange_of(folder.path(), "a"), b = exchange_of(folder.path(), "b");
  a.join(0);
  b.join(0);
  CHECK(a.workers() == 2);
  a.publish(message(0, 1, 5));
  CHECK_FALSE(a.try_to_end(0, {}, 0, deadline));
  b.publish(message(0, 1, 7));
  // Whose turn it is differs by round; the other one may have to wait for it.
  while (!a.try_to_end(0, {}, 0, deadline) && !b.try_to_end(0, {}, 0, deadline)) continue;
  const auto reply = a.read_reply(0);
  REQUIRE(reply);
  CHECK(reply->sum.vectors[0] == mpi::SparseVector{8, {1}, {12}});
  CHECK(reply->sum.totals == std::vector<std::int64_t>{200});
  CHECK(reply->workers == std::vector<std::string>{"a", "b"});
  CHECK(reply->counted == std::map<std::string, std::uint64_t>{{"a", 0}, {"b", 0}});
  CHECK(reply->previous.empty());
  CHECK(a.ended() + b.ended() == 1);
  CHECK(reply->hash == b.read_reply(0)->hash);
  // Once it is there nothing changes it.
  CHECK(b.try_to_end(0, {}, 0, deadline));
  CHECK(a.ended() + b.ended() == 1);
}

TEST_CASE("who is late counts in the next round, once", "[local]") {
  const test::TempDir folder;
  FolderExchange a = exchange_of(folder.path(), "a"), b = exchange_of(folder.path(), "b");
  a.join(0);
  b.join(0);
  a.publish(message(0, 1, 5));
  CHECK_FALSE(a.try_to_end(0, {}, deadline - 1, deadline));
  CHECK(a.try_to_end(0, {}, deadline, deadline));
  const auto first = a.read_reply(0);
  REQUIRE(first);
  CHECK(first->workers == std::vector<std::string>{"a"});
  b.publish(message(0, 2, 7));
  a.join(1);
  a.publish(message(1, 3, 1));
  // b has not said that it has come to this round: nobody waits for it.
  CHECK(a.try_to_end(1, first, 0, deadline));
  const auto second = a.read_reply(1);
  REQUIRE(second);
  CHECK(second->sum.vectors[0] == mpi::SparseVector{8, {2, 3}, {7, 1}});
  CHECK(second->counted == std::map<std::string, std::uint64_t>{{"a", 1}, {"b", 0}});
  CHECK(second->previous == first->hash);
  a.publish(message(2, 3, 1));
  CHECK(a.try_to_end(2, second, 0, deadline));
  CHECK(a.read_reply(2)->sum.vectors[0] == mpi::SparseVector{8, {3}, {1}});
}

TEST_CASE("fewer messages than the quorum are waited for longer", "[local]") {
  const test::TempDir folder;
  FolderOptions options = options_of(folder.path(), "a");
  options.quorum = 0.6;
  FolderExchange a(options, Json::object(), Json::object(), {});
  for (const char* other : {"a", "b", "c"})
    FolderExchange(options_of(folder.path(), other), Json::object(), Json::object(), {}).join(0);
  a.publish(message(0, 1, 5));
  CHECK_FALSE(a.try_to_end(0, {}, 9 * deadline, deadline));
  CHECK(a.try_to_end(0, {}, 10 * deadline, deadline));
}

TEST_CASE("a worker that has left is not waited for", "[local]") {
  const test::TempDir folder;
  FolderExchange a = exchange_of(folder.path(), "a"), b = exchange_of(folder.path(), "b");
  a.join(0);
  b.join(0);
  b.leave(Leaving::done, [] {});
  a.publish(message(0, 1, 5));
  CHECK(a.try_to_end(0, {}, 0, deadline));
}

TEST_CASE("a reply has the largest elements alone where there are many", "[local]") {
  const test::TempDir folder;
  FolderOptions options = options_of(folder.path(), "a");
  options.chunk = 4;
  options.reply_count = 1;
  FolderExchange a(options, Json::object(), Json::object(), {});
  mpi::Bundle bundle = message(0, 1, 5);
  bundle.vectors = {{8, {1, 2, 7}, {5, -6, 1}}, {}};
  a.publish(bundle);
  REQUIRE(a.try_to_end(0, {}, 0, deadline));
  CHECK(a.read_reply(0)->sum.vectors[0] == mpi::SparseVector{8, {2, 7}, {-6, 1}});
  CHECK(a.read_reply(0)->sum.vectors[1].size == 0);
}

TEST_CASE("damaged files count as not there", "[local]") {
  const test::TempDir folder;
  FolderExchange a = exchange_of(folder.path(), "a"), b = exchange_of(folder.path(), "b");
  a.publish(message(0, 1, 5));
  b.publish(message(0, 2, 6));
  damage(folder / "messages/b-00000000.safetensors");
  while (!a.try_to_end(0, {}, 0, deadline)) continue;
  CHECK(a.read_reply(0)->counted == std::map<std::string, std::uint64_t>{{"a", 0}});
  damage(folder / "replies/00000000.safetensors");
  CHECK_FALSE(a.read_reply(0));

  CHECK_FALSE(a.newest_state());
  TensorFile state;
  state.put("w", {2}, std::vector<float>{1, 2});
  a.publish_first_state(state, 0);
  state.put("w", {2}, std::vector<float>{3, 4});
  b.publish_first_state(state, 0);  // is not the first
  CHECK(a.newest_state()->file.get("w").as<float>()[0] == 1);
  b.publish_state(7, state);
  CHECK(a.newest_state()->rounds == 7);
  damage(folder / "states/00000007.safetensors");
  CHECK(a.newest_state()->rounds == 0);
  CHECK(a.newest_rounds() == 7);
}

TEST_CASE("a round whose reply stays damaged is ended again", "[local]") {
  const test::TempDir folder;
  FolderOptions options = options_of(folder.path(), "a");
  options.damaged_seconds = 0;
  FolderExchange a(options, Json::object(), Json::object(), {});
  FolderExchange patient(options_of(folder.path(), "b"), Json::object(), Json::object(), {});
  a.publish(message(0, 1, 5));
  REQUIRE(a.try_to_end(0, {}, 0, deadline));
  REQUIRE(a.try_to_end(0, {}, 0, deadline));
  CHECK(a.ended() == 1);
  damage(folder / "replies/00000000.safetensors");
  CHECK(patient.try_to_end(0, {}, 10 * deadline, deadline));
  CHECK_FALSE(patient.read_reply(0));
  CHECK(a.try_to_end(0, {}, 0, deadline));
  REQUIRE(a.read_reply(0));
  CHECK(a.read_reply(0)->sum.vectors[0] == mpi::SparseVector{8, {1}, {5}});
  CHECK(a.ended() == 2);
  CHECK(fs::exists(folder / "replies/00000000.safetensors.damaged"));
  // Others have read it where the next one is there.
  damage(folder / "replies/00000000.safetensors");
  test::write_file(folder / "replies/00000001.safetensors", "");
  CHECK(a.try_to_end(0, {}, 0, deadline));
  CHECK_FALSE(a.read_reply(0));
}

// One error of a file server ended the worker, or passed for the end of all replies, upon which a job removed them.
TEST_CASE("a file that the system does not read just now is not there yet, and nothing is removed for it", "[local]") {
  const test::TempDir folder;
  FolderExchange a = exchange_of(folder.path(), "a");
  std::optional<RoundReply> last;
  for (std::uint64_t round = 0; round < 3; ++round) {
    a.publish(message(round, 1, 5));
    REQUIRE(a.try_to_end(round, last, 0, deadline));
    last = a.read_reply(round);
  }
  const auto path = [&](int round) { return folder / fmt::format("replies/{:08}.safetensors", round); };
  CHECK_FALSE(a.reply_file(3));
  for (const int round : {1, 3}) {
    const fs::path reply = path(round), away = folder / "away";
    if (round == 1) fs::rename(reply, away);
    fs::create_symlink(reply.filename(), reply);  // to itself
    CHECK_FALSE(a.has_reply(static_cast<std::uint64_t>(round)));
    CHECK(has(message_of(ErrorKind::io, [&] { a.reply_file(static_cast<std::uint64_t>(round)); }), reply.string()));
    if (round == 3) {
      a.publish(message(3, 1, 5));
      const std::uint64_t ended = a.ended();
      a.try_to_end(3, last, 0, deadline);
      CHECK(a.ended() == ended);
    }
    fs::remove(reply);
    if (round == 1) fs::rename(away, reply);
  }
  fs::remove(folder / "messages/a-00000002.safetensors");
  fs::create_symlink("a-00000002.safetensors", folder / "messages/a-00000002.safetensors");
  CHECK_FALSE(a.has_message(2));
  damage(path(1));
  CHECK_FALSE(a.reply_file(1));
  CHECK(a.reply_file(2));
  const std::string before = test::read_file(path(2));
  a.drop_replies_from(1);
  CHECK(fs::exists(path(0)));
  CHECK_FALSE(a.has_reply(1));
  CHECK_FALSE(a.has_reply(2));
  CHECK(test::read_file(path(2).string() + ".damaged") == before);
}

TEST_CASE("what nobody needs any more is removed", "[local]") {
  const test::TempDir folder;
  FolderExchange a = exchange_of(folder.path(), "a");
  std::optional<RoundReply> last;
  for (std::uint64_t round = 0; round < 9; ++round) {
    if (round % 3 == 0) a.publish_state(round, {});
    a.publish(message(round, 1, 5));
    REQUIRE(a.try_to_end(round, last, 0, deadline));
    last = a.read_reply(round);
  }
  test::write_file(folder / "messages/late-00000008.safetensors", "");
  const auto others = {".00000001.safetensors.killed", "00000001.safetensors.damaged", ".00000002.safetensors.b"};
  for (const char* name : others) test::write_file(folder / "replies" / name, "");
  a.clean();
  std::vector<std::string> left;
  for (const char* name : others) {
    if (fs::exists(folder / "replies" / name)) left.emplace_back(name);
  }
  CHECK(left == std::vector<std::string>{".00000002.safetensors.b"});
  const auto names = [&](const char* of) {
    std::string all;
    for (const char* name :
         {"00000000", "00000002", "00000003", "00000006", "00000008", "a-00000002", "a-00000003", "late-00000008"}) {
      if (fs::exists(folder / of / (std::string(name) + ".safetensors"))) all += std::string(name) + " ";
    }
    return all;
  };
  CHECK(names("states") == "00000003 00000006 ");
  CHECK(names("replies") == "00000002 00000003 00000006 00000008 ");
  CHECK(names("messages") == "a-00000003 late-00000008 ");
}

TEST_CASE("workers that do not fit together, and folders that are none, are refused", "[local]") {
  const test::TempDir folder;
  const FieldName option = [](const std::string& field) { return "--" + field; };
  const FolderExchange first(options_of(folder.path(), "a"), Json{{"net", "tiny"}, {"inner", 5}}, Json{{"tokens", 1}}, option);
  const FolderExchange second(options_of(folder.path(), "b"), Json{{"net", "tiny"}, {"inner", 5}}, Json{{"tokens", 9}}, option);
  CHECK(second.founded()["tokens"] == 1);
  const std::string refusal = message_of(ErrorKind::usage, [&] {
    FolderExchange(options_of(folder.path(), "c"), Json{{"net", "tiny"}, {"inner", 6}}, Json::object(), option);
  });
  CHECK(has(refusal, "`through`: " + folder.path().string()));
  CHECK(has(refusal, "--inner: 5 stored, 6 given"));
  for (const char* name : {"", ".a", "a/b", "a b"}) {
    INFO(name);
    CHECK(has(message_of(ErrorKind::usage, [&] { check(options_of(folder.path(), name)); }), "`worker`: '"));
  }
  FolderOptions options = options_of(folder.path(), "a");
  options.quorum = 1.5;
  CHECK(message_of(ErrorKind::usage, [&] { check(options); }) == "`quorum`: 1.5; expected 0 to 1");
  test::write_file(folder / "file", "");
  CHECK(has(message_of(ErrorKind::io, [&] { exchange_of(folder / "file", "a"); }), "cannot be made"));
  test::write_file(folder / "exchange.json", "[]");
  CHECK(has(message_of(ErrorKind::data, [&] { exchange_of(folder.path(), "a"); }), "not a description of an exchange"));
}
