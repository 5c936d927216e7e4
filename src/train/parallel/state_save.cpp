#include "train/parallel/state_save.h"

#include <chrono>
#include <utility>

namespace bitloom::train {

StateSave::StateSave(nn::Engine& engine, mpi::Comm& comm, std::vector<HeldTensor> held, TensorFile rest, WriteTensors write,
                     std::uint64_t room)
    : gather_(engine, comm, std::move(held), room), rest_(std::move(rest)), write_(std::move(write)) {
  const auto work = [this] { gather_.run(rest_, write_); };
  if (comm.flag_any(!gather_.has_room() || !comm.use_from_thread())) {
    thread_ = std::async(std::launch::deferred, work);
    thread_.wait();
    return;
  }
  comm.together([&] { gather_.copy(); });
  thread_ = std::async(std::launch::async, work);
}

void StateSave::finish(const std::function<void()>& alive) {
  constexpr auto look = std::chrono::milliseconds(50);
  while (thread_.wait_for(look) != std::future_status::ready) alive();
  thread_.get();
}

}  // namespace bitloom::train
