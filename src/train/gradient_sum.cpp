#include "train/gradient_sum.h"

#include <algorithm>
#include <array>
#include <vector>

#include "mpi/float_collectives.h"
#include "train/parallel/elements.h"
#include "train/parallel/gpu_comm.h"

namespace bitloom::train {

GradientSum::GradientSum(nn::Engine& engine, mpi::Comm& comm) : engine_(engine), comm_(comm) {
  if (engine.device().kind == nn::Device::Kind::cuda) {
    gpus_ = std::make_unique<GpuComm>(engine, comm);
  }
}

GradientSum::~GradientSum() = default;

namespace {

// Sums all tensors of one type; those that are small go together, since every sum waits for all ranks twice.
template <typename T>
void sum_on_host(mpi::Comm& comm, std::span<nn::Tensor> tensors) {
  constexpr std::size_t most = std::size_t{4} << 20U;  // elements
  std::vector<std::span<T>> held;
  std::vector<T> all;
  const auto flush = [&] {
    mpi::sum_in_order(comm, std::span<T>(all));
    auto from = all.begin();
    for (const std::span<T> values : held) {
      std::copy_n(from, values.size(), values.begin());
      from += static_cast<std::ptrdiff_t>(values.size());
    }
    held.clear();
    all.clear();
  };
  for (nn::Tensor& tensor : tensors) {
    if (tensor.dtype() != dtype_of<T>()) continue;
    const std::span<T> values = tensor.as<T>();
    if (values.size() >= most) {
      mpi::sum_in_order(comm, values);
      continue;
    }
    if (all.size() + values.size() > most) flush();
    held.push_back(values);
    all.insert(all.end(), values.begin(), values.end());
  }
  flush();
}

}  // namespace

void GradientSum::sum(std::span<nn::Tensor> tensors) {
  if (gpus_ == nullptr) {
    engine_.synchronize();
    sum_on_host<float>(comm_, tensors);
    sum_on_host<double>(comm_, tensors);
    return;
  }
  std::vector<mpi::DeviceComm::Values> values;
  for (const nn::Tensor& tensor : tensors) values.push_back(on_device(tensor));
  gpus_->sum(values);
  gpus_->wait();
}

void GradientSum::sum(Loss& loss) {
  std::array<double, 2> sums = {loss.sum, static_cast<double>(loss.count)};
  mpi::sum_in_order(comm_, std::span<double>(sums));
  loss = {sums[0], static_cast<std::uint64_t>(sums[1])};
}

}  // namespace bitloom::train
