#include "cli/shared_data.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "core/hash.h"
#include "data/dataset_file.h"
#include "data/readers.h"
#include "layerwise/cache.h"

namespace bitloom::cli {
namespace {

constexpr std::size_t chunk_bytes = std::size_t{1} << 20U;
constexpr std::size_t chunks_at_once = 8;  // between meetings of all ranks, so that nobody takes the others for lost

// Which ranks say yes, in their order.
std::vector<int> ranks_where(mpi::Comm& comm, bool yes) {
  std::vector<std::int64_t> flags(static_cast<std::size_t>(comm.size()));
  flags[static_cast<std::size_t>(comm.rank())] = yes ? 1 : 0;
  comm.sum(std::span(flags));
  std::vector<int> ranks;
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (flags[static_cast<std::size_t>(rank)] != 0) ranks.push_back(rank);
  }
  return ranks;
}

// Collective: the bytes of rank 0, on it and on `missing`; each of these passes on what it gets to the next one, so that no
// link carries more than one copy.
std::vector<std::byte> pass_on(Session& session, const std::vector<int>& missing, std::vector<std::byte> bytes) {
  mpi::Comm& comm = session.comm;
  std::uint64_t length = bytes.size();
  comm.broadcast(std::span<std::uint64_t>(&length, 1));
  std::vector<int> chain = {0};
  chain.insert(chain.end(), missing.begin(), missing.end());
  const auto place = std::find(chain.begin(), chain.end(), comm.rank());
  const bool receives = place != chain.end() && place != chain.begin();
  const bool sends = place != chain.end() && place + 1 != chain.end();
  if (receives) {
    comm.require_length("images", 0, length);
    bytes.reserve(length);
  }
  const Clock::time_point start = Clock::now();
  std::size_t chunks = 0;
  for (std::uint64_t begin = 0; begin < length; begin += chunk_bytes) {
    const std::uint64_t end = std::min<std::uint64_t>(begin + chunk_bytes, length);
    if (receives) {
      const std::vector<std::byte> chunk = comm.receive(*(place - 1), end - begin);
      if (chunk.size() != end - begin) {
        fail(ErrorKind::data, "images: rank {} sends {} bytes; expected {}", *(place - 1), chunk.size(), end - begin);
      }
      bytes.insert(bytes.end(), chunk.begin(), chunk.end());
    }
    if (sends) {
      const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(begin);
      comm.send(*(place + 1), {first, bytes.begin() + static_cast<std::ptrdiff_t>(end)});
    }
    if (++chunks % chunks_at_once != 0 && end != length) continue;
    comm.wait_until([&] { return comm.sends_finished(); }, "images for other hosts");
    comm.barrier();
    session.terminal.update(
        fmt::format("images: {} of {} sent, {}/s", format_bytes(end), format_bytes(length),
                    format_bytes(static_cast<std::uint64_t>(static_cast<double>(end) / seconds_since(start)))));
  }
  return bytes;
}

// Cache of the data set, on a rank that does not have its own.
class Kept {
 public:
  Kept(const std::filesystem::path& folder, std::uint64_t limit) {
    if (folder.empty() || limit == 0) return;
    try {
      cache_.emplace(folder, limit, [](const auto&, const auto&) {});
    } catch (const std::exception&) {
      // They come from rank 0 then.
    }
  }
  std::optional<data::DataSplits> get(const std::string& hash) {
    try {
      if (!cache_) return std::nullopt;
      const auto found = cache_->get(hash);
      if (!found) return std::nullopt;
      return data::from_tensors(TensorFile::parse(*found, "cached images", Checksum::required));
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  void put(const std::string& hash, std::span<const std::byte> bytes) {
    try {
      if (cache_) cache_->put(hash, bytes);
    } catch (const std::exception&) {
      // The next start asks again.
    }
  }

 private:
  std::optional<layerwise::Cache> cache_;
};

}  // namespace

data::DataSplits load_shared_data(Session& session, const DataOptions& options, const std::filesystem::path& cache,
                                  std::uint64_t cache_limit) {
  mpi::Comm& comm = session.comm;
  std::optional<data::DataSplits> own;
  comm.together([&] {
    try {
      own = load_data(options);
    } catch (const Error&) {
      if (comm.is_root()) throw;
    }
  });
  if (comm.is_root()) session.terminal.note(data::note_on_unread(options.spec));
  if (ranks_where(comm, !own).empty()) return *std::move(own);
  std::string hash;
  if (comm.is_root()) {
    Hasher hasher;
    for (const data::Dataset* set : {&own->train, &own->validation, &own->test}) {
      hasher.update(std::string_view(data::content_hash(*set)));
    }
    hash = hasher.finish().hex();
  }
  hash = comm.broadcast_text(hash);
  std::optional<Kept> kept;
  if (!own) {
    kept.emplace(cache, cache_limit);
    own = kept->get(hash);
  }
  const std::vector<int> missing = ranks_where(comm, !own);
  if (missing.empty()) return *std::move(own);
  const std::vector<std::string> names = mpi::host_names(comm);
  comm.together([&] {
    if (!comm.is_root() || (own->train.store == nullptr && own->test.store == nullptr)) return;
    fail(ErrorKind::data,
         "--data: rank {} on host {} cannot read {}, and images that exceed --image-memory, {}, are not sent to other hosts; "
         "expected the folder on every host",
         missing.front(), names[static_cast<std::size_t>(missing.front())], options.spec, format_bytes(options.image_memory));
  });
  const Clock::time_point start = Clock::now();
  const std::vector<std::byte> bytes =
      pass_on(session, missing, comm.is_root() ? data::to_tensors(*own).serialize() : std::vector<std::byte>{});
  comm.together([&] {
    if (own) return;
    kept->put(hash, bytes);
    own = data::from_tensors(TensorFile::parse(bytes, "images of rank 0", Checksum::required));
  });
  std::vector<std::string> who;
  for (const int rank : missing) {
    if (comm.is_root()) who.push_back(fmt::format("rank {} on host {}", rank, names[static_cast<std::size_t>(rank)]));
  }
  session.terminal.print("{} had no images and got them, {}, in {}", fmt::join(who, ", "), format_bytes(bytes.size()),
                         format_duration(seconds_since(start)));
  return *std::move(own);
}

}  // namespace bitloom::cli
