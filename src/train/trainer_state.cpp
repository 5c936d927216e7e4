// State that a trainer goes on from: to and from files, and the same in all processes that have it.
#include <algorithm>
#include <array>
#include <map>

#include "core/error.h"
#include "train/parallel/replicas.h"
#include "train/parallel/state_hash.h"
#include "train/trainer.h"

namespace bitloom::train {
namespace {

// Tensors of checkpoints besides the state's.
constexpr const char* steps_name = "optimizer.steps";
constexpr const char* counters_name = "trainer.state";
constexpr const char* block_scales_name = "trainer.block_scales";

}  // namespace

std::vector<StateTensor> Trainer::state() {
  std::vector<StateTensor> all;
  for (nn::Parameter* parameter : moved_) all.push_back({parameter->name, &parameter->value, parameter});
  for (const auto& [name, tensor] : buffers_) all.push_back({name, tensor, nullptr});
  optimizer_->add_state(all);
  return all;
}

HeldTensor Trainer::held(const std::string& name, nn::Tensor& tensor, const nn::Parameter* parameter, DType stored) const {
  if (parameter == nullptr) {
    const auto lengths = tensor.shape().lengths();
    return {name, {lengths.begin(), lengths.end()}, Holding::whole(tensor.size()), &tensor, stored};
  }
  const nn::Parameter& whole = sharding_ ? *sharding_->whole(*parameter) : *parameter;
  return {name, full_shape_of(whole), sharding_ ? sharding_->holding(*parameter) : holding_of(whole), &tensor, stored};
}

std::vector<HeldTensor> Trainer::held() {
  std::vector<HeldTensor> all;
  for (const StateTensor& each : state()) {
    all.push_back(held(each.name, *each.tensor, each.parameter, each.tensor->dtype()));
    // Checkpoints of before have embeddings without masters in bf16.
    const nn::Parameter* parameter = each.parameter;
    all.back().converts = parameter != nullptr && each.tensor == &parameter->value && !parameter->is_block_matrix();
  }
  for (auto& [name, tensor] : power_sgd_state_) all.push_back(held_of_power_sgd(name, tensor));
  return all;
}

// An error buffer is of the parameter's shape, of (rows, columns).
HeldTensor Trainer::held_of_power_sgd(const std::string& name, nn::Tensor& tensor) {
  HeldTensor all = held(name, tensor, nullptr, DType::f32);
  if (!sharding_) return all;
  const auto is_of = [&](const nn::Parameter* moved) { return power_sgd_error_name(moved->name) == name; };
  const auto found = std::ranges::find_if(moved_, is_of);
  if (found == moved_.end()) return all;
  const nn::Shape& shape = sharding_->whole(**found)->shape;
  all.shape = {shape[0], shape.size() / shape[0]};
  all.holding = sharding_->holding(**found);
  return all;
}

std::vector<HeldTensor> Trainer::held_model() {
  std::vector<HeldTensor> all;
  for (nn::Parameter* parameter : moved_) {
    const DType type = parameter->value.dtype();
    all.push_back(held(parameter->name, parameter->value, parameter, type == DType::bf16 ? DType::f32 : type));
  }
  for (const auto& [name, tensor] : buffers_) all.push_back(held(name, *tensor, nullptr, tensor->dtype()));
  return all;
}

std::vector<std::int64_t> Trainer::step_counts() {
  const std::vector<std::uint64_t> own = optimizer_->step_counts();
  const std::vector<nn::Parameter*> moved = learned(moved_);
  std::map<std::string, std::uint64_t> by_name;
  for (std::size_t i = 0; i < moved.size(); ++i) by_name[moved[i]->name] = own[i];
  std::vector<std::int64_t> counts;
  for (const nn::Parameter* parameter : learned_) {
    counts.push_back(static_cast<std::int64_t>(by_name[parameter->name]));  // 0: another stage has it
  }
  counts.push_back(static_cast<std::int64_t>(own.back()));
  grid_->pipeline().max(std::span(counts));
  return counts;
}

void Trainer::set_step_counts(std::span<const std::uint64_t> counts) {
  std::map<std::string, std::uint64_t> by_name;
  for (std::size_t i = 0; i < learned_.size(); ++i) by_name[learned_[i]->name] = counts[i];
  std::vector<std::uint64_t> own;
  for (const nn::Parameter* parameter : learned(moved_)) own.push_back(by_name.at(parameter->name));
  own.push_back(counts.back());
  optimizer_->set_step_counts(own);
}

std::vector<double> Trainer::counters() const {
  return {static_cast<double>(step_), loss_scale_, static_cast<double>(clean_steps_)};
}

void Trainer::set_counters(std::span<const double> counters) {
  step_ = static_cast<std::uint64_t>(counters[0]);
  loss_scale_ = counters[1];
  clean_steps_ = static_cast<std::uint64_t>(counters[2]);
}

// Data ranks that have the same elements of a parameter as this one.
mpi::Comm& Trainer::data_group_of(const nn::Parameter& moved) {
  const bool is_shard = sharding_ && sharding_->whole(moved) != &moved;
  return is_shard ? grid_->copies() : grid_->data();
}

void Trainer::compare_replicas() {
  std::vector<Replica> replicas;
  for (nn::Parameter* moved : moved_) {
    const nn::Parameter& whole = sharding_ ? *sharding_->whole(*moved) : *moved;
    std::vector<mpi::Comm*> groups = {&data_group_of(*moved)};
    if (!whole.part) groups.push_back(&grid_->tensor());
    replicas.push_back({moved->name, &moved->value, std::move(groups)});
    if (&whole != moved && sharding_->level() != ShardLevel::parameters) {
      replicas.push_back({moved->name, &whole.read(), {&grid_->data()}});  // put together from shards
    }
  }
  for (const auto& [name, parameter] : pipeline_->tied_parameters()) {
    replicas.push_back({name, parameter == nullptr ? nullptr : &parameter->value, {&grid_->pipeline()}});
  }
  for (const auto& [name, tensor] : buffers_) replicas.push_back({name, tensor, {&grid_->data(), &grid_->tensor()}});
  require_same(engine_, grid_->world(), replicas, fmt::format("after step {}", step_));
}

std::uint64_t Trainer::parameters_hash() {
  std::uint64_t sum = 0;
  std::vector<HeldTensor> held = held_model();
  for (std::size_t i = 0; i < held.size(); ++i) {
    // One process of those that have the same elements counts them.
    bool counts = grid_->tensor().is_root() && grid_->data().is_root();  // a buffer
    if (i < moved_.size()) {
      const nn::Parameter& whole = sharding_ ? *sharding_->whole(*moved_[i]) : *moved_[i];
      counts =
          data_group_of(*moved_[i]).is_root() && pipeline_->is_counted_here(whole) && (whole.part || grid_->tensor().is_root());
    }
    if (counts) sum += hash_elements(engine_, held[i]);
  }
  std::array<std::int64_t, 2> halves = {static_cast<std::int64_t>(sum & 0xFFFFFFFFU), static_cast<std::int64_t>(sum >> 32U)};
  comm().sum(std::span(halves));
  return static_cast<std::uint64_t>(halves[0]) + (static_cast<std::uint64_t>(halves[1]) << 32U);
}

TensorFile Trainer::rest() {
  TensorFile rest;
  const std::vector<std::int64_t> counts = step_counts();
  rest.put(steps_name, {counts.size()}, std::vector<std::uint64_t>(counts.begin(), counts.end()));
  const std::vector<double> numbers = counters();
  rest.put(counters_name, {numbers.size()}, numbers);
  if (scales_) rest.put(block_scales_name, {scales_->blocks().size(), 2}, scales_->state());
  return rest;
}

void Trainer::save(const WriteTensors& write) {
  compare_replicas();
  const TensorFile others = rest();
  if (power_sgd_) power_sgd_state_ = power_sgd_->state();
  StateGather(engine_, comm(), held()).run(others, write);
  power_sgd_state_.clear();
}

void Trainer::save_model(const WriteTensors& write) { StateGather(engine_, comm(), held_model()).run({}, write); }

void Trainer::begin_save(WriteTensors write) {
  if (save_ != nullptr) fail(ErrorKind::internal, "a save begins while another one is under way");
  compare_replicas();
  if (!save_comm_) save_comm_.emplace(comm().split(0, 0, "checkpoint"));
  if (power_sgd_) power_sgd_state_ = power_sgd_->state();
  save_ = std::make_unique<StateSave>(engine_, *save_comm_, held(), rest(), std::move(write));
  power_sgd_state_.clear();  // was copied
}

void Trainer::end_save(const std::function<void()>& alive) {
  if (save_ == nullptr) fail(ErrorKind::internal, "no save is under way");
  const std::unique_ptr<StateSave> save = std::move(save_);
  save->finish(alive);
}

void Trainer::load(const TensorSource* file) {
  if (power_sgd_) power_sgd_state_ = power_sgd_->empty_state();
  scatter_state(engine_, comm(), held(), file);
  if (power_sgd_) power_sgd_->set_state(power_sgd_state_);
  power_sgd_state_.clear();
  nn::refresh_copies(engine_, moved_);
  if (sharding_) sharding_->publish();
  std::vector<std::uint64_t> counts(learned_.size() + 1);
  std::vector<double> numbers(counters().size());
  std::vector<double> scales = scales_ ? scales_->state() : std::vector<double>();
  comm().together([&] {
    if (!comm().is_root()) return;
    if (scales_) {
      const bitloom::Tensor stored = file->read(block_scales_name, DType::f64, {scales_->blocks().size(), 2});
      std::ranges::copy(stored.as<double>(), scales.begin());
    }
    std::ranges::copy(file->read(steps_name, DType::u64, {counts.size()}).as<std::uint64_t>(), counts.begin());
    std::ranges::copy(file->read(counters_name, DType::f64, {numbers.size()}).as<double>(), numbers.begin());
  });
  comm().broadcast(std::span(counts));
  comm().broadcast(std::span(numbers));
  comm().broadcast(std::span(scales));
  if (scales_) scales_->set_state(scales);
  set_step_counts(counts);
  set_counters(numbers);
}

void Trainer::load_model(const TensorSource* file) {
  std::vector<HeldTensor> all = held_model();
  for (HeldTensor& each : all) each.converts = true;
  scatter_state(engine_, comm(), all, file);
  nn::refresh_copies(engine_, moved_);
  optimizer_->restart_averages();
  if (sharding_) sharding_->publish();
}

// All processes of the group take over the tensor of its process `root`.
void Trainer::take_over(mpi::Comm& group, nn::Tensor& tensor, int root) {
  if (group.size() == 1) return;
  Buffer<std::byte> bytes(tensor.bytes());
  if (group.rank() == root) engine_.read(tensor, tensor.dtype(), bytes.span());
  group.broadcast(bytes.span(), root);
  if (group.rank() != root) engine_.write(tensor, bytes.span());
}

// Where products have other last bits on other machines, each matrix becomes what one of the data ranks has made of it.
void Trainer::share_matrices() {
  std::vector<nn::Parameter*> matrices;
  std::ranges::copy_if(moved_, std::back_inserter(matrices), &nn::Parameter::is_block_matrix);
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    take_over(grid_->data(), matrices[i]->value, static_cast<int>(i) % grid_->data().size());
  }
  nn::refresh_copies(engine_, matrices);
}

void Trainer::share() {
  // The optimiser has done nothing yet but follow the values.
  for (nn::Parameter* moved : moved_) {
    const nn::Parameter* whole = sharding_ ? sharding_->whole(*moved) : moved;
    take_over(data_group_of(*moved), moved->value);
    if (!whole->part) take_over(grid_->tensor(), moved->value);
  }
  for (const auto& [name, tensor] : buffers_) {
    take_over(grid_->data(), *tensor);
    take_over(grid_->tensor(), *tensor);
  }
  pipeline_->share_values();
  nn::refresh_copies(engine_, moved_);
  optimizer_->restart_averages();
  if (sharding_) sharding_->publish();
}

}  // namespace bitloom::train
