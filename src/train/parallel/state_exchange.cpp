#include "train/parallel/state_exchange.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/half.h"
#include "nn/floats.h"
#include "train/parallel/state_pieces.h"

namespace bitloom::train {
namespace {

using Json = nlohmann::json;

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

}  // namespace

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
