// Bundles of sparse vectors, and the tree along which they travel.
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "mpi/bundle.h"
#include "mpi/tree.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::mpi;
using bitloom::test::message_of;

namespace {

// The second of three vectors is not there.
Bundle random_bundle(std::uint64_t seed) {
  Random random(seed, Stream::test);
  Bundle bundle = {7, 1 + seed % 5, 100 * seed, {}, {}};
  for (int k = 0; k < 3; ++k) bundle.totals.push_back(static_cast<std::int64_t>(random.next()));
  bundle.totals.push_back(-1);
  for (const std::uint64_t size : {3000U, 0U, 20U}) {
    SparseVector vector;
    vector.size = size;
    for (std::uint32_t i = 0; i < size; ++i) {
      if (random.below(4) != 0) continue;
      vector.index.push_back(i);
      vector.value.push_back(1 + static_cast<std::int64_t>(random.below(9)));
    }
    bundle.vectors.push_back(vector);
  }
  return bundle;
}

}  // namespace

TEST_CASE("bundles give back what went in", "[bundle]") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Bundle bundle = random_bundle(seed);
    const std::vector<std::byte> message = encode(bundle);
    CHECK(decode_bundle(message) == bundle);
    std::vector<std::size_t> sizes = {1};
    CHECK(encoded_size(bundle, sizes) == message.size());
    REQUIRE(sizes.size() == 3);
    Bundle bare = bundle;
    bare.vectors.clear();
    CHECK(sizes[0] + sizes[1] + sizes[2] == message.size() - encode(bare).size());
    CHECK(sizes[1] == 1);
  }
  CHECK(decode_bundle(encode(Bundle{})) == Bundle{});
}

TEST_CASE("merged bundles are sums, in any grouping", "[bundle]") {
  std::vector<Bundle> parts;
  for (std::uint64_t seed = 1; seed < 8; ++seed) parts.push_back(random_bundle(seed));
  parts[3].vectors[2] = {};  // a rank without this one
  parts[5].totals.clear();
  const Bundle all = merge(parts);
  CHECK(all.update == 7);
  CHECK(all.workers == 2 + 3 + 4 + 5 + 1 + 2 + 3);
  CHECK(all.worker_bytes == 100 * 28);
  CHECK(all.totals[3] == -6);
  CHECK(all.vectors[1].size == 0);
  std::vector<std::int64_t> expected(3000);
  for (const Bundle& part : parts) add_to(expected, part.vectors[0]);
  CHECK(all.vectors[0] == to_sparse(expected));
  const Bundle left = merge({parts[6], parts[2], parts[4]});
  const Bundle right = merge({merge({parts[0], parts[1]}), merge({parts[3], parts[5]})});
  CHECK(merge({decode_bundle(encode(left)), right}) == all);
  CHECK(merge(std::vector<Bundle>{}) == Bundle{});

  Bundle other = parts[0];
  other.update = 8;
  CHECK(message_of(ErrorKind::usage, [&] {
          merge({parts[0], other});
        }) == "merge: a bundle of update 8; expected 7 as in the first");
  other = parts[0];
  other.vectors.pop_back();
  CHECK(message_of(ErrorKind::usage, [&] {
          merge({parts[0], other});
        }) == "merge: a bundle of 2 vectors; expected 3 as in the first");
}

TEST_CASE("damaged bundles are refused or are bundles of their own", "[bundle]") {
  Random random(3, Stream::test);
  std::size_t refused = 0;
  std::size_t accepted = 0;
  for (std::uint64_t round = 0; round < 4000; ++round) {
    std::vector<std::byte> message = encode(random_bundle(round));
    const auto size = static_cast<std::uint32_t>(message.size());
    switch (round % 4) {
      case 0: message.resize(random.below(size)); break;
      case 1: message.push_back(static_cast<std::byte>(random.next())); break;
      default: message[random.below(size)] = static_cast<std::byte>(random.next());
    }
    try {
      const Bundle bundle = decode_bundle(message);
      ++accepted;
      REQUIRE(decode_bundle(encode(bundle)) == bundle);
    } catch (const Error& error) {
      ++refused;
      REQUIRE(error.kind() == ErrorKind::data);
      REQUIRE(std::string(error.what()).starts_with("sparse message: "));
    }
  }
  CHECK(refused > 2000);
  CHECK(accepted > 100);
  CHECK(message_of(ErrorKind::data, [] { decode_bundle({}); }) == "sparse message: it does not start with a bundle's mark");
}

TEST_CASE("every rank of a tree but the root is below one other", "[tree]") {
  for (const int size : {1, 2, 3, 7, 8, 9, 64, 100}) {
    for (const int fan_in : {1, 2, 3, 8, 200}) {
      CAPTURE(size, fan_in);
      std::set<int> found = {0};
      for (int rank = 0; rank < size; ++rank) {
        const Tree tree(rank, size, fan_in);
        CHECK(tree.is_root() == (rank == 0));
        CHECK(tree.children().size() <= static_cast<std::size_t>(fan_in));
        for (const int child : tree.children()) {
          CHECK(found.insert(child).second);
          const Tree below(child, size, fan_in);
          CHECK(below.parent() == rank);
          CHECK(below.level() == tree.level() + 1);
          CHECK(below.height() < tree.height());
        }
        CHECK((tree.height() == 0) == tree.children().empty());
        CHECK(tree.level() + tree.height() <= tree.whole_height());
        if (tree.is_root()) CHECK(tree.subtree().size() == static_cast<std::size_t>(size));
      }
      CHECK(found.size() == static_cast<std::size_t>(size));
    }
  }
  CHECK(message_of(ErrorKind::usage, [] { Tree(0, 1, 0); }) == "`fan_in`: 0; expected at least 1");
  CHECK(message_of(ErrorKind::usage, [] { Tree(3, 3, 2); }) == "tree: rank 3 of 3; expected one in [0, 3)");
}
