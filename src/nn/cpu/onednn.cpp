#include "nn/cpu/onednn.h"

#include <omp.h>

#include <algorithm>
#include <cassert>

#include "core/half.h"
#include "nn/cpu/parallel.h"

namespace bitloom::nn {
namespace {

// A net has a few dozen kinds of calls, a program that samples texts of every length some thousands. A call takes about
// 50 KB.
constexpr std::size_t most_calls = 1024;

// The values of dnnl_cpu_isa_t are sets of bits: an instruction set has those of all that it contains.
bool has_isa(dnnl::cpu_isa isa) {
  const auto wanted = static_cast<unsigned>(isa);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
}

// Parts of memory traffic that are worth a thread.
constexpr std::size_t part = 1U << 14U;

}  // namespace

void* Workspace::get(std::size_t bytes) {
  if (memory_ == nullptr || bytes_ < bytes) {
    memory_.reset();  // first, so that both are never there at once
    memory_ = pool_->allocate_scratch(bytes);
    bytes_ = bytes;
  }
  return memory_.get();
}

Call::Call(const dnnl::engine& engine, dnnl::primitive primitive, const dnnl::memory::desc& scratchpad,
           std::span<const Argument> arguments)
    : stream_(engine), primitive_(std::move(primitive)), scratchpad_bytes_(scratchpad.get_size()) {
  const auto add = [&](int index, const dnnl::memory::desc& layout) {
    memories_.emplace_back(layout, engine, nullptr);
    arguments_.push_back({index, memories_.back().get()});
  };
  for (const Argument& argument : arguments) add(argument.index, argument.layout);
  if (scratchpad_bytes_ != 0) add(DNNL_ARG_SCRATCHPAD, scratchpad);
}

void Call::run(void* scratchpad, std::span<const void* const> pointers) {
  assert(pointers.size() + (scratchpad_bytes_ != 0 ? 1 : 0) == memories_.size());
  auto memory = memories_.begin();
  // oneDNN's handles are not const, of inputs neither.
  for (const void* pointer : pointers) (memory++)->set_data_handle(const_cast<void*>(pointer));
  if (scratchpad_bytes_ != 0) memory->set_data_handle(scratchpad);
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(primitive_.get(), stream_.get(), static_cast<int>(arguments_.size()), arguments_.data()),
      "could not execute a primitive");
}

OneThread::OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }

OneThread::~OneThread() { omp_set_num_threads(before_); }

OneDnn::OneDnn()
    : engine_(dnnl::engine::kind::cpu, 0),
      has_bf16_(has_isa(dnnl::cpu_isa::avx512_core_bf16)),
      has_amx_(has_isa(dnnl::cpu_isa::avx512_core_amx)),
      may_divide_(has_isa(dnnl::cpu_isa::avx512_core)),
      calls_(most_calls) {}

void OneDnn::use_pool(const std::shared_ptr<Pool>& pool) {
  for (Workspace* each : {&scratchpad, &a, &b, &layout, &layout_of_a, &out}) each->use_pool(pool);
}

void OneDnn::for_blocks(std::size_t blocks, const LaidOutCall& call, const BlockWork& work) {
  std::size_t bytes = 0;
  for (const auto& group : call.groups) {
    if (group != nullptr) bytes = std::max(bytes, (group->scratchpad_bytes() + 63) / 64 * 64);
  }
  const auto threads = std::min(static_cast<std::size_t>(omp_get_max_threads()), blocks);
  auto* scratch = static_cast<std::byte*>(scratchpad.get(threads * bytes));
  FirstFailure failure;
#pragma omp parallel for schedule(static) num_threads(static_cast <int>(threads))
  for (std::size_t block = 0; block < blocks; ++block) {
    failure.guard([&] {
      const OneThread one_thread;
      const auto thread = static_cast<std::size_t>(omp_get_thread_num());
      work(block, thread, scratch + thread * bytes);
    });
  }
  failure.rethrow();
}

const void* OneDnn::lay_out(Layout& wanted, const void* plain, Workspace& memory) {
  if (wanted.reorder == nullptr) return plain;
  const void* values = memory.get(wanted.bytes);
  run(*wanted.reorder, std::array{plain, values});
  return values;
}

dnnl::memory::data_type onednn_type(DType dtype) {
  assert(dtype == DType::f32 || dtype == DType::bf16);
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

std::unique_ptr<Call> make_reorder(const dnnl::engine& engine, const dnnl::memory::desc& from, const dnnl::memory::desc& to,
                                   bool adds) {
  dnnl::post_ops post_ops;
  if (adds) post_ops.append_sum(1.F);
  const dnnl::reorder::primitive_desc pd(engine, from, engine, to, compat::attributes(post_ops));
  const std::array arguments = {Call::Argument{DNNL_ARG_FROM, from}, Call::Argument{DNNL_ARG_TO, to}};
  return std::make_unique<Call>(engine, dnnl::reorder(pd), pd.scratchpad_desc(), arguments);
}

void bf16_to_f32(std::span<const bf16> from, float* to) {
#pragma omp parallel for schedule(static) if (from.size() > part)
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = to_float(from[i]);
}

void f32_to_bf16(std::span<const float> from, bf16* to) {
#pragma omp parallel for schedule(static) if (from.size() > part)
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = to_bf16(from[i]);
}

void add_sums(float* sums, std::size_t size, std::size_t arrays) {
  for_elements(size, arrays * sizeof(float), [&](std::size_t first, std::size_t count) {
    for (std::size_t array = 1; array < arrays; ++array) {
      const float* from = sums + array * size;
      for (std::size_t i = first; i < first + count; ++i) sums[i] += from[i];
    }
  });
}

const float* as_f32(const Tensor& tensor, Workspace& memory) {
  if (tensor.dtype() == DType::f32) return tensor.as<float>().data();
  auto* values = static_cast<float*>(memory.get(tensor.size() * sizeof(float)));
  bf16_to_f32(tensor.as<bf16>(), values);
  return values;
}

}  // namespace bitloom::nn
