#include "mpi/bundle.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "mpi/bit_stream.h"

namespace bitloom::mpi {
namespace {

constexpr std::byte bundle_magic{0xB6};
constexpr std::byte bundle_version{1};

std::uint64_t zigzag(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  return value < 0 ? 2 * ~bits + 1 : 2 * bits;
}

std::int64_t from_zigzag(std::uint64_t code) { return static_cast<std::int64_t>((code & 1U) != 0 ? ~(code / 2) : code / 2); }

// Bytes of a bundle before its vectors.
std::vector<std::byte> start_of(const Bundle& bundle) {
  std::vector<std::byte> out = {bundle_magic, bundle_version};
  put_varint(out, bundle.update);
  put_varint(out, bundle.workers);
  put_varint(out, bundle.worker_bytes);
  put_varint(out, bundle.totals.size());
  for (const std::int64_t total : bundle.totals) put_varint(out, zigzag(total));
  put_varint(out, bundle.vectors.size());
  return out;
}

}  // namespace

std::vector<std::byte> encode(const Bundle& bundle) {
  std::vector<std::byte> out = start_of(bundle);
  std::vector<std::byte> message;
  for (const SparseVector& vector : bundle.vectors) {
    message.clear();
    if (vector.size != 0) encode(vector, message);
    put_varint(out, message.size());
    out.insert(out.end(), message.begin(), message.end());
  }
  return out;
}

std::size_t encoded_size(const Bundle& bundle, std::vector<std::size_t>& sizes) {
  std::size_t bytes = start_of(bundle).size();
  sizes.clear();
  for (const SparseVector& vector : bundle.vectors) {
    const std::size_t message = vector.size == 0 ? 0 : encoded_size(vector);
    sizes.push_back(varint_bytes(message) + message);
    bytes += sizes.back();
  }
  return bytes;
}

Bundle decode_bundle(std::span<const std::byte> message) {
  if (message.size() < 2 || message[0] != bundle_magic)
    fail(ErrorKind::data, "sparse message: it does not start with a bundle's mark");
  if (message[1] != bundle_version) {
    fail(ErrorKind::data, "sparse message: a bundle of version {}; expected {}", std::to_integer<unsigned>(message[1]),
         std::to_integer<unsigned>(bundle_version));
  }
  std::span<const std::byte> rest = message.subspan(2);
  Bundle bundle;
  bundle.update = get_varint(rest, "update");
  bundle.workers = get_varint(rest, "number of workers");
  bundle.worker_bytes = get_varint(rest, "workers' bytes");
  // A number takes at least a byte: nobody can ask for more memory than a message brings.
  const auto count_of = [&](const char* what) {
    const std::uint64_t count = get_varint(rest, what);
    if (count > rest.size()) fail(ErrorKind::data, "sparse message: {} {} cannot be in {} bytes", count, what, rest.size());
    return count;
  };
  for (std::uint64_t left = count_of("totals"); left > 0; --left) {
    bundle.totals.push_back(from_zigzag(get_varint(rest, "total")));
  }
  for (std::uint64_t left = count_of("vectors"); left > 0; --left) {
    const std::uint64_t length = get_varint(rest, "vector's length");
    if (length > rest.size()) {
      fail(ErrorKind::data, "sparse message: a vector of {} bytes cannot be in {} bytes", length, rest.size());
    }
    bundle.vectors.push_back(length > 0 ? decode(rest.first(length)) : SparseVector{});
    rest = rest.subspan(length);
  }
  if (!rest.empty()) fail(ErrorKind::data, "sparse message: {} bytes are left after a bundle", rest.size());
  return bundle;
}

std::vector<std::byte> to_message(Bundle bundle) {
  if (bundle.workers == 1) bundle.worker_bytes = 0;
  return encode(bundle);
}

Bundle from_message(std::span<const std::byte> message) {
  Bundle bundle = decode_bundle(message);
  if (bundle.workers == 1) bundle.worker_bytes = message.size();
  return bundle;
}

Bundle merge(std::vector<Bundle> parts) {
  Bundle sum;
  if (parts.empty()) return sum;
  sum.update = parts.front().update;
  std::size_t totals = 0;
  for (const Bundle& part : parts) {
    if (part.update != sum.update) {
      fail(ErrorKind::usage, "merge: a bundle of update {}; expected {} as in the first", part.update, sum.update);
    }
    if (part.vectors.size() != parts.front().vectors.size()) {
      fail(ErrorKind::usage, "merge: a bundle of {} vectors; expected {} as in the first", part.vectors.size(),
           parts.front().vectors.size());
    }
    sum.workers += part.workers;
    sum.worker_bytes += part.worker_bytes;
    totals = std::max(totals, part.totals.size());
  }
  sum.totals.assign(totals, 0);
  for (const Bundle& part : parts) {
    for (std::size_t k = 0; k < part.totals.size(); ++k) {
      sum.totals[k] =
          static_cast<std::int64_t>(static_cast<std::uint64_t>(sum.totals[k]) + static_cast<std::uint64_t>(part.totals[k]));
    }
  }
  for (std::size_t v = 0; v < parts.front().vectors.size(); ++v) {
    std::vector<SparseVector> vectors;
    for (Bundle& part : parts) {
      if (part.vectors[v].size != 0) vectors.push_back(std::move(part.vectors[v]));
    }
    sum.vectors.push_back(merge(std::move(vectors)));
  }
  return sum;
}

}  // namespace bitloom::mpi
