// oneDNN as the files of this folder use it: primitives are built once per kind of call and kept, their scratch memory is one
// buffer that all share, the pool's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "nn/cpu/dnnl_compat.h"
#include "nn/lru_cache.h"
#include "nn/pool.h"
#include "nn/tensor.h"

namespace bitloom::nn {

// Memory that grows to what was asked for at most and is written anew by every op.
class Workspace {
 public:
  // Where it has its memory from, before it is asked for any.
  void use_pool(std::shared_ptr<Pool> pool) { pool_ = std::move(pool); }
  // At least `bytes` bytes, aligned to 64. Throws OutOfMemory.
  void* get(std::size_t bytes);

 private:
  std::shared_ptr<Pool> pool_;
  std::shared_ptr<std::byte> memory_;
  std::size_t bytes_ = 0;
};

// A primitive and the memory objects that it is called with; they get their pointers at every call. Building memory objects
// costs more than a small product. A Call runs in one thread at a time, different ones in as many as they like.
class Call {
 public:
  struct Argument {
    int index;  // DNNL_ARG_...
    dnnl::memory::desc layout;
  };

  // `scratchpad`: the primitive descriptor's.
  Call(const dnnl::engine& engine, dnnl::primitive primitive, const dnnl::memory::desc& scratchpad,
       std::span<const Argument> arguments);

  std::size_t scratchpad_bytes() const { return scratchpad_bytes_; }
  // Pointers in the order of the arguments. Throws dnnl::error.
  void run(void* scratchpad, std::span<const void* const> pointers);

 private:
  dnnl::stream stream_;
  dnnl::primitive primitive_;
  std::size_t scratchpad_bytes_;
  std::vector<dnnl::memory> memories_;  // the scratchpad last
  std::vector<dnnl_exec_arg_t> arguments_;
};

// An operand's layout where it is not plain.
struct Layout {
  std::unique_ptr<Call> reorder;  // between the plain layout and this one; null if they are the same
  std::size_t bytes = 0;
};

// A primitive some of whose operands have layouts of their own.
struct LaidOutCall {
  std::unique_ptr<Call> main;
  std::vector<std::unique_ptr<Call>> groups;  // in place of `main`, where we divide the work ourselves: parts run at a time
  Layout weights;                             // of a convolution, or operand b of a product
  Layout a;                                   // operand a of a product
};

// While one lives, oneDNN builds and runs in this thread alone.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// Kind of an operation: the first word of its key.
enum class Operation : std::uint64_t { matmul, convolution, convolution_data, convolution_weights, shifted_products };

class OneDnn {
 public:
  OneDnn();
  // For all its workspaces.
  void use_pool(const std::shared_ptr<Pool>& pool);

  const dnnl::engine& engine() const { return engine_; }
  // Whether this machine multiplies bf16 itself. Elsewhere oneDNN has few primitives for it, or slow ones; bf16 is converted
  // to f32 then.
  bool has_bf16() const { return has_bf16_; }
  // Whether it multiplies tiles of bf16 (AMX).
  bool has_amx() const { return has_amx_; }
  // Whether oneDNN may divide products among threads. Its kernels without AVX-512 have last bits that
  // depend on the number of threads.
  bool may_divide() const { return may_divide_; }

  // The call of a key, built by build() if there is none.
  template <typename Build>
  LaidOutCall& call(const CacheKey& key, Build&& build) {
    return calls_.get(key, std::forward<Build>(build));
  }
  // An operand in its layout: in `memory`, unless that is plain.
  const void* lay_out(Layout& wanted, const void* plain, Workspace& memory);
  void run(Call& call, std::span<const void* const> pointers) {
    call.run(call.scratchpad_bytes() == 0 ? nullptr : scratchpad.get(call.scratchpad_bytes()), pointers);
  }

  // Calls work(block, thread, scratch memory for any of call.groups) for blocks 0 ... blocks - 1. Groups that were built under
  // OneThread may run there, each in one thread. `thread` is below omp_get_max_threads().
  using BlockWork = std::function<void(std::size_t block, std::size_t thread, void* scratch)>;
  void for_blocks(std::size_t blocks, const LaidOutCall& call, const BlockWork& work);

  // Memory of one op at a time: the primitive's scratch memory, and inputs and output in another type or layout.
  Workspace scratchpad, a, b, layout, layout_of_a, out;

 private:
  dnnl::engine engine_;
  bool has_bf16_, has_amx_, may_divide_;
  LruCache<LaidOutCall> calls_;
};

dnnl::memory::data_type onednn_type(DType dtype);

// Between two layouts of the same values; with `adds`, they are added to what is there.
std::unique_ptr<Call> make_reorder(const dnnl::engine& engine, const dnnl::memory::desc& from, const dnnl::memory::desc& to,
                                   bool adds = false);

// The elements of an f32 or bf16 tensor as f32, in `memory` unless they are f32.
const float* as_f32(const Tensor& tensor, Workspace& memory);
void f32_to_bf16(std::span<const float> from, bf16* to);

// sums[0] += sums[1] + ... in this order, for arrays of `size` one after the other.
void add_sums(float* sums, std::size_t size, std::size_t arrays);
void bf16_to_f32(std::span<const bf16> from, float* to);

// Runs work() of an op; oneDNN's errors become Error(internal) that names the op and describe().
template <typename Work, typename Describe>
void translate_errors(std::string_view op, Work&& work, Describe&& describe) {
  try {
    std::forward<Work>(work)();
  } catch (const dnnl::error& error) {
    fail(ErrorKind::internal, "{}: oneDNN: {} (status {}): {}", op, error.what(), static_cast<int>(error.status), describe());
  }
}

}  // namespace bitloom::nn
