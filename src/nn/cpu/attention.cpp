// Attention of CpuBackend: which heads and blocks the kernels get. A task is a head of a sequence or, where there are too few
// of these for the threads, a group of its blocks. Results do not depend on how tasks are cut.
#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "nn/cpu/cpu_backend.h"
#include "nn/cpu/elements.h"
#include "nn/cpu/kernel_tables.h"
#include "nn/cpu/parallel.h"
#include "nn/cpu/vector_arguments.h"

namespace bitloom::nn {
namespace {

static_assert(AttentionMask::block == attention_block);

// Memory of a thread, kept from call to call: the system's allocator hands blocks of this size back every time, and fresh pages
// cost more than small attentions do.
class TaskMemory {
 public:
  float* at_least(std::size_t floats) {
    if (floats > floats_) {
      memory_.reset();
      floats_ = 0;  // there is none if the next line throws
      memory_.reset(static_cast<float*>(::operator new(floats * sizeof(float), std::align_val_t(alignment))));
      floats_ = floats;
    }
    return memory_.get();
  }
  static TaskMemory& of_this_thread() {
    static thread_local TaskMemory memory;
    return memory;
  }

 private:
  static constexpr std::size_t alignment = 64;
  struct Release {
    void operator()(float* memory) const { ::operator delete(memory, std::align_val_t(alignment)); }
  };
  std::unique_ptr<float, Release> memory_;
  std::size_t floats_ = 0;
};

std::size_t threads() {
#ifdef _OPENMP
  return omp_in_parallel() != 0 ? 1 : static_cast<std::size_t>(omp_get_max_threads());
#else
  return 1;
#endif
}

std::vector<AttentionEntry> entries_of(const AttentionMask& mask) {
  std::vector<AttentionEntry> entries;
  entries.reserve(mask.entries().size());
  for (const AttentionMask::Entry& entry : mask.entries()) {
    entries.push_back({entry.keys, entry.is_full ? nullptr : mask.bits_of(entry.rows)});
  }
  return entries;
}

// Arguments that all heads of a call share, and where each has its rows.
template <typename V>
class AttentionCall {
 public:
  AttentionCall(const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout)
      : shape_(shape), mask_(mask), key_(key_of(dropout)), first_(dropout.first), entries_(entries_of(mask)) {}

  std::size_t query_blocks() const { return mask_.query_blocks(); }
  std::size_t key_blocks() const { return (mask_.keys() + attention_block - 1) / attention_block; }

  // Head `head` of sequence `sequence` of the tensor.
  template <typename T = V>
  HeadRows<T> rows(const Heads& heads, std::size_t sequence, std::size_t head) const {
    const Shape& is = heads.tensor.shape();
    const std::size_t first = sequence * is[1] * is[2] + heads.first + head * shape_.head_size;
    return {elements<V>(heads.tensor) + first, is[2]};
  }
  void describe(AttentionHead<V>& task, std::size_t sequence, std::size_t head, const Heads& q, const Heads& k,
                const Heads& v) const {
    task.q = rows<const V>(q, sequence, head);
    task.k = rows<const V>(k, sequence, head);
    task.v = rows<const V>(v, sequence, head);
    task.queries = mask_.queries();
    task.keys = mask_.keys();
    task.head_size = shape_.head_size;
    task.scale = static_cast<float>(shape_.scale);
    task.first_entry = mask_.first_entry().data();
    task.entries = entries_.data();
    task.dropout = key_;
    task.first_element = first_ + static_cast<std::uint64_t>(shape_.number_of(sequence, head)) * mask_.queries() * mask_.keys();
    task.end_block = query_blocks();
  }
  // Whether the work is enough for threads.
  bool is_worth_threads(std::size_t sequences) const {
    return sequences * shape_.heads * entries_.size() * shape_.head_size >= 1024;
  }

 private:
  const AttentionShape& shape_;
  const AttentionMask& mask_;
  DropoutKey key_;
  std::uint64_t first_;
  std::vector<AttentionEntry> entries_;
};

// Blocks in `groups` runs, each a multiple of attention_group blocks but the last.
struct Groups {
  std::size_t blocks, per_group, count;
  Groups(std::size_t all, std::size_t wanted) : blocks(all) {
    const std::size_t units = (all + attention_group - 1) / attention_group;
    per_group = (units + wanted - 1) / std::max<std::size_t>(wanted, 1) * attention_group;
    per_group = std::max(per_group, attention_group);
    count = (blocks + per_group - 1) / per_group;
  }
  std::size_t first(std::size_t group) const { return group * per_group; }
  std::size_t end(std::size_t group) const { return std::min(blocks, first(group) + per_group); }
};

}  // namespace

void CpuBackend::attention(const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout, const Heads& q,
                           const Heads& k, const Heads& v, const Heads& out, Tensor& lse) {
  const std::size_t sequences = q.tensor.shape()[0];
  const std::size_t heads = sequences * shape.heads;
  if (heads == 0 || mask.queries() == 0) return;
  with_type(q.tensor.dtype(), [&]<typename V>(V) {
    const AttentionCall<V> call(shape, mask, dropout);
    const auto kernel = vector_kernels().of<V>().attention;
    const bool in_parallel = call.is_worth_threads(sequences);
    // Several tasks per thread even out masks whose later blocks see more.
    const Groups groups(call.query_blocks(), in_parallel ? (4 * threads() + heads - 1) / heads : 1);
    for_uneven_pieces(heads * groups.count, in_parallel, [&](std::size_t piece) {
      // The longest first: causal masks grow.
      const std::size_t group = groups.count - 1 - piece / heads;
      const std::size_t head = piece % heads;
      AttentionForward<V> task;
      call.describe(task, head / shape.heads, head % shape.heads, q, k, v);
      task.first_block = groups.first(group);
      task.end_block = groups.end(group);
      task.out = call.rows(out, head / shape.heads, head % shape.heads);
      task.lse = elements<float>(lse) + head * mask.queries();
      task.scratch = TaskMemory::of_this_thread().at_least(attention_scratch(shape.head_size));
      kernel(task);
    });
  });
}

// dQ needs a sum over keys, dK and dV need sums over queries. One task per head gives all three from five products per block.
// If heads are too few for the threads, tasks that give dK and dV of a group of keys are followed by ones that give dQ of a
// group of queries: seven products per block, but more tasks. Every sum has the same order either way.
void CpuBackend::attention_backward(const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout,
                                    const Heads& q, const Heads& k, const Heads& v, const Heads& out, const Tensor& lse,
                                    const Heads& dout, const Heads& dq, const Heads& dk, const Heads& dv) {
  constexpr std::size_t products_together = 5, products_apart = 7;
  const std::size_t sequences = q.tensor.shape()[0];
  const std::size_t heads = sequences * shape.heads;
  if (heads == 0) return;
  with_type(q.tensor.dtype(), [&]<typename V>(V) {
    const AttentionCall<V> call(shape, mask, dropout);
    const auto kernel = vector_kernels().of<V>().attention_backward;
    const bool in_parallel = call.is_worth_threads(sequences);
    const auto run = [&](std::size_t head, std::size_t first, std::size_t end, std::size_t first_key, std::size_t end_key,
                         bool gives_dq, bool gives_dkv) {
      const std::size_t sequence = head / shape.heads;
      const std::size_t number = head % shape.heads;
      AttentionBackward<V> task;
      call.describe(task, sequence, number, q, k, v);
      task.out = call.template rows<const V>(out, sequence, number);
      task.dout = call.template rows<const V>(dout, sequence, number);
      task.lse = elements<float>(lse) + head * mask.queries();
      task.dq = call.rows(dq, sequence, number);
      task.dk = call.rows(dk, sequence, number);
      task.dv = call.rows(dv, sequence, number);
      task.first_block = first;
      task.end_block = end;
      task.first_key_block = first_key;
      task.end_key_block = end_key;
      task.gives_dq = gives_dq;
      task.gives_dkv = gives_dkv;
      task.scratch = TaskMemory::of_this_thread().at_least(attention_backward_scratch(shape.head_size, end - first));
      kernel(task);
    };
    const std::size_t query_blocks = call.query_blocks();
    const std::size_t key_blocks = call.key_blocks();
    const std::size_t team = in_parallel ? threads() : 1;
    const std::size_t rounds = (heads + team - 1) / team;
    if (products_together * rounds * team <= products_apart * heads) {
      for_uneven_pieces(heads, in_parallel, [&](std::size_t head) { run(head, 0, query_blocks, 0, key_blocks, true, true); });
      return;
    }
    const std::size_t wanted = (4 * team + heads - 1) / heads;
    const Groups key_groups(key_blocks, wanted);
    for_uneven_pieces(heads * key_groups.count, in_parallel, [&](std::size_t piece) {
      const std::size_t group = piece / heads;  // the first keys of causal masks are seen most
      run(piece % heads, 0, query_blocks, key_groups.first(group), key_groups.end(group), false, true);
    });
    const Groups query_groups(query_blocks, wanted);
    for_uneven_pieces(heads * query_groups.count, in_parallel, [&](std::size_t piece) {
      const std::size_t group = query_groups.count - 1 - piece / heads;
      run(piece % heads, query_groups.first(group), query_groups.end(group), 0, key_blocks, true, false);
    });
  });
}

}  // namespace bitloom::nn
