#include "train/parallel/stage_forward.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/field.h"

namespace bitloom::train {
namespace {

// Number of axes, type, lengths.
using Header = std::array<std::uint64_t, 2 + nn::Shape::most_axes>;

}  // namespace

StageForward::StageForward(mpi::Comm& comm, Partition parts) : comm_(&comm), parts_(std::move(parts)) {
  const auto stages = static_cast<std::size_t>(comm.size());
  if (parts_.empty() || parts_.size() % stages != 0) {
    fail_field(ErrorKind::usage, "partition", "{} parts for {} stages; expected a multiple", parts_.size(), stages);
  }
}

nn::Tensor StageForward::run(nn::Pass& pass, nn::Sequence& net, nn::Tensor x, Sharding* sharding) {
  const int stages = comm_->size();
  const int stage = comm_->rank();
  const auto step = static_cast<std::size_t>(stages);
  if (sharding != nullptr) {
    std::vector<std::size_t> layers;
    for (auto part = static_cast<std::size_t>(stage); part < parts_.size(); part += step) {
      for (std::size_t i = parts_[part].first; i < parts_[part].last; ++i) layers.push_back(i);
    }
    sharding->begin_passes(layers);
  }
  for (auto part = static_cast<std::size_t>(stage); part < parts_.size(); part += step) {
    if (part > 0 && stages > 1) x = receive(pass.engine, (stage + stages - 1) % stages);
    for (std::size_t i = parts_[part].first; i < parts_[part].last; ++i) {
      if (sharding != nullptr) sharding->enter(i, BlockPass::forward);
      x = net[i].forward(pass, x);
      if (sharding != nullptr) sharding->leave(i, BlockPass::forward);
      if (stages > 1) static_cast<void>(comm_->sends_finished());  // messages move on
    }
    if (part + 1 == parts_.size()) return x;
    if (stages > 1) send(pass.engine, (stage + 1) % stages, std::exchange(x, {}));
  }
  return {};
}

void StageForward::send(nn::Engine& engine, int to, const nn::Tensor& tensor) {
  Header header{};
  const auto lengths = tensor.shape().lengths();
  header[0] = lengths.size();
  header[1] = static_cast<std::uint64_t>(tensor.dtype());
  std::ranges::copy(lengths, header.begin() + 2);
  std::vector<std::byte> bytes(sizeof(Header) + tensor.bytes());
  std::memcpy(bytes.data(), header.data(), sizeof(Header));
  engine.read(tensor, tensor.dtype(), std::span(bytes).subspan(sizeof(Header)));
  comm_->send(to, std::move(bytes));
}

nn::Tensor StageForward::receive(nn::Engine& engine, int from) {
  const std::vector<std::byte> bytes = comm_->receive(from);
  Header header{};
  std::memcpy(header.data(), bytes.data(), std::min(sizeof(Header), bytes.size()));
  const bool has_header = bytes.size() >= sizeof(Header) && header[0] <= nn::Shape::most_axes;
  const nn::Shape shape = has_header ? nn::Shape(std::span(header).subspan(2, header[0])) : nn::Shape();
  const auto dtype = static_cast<DType>(header[1]);
  if (!has_header || header[1] > static_cast<std::uint64_t>(DType::f16) ||
      shape.size() * dtype_size(dtype) != bytes.size() - sizeof(Header)) {
    fail(ErrorKind::internal, "pipeline: stage {} sends {} bytes that are no tensor", from, bytes.size());
  }
  nn::Tensor tensor = engine.empty(shape, dtype, nn::Use::activations);
  engine.write(tensor, std::span(bytes).subspan(sizeof(Header)));
  return tensor;
}

}  // namespace bitloom::train
