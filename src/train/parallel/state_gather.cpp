#include "train/parallel/state_gather.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "core/error.h"
#include "train/parallel/state_pieces.h"

namespace bitloom::train {
namespace {

using Json = nlohmann::json;

// A replica sends no fewer bytes of a tensor than that: messages have a price of their own.
constexpr std::uint64_t least_part_bytes = std::uint64_t{64} << 10U;

// Longest list of parts that a rank is sent.
constexpr std::uint64_t longest_assignment = std::uint64_t{256} << 20U;

// A rank that is asked while it trains looks for that so often.
constexpr auto nap = std::chrono::microseconds(200);

// Signs of life that a rank gets within the time that the watchdog allows it to wait.
constexpr double signs_per_watchdog = 4;

}  // namespace

// Request by rank 0 for elements from .. to - 1 of a full tensor, as far as the rank has them.
struct StateGather::Request {
  enum : std::uint64_t { send, stay, end };  // stay: more will come
  std::uint64_t kind = send;
  std::uint64_t index = 0, from = 0, to = 0;

  Bytes to_bytes() const {
    const auto bytes = std::as_bytes(std::span(this, 1));
    return {bytes.begin(), bytes.end()};
  }
};

StateGather::StateGather(nn::Engine& engine, mpi::Comm& comm, std::vector<HeldTensor> held, std::uint64_t room)
    : engine_(engine), comm_(comm), held_(std::move(held)), room_(room) {
  Json json = {{"host", mpi::host_name()}, {"room", room_ == 0 ? UINT64_MAX : room_}, {"tensors", Json::array()}};
  for (const HeldTensor& each : held_) {
    const auto& [numbers, count] = each.holding;
    json["tensors"].push_back({each.name, static_cast<int>(each.stored), each.shape, numbers.first, numbers.run, numbers.stride,
                               numbers.begin, count});
  }
  const std::vector<Bytes> descriptions = comm_.gather_bytes(bytes_of_text(json.dump()));
  const std::vector<Bytes> assignments = comm_.together([&] { return assign(descriptions); });
  for (std::size_t rank = 1; rank < assignments.size(); ++rank) comm_.send(static_cast<int>(rank), assignments[rank]);
  take_part(comm_.is_root() ? assignments[0] : comm_.receive(0, longest_assignment));
  comm_.wait_until([&] { return comm_.sends_finished(); }, "the parts of a checkpoint");
}

void StateGather::describe(int rank, const Bytes& text, std::map<std::string, std::uint64_t>& rooms,
                           std::vector<std::string>& hosts) {
  const Json described = Json::parse(text_of(text));
  hosts.push_back(described["host"]);
  const std::uint64_t room = described["room"];
  const auto [least, is_first] = rooms.emplace(hosts.back(), room);
  if (!is_first) least->second = std::min(least->second, room);
  std::size_t index = 0;
  for (const Json& json : described["tensors"]) {
    const auto name = json[0].get<std::string>();
    const auto dtype = static_cast<DType>(json[1].get<int>());
    const auto shape = json[2].get<std::vector<std::size_t>>();
    const Holding holding{{json[3], json[4], json[5], json[6]}, json[7]};
    const auto [place, is_new] = all_.try_emplace(name, Described{dtype, shape, {}});
    Described& tensor = place->second;
    if (tensor.dtype != dtype || tensor.shape != shape) {
      fail(ErrorKind::internal, "'{}' is {} [{}] on rank {}; expected {} [{}] as on the ranks before it", name,
           dtype_name(dtype), fmt::join(shape, ", "), rank, dtype_name(tensor.dtype), fmt::join(tensor.shape, ", "));
    }
    // A rank may have it twice: one that two layers read, say.
    const bool is_known =
        std::ranges::any_of(tensor.sources, [&](const Source& s) { return s.rank == rank && s.holding == holding; });
    if (holding.count != 0 && !is_known) tensor.sources.push_back({rank, index, holding});
    ++index;
  }
}

// Sources of parts that are equal, or nearly so, of what some ranks have alike. turn: the number of such parts before; small
// tensors go to one rank after the other.
std::vector<StateGather::Source> StateGather::divided(const Described& tensor, std::size_t& turn) const {
  std::vector<Source> parts;
  std::vector<Source> left = tensor.sources;
  while (!left.empty()) {
    const Holding holding = left.front().holding;
    const auto others = std::stable_partition(left.begin(), left.end(), [&](const Source& s) { return s.holding == holding; });
    const std::vector<Source> alike(left.begin(), others);
    left.erase(left.begin(), others);
    const std::size_t count =
        std::clamp<std::size_t>(holding.count * dtype_size(tensor.dtype) / least_part_bytes, 1, alike.size());
    for (std::size_t i = 0; i < count; ++i) {
      Source part = alike[turn++ % alike.size()];
      const std::size_t begin = holding.count * i / count;
      part.holding.numbers.begin += begin;
      part.holding.count = holding.count * (i + 1) / count - begin;
      parts.push_back(part);
    }
  }
  return parts;
}

std::vector<StateGather::Bytes> StateGather::assign(const std::vector<Bytes>& descriptions) {
  std::map<std::string, std::uint64_t> rooms;  // by host
  std::vector<std::string> hosts;              // by rank
  for (std::size_t rank = 0; rank < descriptions.size(); ++rank) {
    describe(static_cast<int>(rank), descriptions[rank], rooms, hosts);
  }
  std::vector<Json> parts(descriptions.size(), Json::array());
  std::map<std::string, std::uint64_t> needs;
  std::size_t turn = 0;
  for (auto& [name, tensor] : all_) {
    tensor.sources = divided(tensor, turn);
    for (const Source& source : tensor.sources) {
      const auto rank = static_cast<std::size_t>(source.rank);
      parts[rank].push_back({source.index, source.holding.numbers.begin, source.holding.count});
      needs[hosts[rank]] += source.holding.count * dtype_size(tensor.dtype);
    }
  }
  require_complete();
  left_ = all_.size();
  const bool has_room = std::ranges::all_of(needs, [&](const auto& need) { return need.second <= rooms.at(need.first); });
  std::vector<Bytes> assignments;
  for (Json& each : parts) {
    const auto bytes = bytes_of_text(Json{{"has_room", has_room}, {"parts", std::move(each)}}.dump());
    assignments.push_back(bytes);
  }
  return assignments;
}

void StateGather::require_complete() const {
  for (const auto& [name, tensor] : all_) {
    std::uint64_t count = 0;
    for (const Source& source : tensor.sources) count += source.holding.count;
    if (count == elements_of(tensor.shape)) continue;
    fail(ErrorKind::internal, "'{}' of [{}]: the processes have {} elements of it; expected {}, each once", name,
         fmt::join(tensor.shape, ", "), count, elements_of(tensor.shape));
  }
}

void StateGather::take_part(const Bytes& assignment) {
  const Json json = Json::parse(text_of(assignment));
  has_room_ = json["has_room"];
  for (const Json& each : json["parts"]) {
    const std::size_t index = each[0];
    const HeldTensor& held = held_.at(index);
    Part part{&held, each[1].get<std::size_t>() - held.holding.numbers.begin, held.holding, nullptr};
    part.holding.numbers.begin = each[1];
    part.holding.count = each[2];
    parts_[index] = std::move(part);
  }
}

std::uint64_t StateGather::own_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [index, part] : parts_) bytes += part.holding.count * dtype_size(part.held->stored);
  return bytes;
}

void StateGather::copy() {
  for (auto& [index, part] : parts_) {
    const std::size_t bytes = part.holding.count * dtype_size(part.held->stored);
    part.copied = std::make_unique_for_overwrite<std::byte[]>(bytes);
    read(part, 0, part.holding.count, {part.copied.get(), bytes});
  }
  is_copied_ = true;
}

void StateGather::read(const Part& part, std::size_t first, std::size_t count, std::span<std::byte> to) const {
  const HeldTensor& held = *part.held;
  const std::size_t begin = part.first + first;
  const nn::Tensor own = held.tensor->reshaped({held.tensor->size()}).slice(begin, begin + count);
  if (held.stored == own.dtype()) return engine_.read(own, held.stored, to);
  const std::vector<bf16> halves = engine_.to_host<bf16>(own);
  std::vector<float> numbers(count);
  std::ranges::transform(halves, numbers.begin(), [](bf16 x) { return to_float(x); });
  std::memcpy(to.data(), numbers.data(), to.size());
}

std::span<const std::byte> StateGather::bytes_of(const Part& part, std::size_t first, std::size_t end, Bytes& scratch) const {
  const std::size_t size = dtype_size(part.held->stored);
  if (part.copied != nullptr) return {part.copied.get() + first * size, (end - first) * size};
  scratch.resize((end - first) * size);
  read(part, first, end - first, scratch);
  return scratch;
}

void StateGather::wait(const std::function<bool()>& done, const char* what, std::size_t bytes) const {
  const auto look = [&] {
    if (done()) return true;
    if (is_copied_) std::this_thread::sleep_for(nap);  // others compute
    return false;
  };
  comm_.wait_until(look, what, bytes);
}

StateGather::Bytes StateGather::receive(int from, std::uint64_t most) {
  std::optional<Bytes> bytes;
  wait([&] { return (bytes = comm_.try_receive(from, most)).has_value(); }, "a part of a checkpoint", most);
  return *std::move(bytes);
}

void StateGather::run(const TensorFile& rest, const WriteTensors& write) {
  if (!comm_.is_root()) return serve();
  last_told_ = Clock::now();
  try {
    std::map<std::string, StreamedTensor> all = tensors();
    all.merge(rest.streamed());
    write(std::move(all));
  } catch (...) {
    release();
    throw;
  }
  release();
}

std::map<std::string, StreamedTensor> StateGather::tensors() {
  std::map<std::string, StreamedTensor> streams;
  for (const auto& [name, tensor] : all_) {
    streams[name] = {tensor.dtype, tensor.shape, [this, &tensor = tensor](const TakeBytes& take) { stream(tensor, take); }};
  }
  return streams;
}

void StateGather::stream(const Described& tensor, const TakeBytes& take) {
  const std::size_t size = dtype_size(tensor.dtype);
  const std::uint64_t all = elements_of(tensor.shape);
  const auto end_of = [&](std::uint64_t from) { return std::min(all, from + piece_elements(tensor.dtype)); };
  Bytes piece;
  const auto fetch_piece = [&](std::uint64_t from) {
    piece.resize((end_of(from) - from) * size);
    fetch(tensor, from, piece);
  };
  if (all != 0) ask(tensor, 0);
  for (std::uint64_t from = 0; from < all; from = end_of(from)) {
    const std::uint64_t next = end_of(from);
    if (next < all) ask(tensor, next);  // on its way while this one is written
    fetch_piece(from);
    try {
      take(piece);
    } catch (...) {
      if (next < all) fetch_piece(next);  // nobody else would take it
      throw;
    }
    stay_alive();
  }
  // The others need not wait until everything is flushed.
  if (--left_ == 0) release();
}

void StateGather::ask(const Described& tensor, std::uint64_t from) {
  const std::uint64_t to = std::min(elements_of(tensor.shape), from + piece_elements(tensor.dtype));
  for (const auto& [rank, index, holding] : tensor.sources) {
    if (rank == comm_.rank() || holding.below(to) == holding.below(from)) continue;
    comm_.send(rank, Request{Request::send, index, from, to}.to_bytes());
  }
}

void StateGather::fetch(const Described& tensor, std::uint64_t from, std::span<std::byte> piece) {
  const std::size_t size = dtype_size(tensor.dtype);
  const std::uint64_t to = from + piece.size() / size;
  Bytes received;
  for (const auto& [rank, index, holding] : tensor.sources) {
    const std::size_t first = holding.below(from);
    const std::size_t end = holding.below(to);
    if (first == end) continue;
    std::span<const std::byte> bytes;
    if (rank == comm_.rank()) {
      bytes = bytes_of(parts_.at(index), first, end, received);
    } else {
      bytes = received = receive(rank, (end - first) * size);
    }
    if (bytes.size() != (end - first) * size) {
      fail(ErrorKind::internal, "rank {} sent {} bytes of a tensor; expected {}", rank, bytes.size(), (end - first) * size);
    }
    exchange(holding, size, from, to, bytes, piece,
             [](std::span<const std::byte> a, std::span<std::byte> b) { std::ranges::copy(a, b.begin()); });
    if (rank == comm_.rank() && end == holding.count) parts_.at(index).copied.reset();
  }
}

void StateGather::tell(const Request& request) {
  for (int rank = 0; rank < comm_.size(); ++rank) {
    if (rank != comm_.rank()) comm_.send(rank, request.to_bytes());
  }
  last_told_ = Clock::now();
}

// A rank whose parts come late waits longer than the watchdog may allow.
void StateGather::stay_alive() {
  const double most = comm_.settings().watchdog_seconds;
  if (most > 0 && seconds_since(last_told_) > most / signs_per_watchdog) tell({.kind = Request::stay});
}

void StateGather::release() {
  if (std::exchange(is_released_, true)) return;
  tell({.kind = Request::end});
  wait([&] { return comm_.sends_finished(); }, "the end of a checkpoint");
}

void StateGather::serve() {
  Bytes scratch;
  while (true) {
    const Bytes message = receive(0, sizeof(Request));
    Request request;
    if (message.size() != sizeof request) {
      fail(ErrorKind::internal, "a checkpoint's request of {} bytes; expected {}", message.size(), sizeof request);
    }
    std::memcpy(&request, message.data(), sizeof request);
    if (request.kind == Request::end) return;
    if (request.kind == Request::stay) continue;
    Part& part = parts_.at(request.index);
    const std::size_t end = part.holding.below(request.to);
    const auto bytes = bytes_of(part, part.holding.below(request.from), end, scratch);
    comm_.send(0, {bytes.begin(), bytes.end()});
    // One piece at a time: rank 0's memory and this one's stay small.
    wait([&] { return comm_.sends_finished(); }, "a piece of a checkpoint", bytes.size());
    if (end == part.holding.count) part.copied.reset();
  }
}

}  // namespace bitloom::train
