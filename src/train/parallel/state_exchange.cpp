#include "train/parallel/state_exchange.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/half.h"
#include "nn/floats.h"

namespace bitloom::train {
namespace {

using Json = nlohmann::json;

// Number of elements of a full tensor in a piece.
std::uint64_t piece_elements(DType dtype) { return state_piece_bytes / dtype_size(dtype); }

std::uint64_t elements_of(const std::vector<std::size_t>& shape) {
  std::uint64_t elements = 1;
  for (const std::size_t length : shape) elements *= length;
  return elements;
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string text_of(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// The own bytes of elements from .. to - 1 of the full tensor.
std::span<const std::byte> part_of(std::span<const std::byte> own, const Holding& holding, std::size_t element_size,
                                   std::uint64_t from, std::uint64_t to) {
  const std::uint64_t first = holding.below(from);
  return own.subspan(first * element_size, (holding.below(to) - first) * element_size);
}

// Copies between the own bytes of elements from .. of the full tensor and a piece that begins at `from`.
template <typename Own, typename Piece, typename Copy>
void exchange(const Holding& holding, std::size_t element_size, std::uint64_t from, std::uint64_t to, Own own, Piece piece,
              Copy copy) {
  const std::uint64_t first = holding.below(from);
  holding.numbers.for_runs(first, holding.below(to), [&](std::size_t at, std::size_t full, std::size_t length) {
    copy(own.subspan((at - first) * element_size, length * element_size),
         piece.subspan((full - from) * element_size, length * element_size));
  });
}

bool is_accepted(const HeldTensor& held, DType dtype) {
  return dtype == held.stored || (held.converts && (dtype == DType::f32 || dtype == DType::bf16));
}

// bytes: of elements of a type that is_accepted().
void write(nn::Engine& engine, const HeldTensor& held, DType dtype, std::span<const std::byte> bytes) {
  if (dtype == held.tensor->dtype()) return engine.write(*held.tensor, bytes);
  std::vector<float> numbers(held.tensor->size());
  if (dtype == DType::bf16) {
    std::vector<bf16> halves(numbers.size());
    std::memcpy(halves.data(), bytes.data(), bytes.size());
    std::ranges::transform(halves, numbers.begin(), [](bf16 x) { return to_float(x); });
  } else {
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
  }
  nn::write_floats(engine, *held.tensor, numbers);
}

// Rank 0 sends the name of the tensor that it wants; an empty one is the end.
constexpr std::uint64_t longest_name = 4096;

}  // namespace

StateGather::StateGather(nn::Engine& engine, mpi::Comm& comm, std::vector<HeldTensor> held)
    : engine_(engine), comm_(comm), held_(std::move(held)) {
  Json json = Json::array();
  for (const HeldTensor& each : held_) {
    const auto& [numbers, count] = each.holding;
    json.push_back({each.name, static_cast<int>(each.stored), each.shape, numbers.first, numbers.run, numbers.stride,
                    numbers.begin, count});
  }
  const std::string text = json.dump();
  const std::vector<std::vector<std::byte>> gathered = comm_.gather_bytes(std::as_bytes(std::span(text)));
  comm_.together([&] {
    for (std::size_t rank = 0; rank < gathered.size(); ++rank) describe(static_cast<int>(rank), gathered[rank]);
    require_complete();
  });
}

void StateGather::describe(int rank, const std::vector<std::byte>& text) {
  for (const Json& json : Json::parse(text_of(text))) {
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
    const bool is_known = std::ranges::any_of(tensor.sources, [&](const Source& s) { return s.holding == holding; });
    if (holding.count != 0 && !is_known) tensor.sources.push_back({rank, holding});
  }
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

const HeldTensor* StateGather::find(const std::string& name) const {
  const auto found = std::ranges::find(held_, name, &HeldTensor::name);
  return found == held_.end() ? nullptr : &*found;
}

std::vector<std::byte> StateGather::read(const HeldTensor& held) const {
  if (held.stored != held.tensor->dtype()) {
    const std::vector<float> numbers = nn::to_floats(engine_, *held.tensor);
    const auto bytes = std::as_bytes(std::span(numbers));
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::byte> bytes(held.tensor->bytes());
  engine_.read(*held.tensor, held.stored, bytes);
  return bytes;
}

std::map<std::string, StreamedTensor> StateGather::tensors() {
  std::map<std::string, StreamedTensor> streams;
  for (const auto& [name, tensor] : all_) {
    streams[name] = {tensor.dtype, tensor.shape,
                     [this, &name = name, &tensor = tensor](const TakeBytes& take) { stream(name, tensor, take); }};
  }
  return streams;
}

void StateGather::stream(const std::string& name, const Described& tensor, const TakeBytes& take) {
  const std::size_t size = dtype_size(tensor.dtype);
  const std::uint64_t all = elements_of(tensor.shape);
  std::vector<std::byte> own;
  for (const Source& source : tensor.sources) {
    if (source.rank != comm_.rank()) {
      comm_.send(source.rank, bytes_of(name));
    } else {
      own = read(*find(name));
    }
  }
  // Messages of other ranks are received in any case: an error of a full disk, say, comes after it.
  std::exception_ptr error;
  std::vector<std::byte> piece;
  for (std::uint64_t from = 0; from < all; from += piece_elements(tensor.dtype)) {
    const std::uint64_t to = std::min(all, from + piece_elements(tensor.dtype));
    piece.resize((to - from) * size);
    for (const auto& [rank, holding] : tensor.sources) {
      const std::uint64_t expected = (holding.below(to) - holding.below(from)) * size;
      if (expected == 0) continue;
      const std::vector<std::byte> received = rank == comm_.rank() ? std::vector<std::byte>() : comm_.receive(rank, expected);
      const std::span<const std::byte> part =
          rank == comm_.rank() ? part_of(own, holding, size, from, to) : std::span<const std::byte>(received);
      if (part.size() != expected) {
        fail(ErrorKind::internal, "'{}': rank {} sent {} bytes; expected {}", name, rank, part.size(), expected);
      }
      exchange(holding, size, from, to, part, std::span(piece),
               [](std::span<const std::byte> a, std::span<std::byte> b) { std::ranges::copy(a, b.begin()); });
    }
    if (error) continue;
    try {
      take(piece);
    } catch (...) {
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

void StateGather::release() {
  for (int rank = 0; rank < comm_.size(); ++rank) {
    if (rank != comm_.rank()) comm_.send(rank, {});
  }
  comm_.wait_until([&] { return comm_.sends_finished(); }, "the end of a checkpoint");
}

void StateGather::serve() {
  while (true) {
    const std::string name = text_of(comm_.receive(0, longest_name));
    if (name.empty()) return;
    const HeldTensor* held = find(name);
    if (held == nullptr) fail(ErrorKind::internal, "rank 0 asks for '{}', of which rank {} has nothing", name, comm_.rank());
    const std::vector<std::byte> own = read(*held);
    const DType dtype = held->stored;
    const std::uint64_t all = elements_of(held->shape);
    for (std::uint64_t from = 0; from < all; from += piece_elements(dtype)) {
      const std::uint64_t to = std::min(all, from + piece_elements(dtype));
      const auto part = part_of(own, held->holding, dtype_size(dtype), from, to);
      if (part.empty()) continue;
      comm_.send(0, {part.begin(), part.end()});
      // One piece at a time: rank 0's memory and this one's stay small.
      comm_.wait_until([&] { return comm_.sends_finished(); }, "a piece of a checkpoint", part.size());
    }
  }
}

void scatter_state(nn::Engine& engine, mpi::Comm& comm, std::span<const HeldTensor> held, const TensorSource* file) {
  // The names of all ranks' tensors, by rank 0.
  Json names = Json::array();
  for (const HeldTensor& each : held) names.push_back(each.name);
  const std::string text = names.dump();
  std::set<std::string> all;
  for (const std::vector<std::byte>& bytes : comm.gather_bytes(std::as_bytes(std::span(text)))) {
    for (const Json& name : Json::parse(text_of(bytes))) all.insert(name.get<std::string>());
  }
  const std::string described = comm.broadcast_text(comm.together([&] {
    Json list = Json::array();
    for (const std::string& name : all) {
      const TensorSource::Description tensor = file->describe(name);
      list.push_back({name, static_cast<int>(tensor.dtype), tensor.shape});
    }
    return list.dump();
  }));
  const Json list = Json::parse(described);
  comm.together([&] {
    for (const HeldTensor& each : held) {
      const auto found = std::ranges::find_if(list, [&](const Json& json) { return json[0] == each.name; });
      const auto dtype = static_cast<DType>((*found)[1].get<int>());
      const auto shape = (*found)[2].get<std::vector<std::size_t>>();
      if (is_accepted(each, dtype) && shape == each.shape) continue;
      fail(ErrorKind::data, "the tensor '{}' is {} [{}], expected {} [{}]", each.name, dtype_name(dtype),
           fmt::join(shape, ", "), dtype_name(each.stored), fmt::join(each.shape, ", "));
    }
  });
  std::vector<std::byte> piece;
  for (const Json& json : list) {
    const auto name = json[0].get<std::string>();
    const auto dtype = static_cast<DType>(json[1].get<int>());
    const std::uint64_t elements = elements_of(json[2].get<std::vector<std::size_t>>());
    const std::size_t size = dtype_size(dtype);
    // A tensor may be here twice: one that two layers read, say.
    std::vector<std::pair<const HeldTensor*, std::vector<std::byte>>> own;
    for (const HeldTensor& each : held) {
      if (each.name == name) own.emplace_back(&each, std::vector<std::byte>(each.tensor->size() * size));
    }
    std::exception_ptr error;  // rank 0's, which the others hear of when they have had the tensor's pieces
    for (std::uint64_t from = 0; from < elements; from += piece_elements(dtype)) {
      const std::uint64_t to = std::min(elements, from + piece_elements(dtype));
      piece.resize((to - from) * size);
      if (comm.is_root() && !error) {
        try {
          file->read(name, from * size, piece);
        } catch (...) {
          error = std::current_exception();
        }
      }
      comm.broadcast(std::span(piece));
      for (auto& [each, bytes] : own) {
        const Holding& holding = each->holding;
        const std::uint64_t first = holding.below(from);
        exchange(holding, size, from, to, std::span(bytes).subspan(first * size), std::span(piece),
                 [](std::span<std::byte> a, std::span<const std::byte> b) { std::ranges::copy(b, a.begin()); });
      }
    }
    comm.together([&] {
      if (error) std::rethrow_exception(error);
      for (const auto& [each, bytes] : own) write(engine, *each, dtype, bytes);
    });
  }
}

}  // namespace bitloom::train
