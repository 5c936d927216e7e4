// State that is divided among processes on its way to a file of full tensors, while they wait or while they train.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/memory.h"
#include "train/parallel/state_exchange.h"

namespace bitloom::train {

// Writer of tensors, each of which it asks for once.
using WriteTensors = std::function<void(std::map<std::string, StreamedTensor> tensors)>;

// Brings tensors to rank 0, which writes them while the others send what it asks for. Processes that have the same elements
// send a part of them each.
class StateGather {
 public:
  // Collective. Each rank names what it has. room: bytes that its host has for copies; 0: unknown. Throws SharedError(internal)
  // if the ranks disagree about a tensor, or if nobody has some element. All outlive this.
  StateGather(nn::Engine& engine, mpi::Comm& comm, std::vector<HeldTensor> held, std::uint64_t room = available_memory());

  // Bytes that this rank sends or, at rank 0, has of what is written.
  std::uint64_t own_bytes() const;
  // Whether all hosts have room for copies of that; the same on all ranks.
  bool has_room() const { return has_room_; }
  // Makes them: the tensors may change from here on, and another thread may call run().
  void copy();

  // Collective, once. Rank 0 calls write() with all full tensors, and with those of `rest` that it has whole; the other ranks
  // return once they have sent all they have. Throws what write() throws.
  void run(const TensorFile& rest, const WriteTensors& write);

 private:
  struct Source {
    int rank = 0;
    std::size_t index = 0;  // of the tensor among those that the rank named
    Holding holding;
  };
  struct Described {
    DType dtype = DType::f32;
    std::vector<std::size_t> shape;
    std::vector<Source> sources;
  };
  // Part of a held tensor that this rank sends: elements from number `first` of the own ones on.
  struct Part {
    const HeldTensor* held = nullptr;
    std::size_t first = 0;
    Holding holding;
    std::unique_ptr<std::byte[]> copied;
  };
  struct Request;
  using Bytes = std::vector<std::byte>;

  void describe(int rank, const Bytes& text, std::map<std::string, std::uint64_t>& rooms, std::vector<std::string>& hosts);
  void require_complete() const;
  std::vector<Source> divided(const Described& tensor, std::size_t& turn) const;
  // Messages that tell each rank its part.
  std::vector<Bytes> assign(const std::vector<Bytes>& descriptions);
  void take_part(const Bytes& assignment);

  std::map<std::string, StreamedTensor> tensors();
  void stream(const Described& tensor, const TakeBytes& take);
  void ask(const Described& tensor, std::uint64_t from);
  void fetch(const Described& tensor, std::uint64_t from, std::span<std::byte> piece);
  void tell(const Request& request);  // all others
  void stay_alive();
  void release();
  void serve();
  Bytes receive(int from, std::uint64_t most);
  void wait(const std::function<bool()>& done, const char* what, std::size_t bytes = 0) const;
  void read(const Part& part, std::size_t first, std::size_t count, std::span<std::byte> to) const;
  // Own elements first .. end - 1 of the part; those that are not copied are in `scratch`.
  std::span<const std::byte> bytes_of(const Part& part, std::size_t first, std::size_t end, Bytes& scratch) const;

  nn::Engine& engine_;
  mpi::Comm& comm_;
  std::vector<HeldTensor> held_;
  std::uint64_t room_;
  std::map<std::size_t, Part> parts_;  // by index in held_
  bool has_room_ = false;
  bool is_copied_ = false;
  // Rank 0's.
  std::map<std::string, Described> all_;
  std::size_t left_ = 0;  // tensors that nobody has asked for
  bool is_released_ = false;
  Clock::time_point last_told_;
};

}  // namespace bitloom::train
