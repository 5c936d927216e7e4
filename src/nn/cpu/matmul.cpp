// Matrix products by oneDNN.
#include <omp.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>

#include "nn/cpu/cpu_backend.h"
#include "nn/cpu/elements.h"
#include "nn/cpu/onednn.h"

namespace bitloom::nn {
namespace {

// Functions that oneDNN applies to the product while it is in registers. Only those that it computes to 5e-7 of the largest
// value: its softplus is four times worse, and its relu makes a NaN 0, which would hide an overflow.
struct Fused {
  std::string_view name;
  dnnl::algorithm algorithm;
  float alpha;
};
constexpr std::array fused_table = {
    Fused{"gelu", dnnl::algorithm::eltwise_gelu_erf, 0}, Fused{"gelu_tanh", dnnl::algorithm::eltwise_gelu_tanh, 0},
    Fused{"silu", dnnl::algorithm::eltwise_swish, 1},    Fused{"sigmoid", dnnl::algorithm::eltwise_logistic, 0},
    Fused{"tanh", dnnl::algorithm::eltwise_tanh, 0},
};

const Fused* find_fused(const Activation* activation) {
  if (activation == nullptr) return nullptr;
  for (const Fused& each : fused_table) {
    if (each.name == activation->name) return &each;
  }
  return nullptr;
}

// out (S,M,N) = scale a (S,M,K) b (S,K,N) + bias (N), and what else decides how it is computed.
struct Product {
  std::size_t s, m, k, n;
  std::size_t a_stride, b_stride, out_stride;  // elements from one row, as it is in memory, to the next
  bool transpose_a, transpose_b, accumulate, has_bias, has_scale;
  DType in, out;
  const Fused* fused;

  CacheKey key() const {
    std::uint64_t what = fused == nullptr ? 0U : static_cast<std::uint64_t>(fused - fused_table.data() + 1);
    for (const bool flag : {transpose_a, transpose_b, accumulate, has_bias, has_scale}) what = what << 1U | std::uint64_t{flag};
    for (const DType dtype : {in, out}) what = what << 8U | static_cast<std::uint64_t>(dtype);
    // oneDNN divides the work when it builds a primitive, for the number of threads at that time.
    const auto threads = static_cast<std::uint64_t>(omp_get_max_threads());
    return {static_cast<std::uint64_t>(Operation::matmul), what, s, m, k, n, a_stride, b_stride, out_stride, threads};
  }
};

using Desc = dnnl::memory::desc;
using Dim = dnnl::memory::dim;

// (S,R,C), or (R,C) if S is 1, whose rows or, where it is transposed, columns are contiguous and `stride` apart.
Desc matrices(std::size_t s, std::size_t r, std::size_t c, bool transposed, std::size_t stride, DType dtype) {
  const auto rows = static_cast<Dim>(r);
  const auto columns = static_cast<Dim>(c);
  const auto apart = static_cast<Dim>(stride);
  const Dim row_stride = transposed ? 1 : apart;
  const Dim column_stride = transposed ? apart : 1;
  if (s == 1) return {{rows, columns}, onednn_type(dtype), {row_stride, column_stride}};
  return {{static_cast<Dim>(s), rows, columns}, onednn_type(dtype), {rows * columns, row_stride, column_stride}};
}

// (1,1,C) for S matrices, (1,C) for one.
Desc row_for(std::size_t s, std::size_t c) {
  const auto columns = static_cast<Dim>(c);
  if (s == 1) return {{1, columns}, dnnl::memory::data_type::f32, {columns, 1}};
  return {{1, 1, columns}, dnnl::memory::data_type::f32, {columns, columns, 1}};
}

// A copy of b may take so much memory, for speed.
constexpr std::size_t most_copied_bytes = std::size_t{64} << 20U;

// The layout of b for the kernel: that which it has, or a better one into which it is copied first.
Desc kernel_layout_of_b(const Product& product, const Desc& plain) {
  const auto copied = [&](dnnl::memory::format_tag tag) {
    return Desc({static_cast<Dim>(product.k), static_cast<Dim>(product.n)}, onednn_type(product.in), tag);
  };
  if (product.s != 1) return plain;
  // For two transposed operands oneDNN may fall back to a kernel that sums by threads.
  if (product.transpose_a && product.transpose_b) return copied(dnnl::memory::format_tag::ab);
  // With many rows of a, copying costs less than the kernel's reading of rows far apart: 3 to 16% of the whole are gained (M
  // 1024 and more, K and N 512 to 4096). It does not pay where the kernel copies b anyway because it is transposed, and large
  // ones would take too much memory.
  constexpr std::size_t least_rows = 1024;
  const bool pays = !product.transpose_a && !product.transpose_b && product.m >= least_rows;
  return pays && product.k * product.n * dtype_size(product.in) <= most_copied_bytes ? copied(dnnl::memory::format_tag::any)
                                                                                     : plain;
}

Desc plain_layout_of_a(const Product& product) {
  return matrices(product.s, product.m, product.k, product.transpose_a, product.a_stride, product.in);
}

Desc plain_layout_of_b(const Product& product) {
  return matrices(product.s, product.k, product.n, product.transpose_b, product.b_stride, product.in);
}

// The arguments of the call: a, b, the scale if there is one, the bias if there is one, out.
struct BuiltMatmul {
  dnnl::matmul::primitive_desc pd;
  std::vector<Call::Argument> arguments;
};

BuiltMatmul build_primitive(const dnnl::engine& engine, const Product& product, const Desc& b) {
  const auto [s, m, k, n] = std::tuple(product.s, product.m, product.k, product.n);
  const Desc a = plain_layout_of_a(product);
  const Desc out = matrices(s, m, n, false, product.out_stride, product.out);
  std::vector<Call::Argument> arguments = {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}};

  dnnl::post_ops post_ops;
  const auto append_binary = [&](dnnl::algorithm algorithm, const Desc& operand) {
    arguments.push_back({DNNL_ARG_ATTR_MULTIPLE_POST_OP(post_ops.len()) | DNNL_ARG_SRC_1, operand});
    post_ops.append_binary(algorithm, operand);
  };
  Desc bias;
  // The scale is an argument, not a constant of the primitive: there are scales that are learned. oneDNN adds its own bias
  // before it.
  if (product.has_scale) {
    append_binary(dnnl::algorithm::binary_mul, row_for(product.s, 1));
    if (product.has_bias) append_binary(dnnl::algorithm::binary_add, row_for(product.s, product.n));
  } else if (product.has_bias) {
    bias = row_for(product.s, product.n);
    arguments.push_back({DNNL_ARG_BIAS, bias});
  }
  if (product.accumulate) post_ops.append_sum(1.F);
  if (product.fused != nullptr) compat::append_eltwise(post_ops, product.fused->algorithm, product.fused->alpha, 0);
  arguments.push_back({DNNL_ARG_DST, out});

  auto pd = compat::matmul(engine, a, b, bias, out, compat::attributes(post_ops));
  arguments[1].layout = pd.weights_desc();
  return {std::move(pd), std::move(arguments)};
}

LaidOutCall build(const dnnl::engine& engine, const Product& product) {
  const Desc plain_b = plain_layout_of_b(product);
  const auto [pd, arguments] = build_primitive(engine, product, kernel_layout_of_b(product, plain_b));
  LaidOutCall call;
  call.main = std::make_unique<Call>(engine, dnnl::matmul(pd), pd.scratchpad_desc(), arguments);
  call.weights.bytes = pd.weights_desc().get_size();
  if (pd.weights_desc() != plain_b) call.weights.reorder = make_reorder(engine, plain_b, pd.weights_desc());
  return call;
}

// Where oneDNN may not divide a product, one thread computes a block of out. Blocks depend on shapes alone.
class Blocks {
 public:
  explicit Blocks(const Product& product) : m_(product.m), n_(product.n), s_(product.s) {
    constexpr std::size_t most_blocks = 64;
    constexpr std::size_t least_side = 64;
    constexpr std::size_t least_work = std::size_t{1} << 20U;  // multiplications
    // Both operands are copied for each block, the less in all the squarer blocks are.
    std::size_t down = 1;
    std::size_t across = 1;
    const auto is_divisible = [&] {
      const std::size_t blocks = s_ * down * across;
      return blocks < most_blocks && std::max(m_ / down, n_ / across) >= 2 * least_side &&
             m_ * product.k / down * n_ / across >= 2 * least_work;
    };
    while (is_divisible()) (m_ / down >= n_ / across ? down : across) *= 2;
    // oneDNN's kernels compute 4 or 6 by 16 or 24 elements at a time.
    constexpr std::size_t multiple = 48;
    rows_ = ((m_ + down - 1) / down + multiple - 1) / multiple * multiple;
    columns_ = ((n_ + across - 1) / across + multiple - 1) / multiple * multiple;
    down_ = (m_ + rows_ - 1) / rows_;
    across_ = (n_ + columns_ - 1) / columns_;
  }

  struct Block {
    std::size_t matrix, row, column;
    std::size_t rows, columns;
    std::size_t kind;  // the same for blocks of one size
  };
  static constexpr std::size_t kinds = 4;

  std::size_t count() const { return s_ * down_ * across_; }
  Block operator[](std::size_t i) const {
    const std::size_t row = i / across_ % down_ * rows_;
    const std::size_t column = i % across_ * columns_;
    const std::size_t rows = std::min(rows_, m_ - row);
    const std::size_t columns = std::min(columns_, n_ - column);
    return {.matrix = i / (down_ * across_),
            .row = row,
            .column = column,
            .rows = rows,
            .columns = columns,
            .kind = (rows < rows_ ? 2U : 0U) + (columns < columns_ ? 1U : 0U)};
  }

 private:
  std::size_t m_, n_, s_;
  std::size_t rows_, columns_;  // size of a block; the last ones may have fewer
  std::size_t down_, across_;   // blocks of a matrix
};

// The product whose blocks are computed: operands may be transposed first. oneDNN's kernels for small matrices read rows of b
// that are far apart at half the speed of transposed ones, and columns of a transposed a, as in gradients of weights, at two
// thirds to a quarter of that of rows: the slowest where its rows are a multiple of 4 KiB apart, which all meet in the same
// lines of the cache. With few rows or columns of the result, transposing takes longer.
Product with_layouts_for_blocks(const Product& product) {
  constexpr std::size_t least_side = 128;
  Product result = product;
  if (product.s != 1) return result;
  const auto can_be_copied = [&](std::size_t elements) { return elements * dtype_size(product.in) <= most_copied_bytes; };
  if (!product.transpose_b && product.m >= least_side && can_be_copied(product.k * product.n)) {
    result.transpose_b = true;
    result.b_stride = product.k;
  }
  if (product.transpose_a && product.n >= least_side && can_be_copied(product.m * product.k)) {
    result.transpose_a = false;
    result.a_stride = product.k;
  }
  return result;
}

// groups[kind * threads + thread].
LaidOutCall build_blocks(const dnnl::engine& engine, const Product& product) {
  const auto threads = static_cast<std::size_t>(omp_get_max_threads());
  const Product laid_out = with_layouts_for_blocks(product);
  LaidOutCall call;
  const auto lay_out = [&](Layout& wanted, const Desc& from, const Desc& to) {
    if (from == to) return;
    wanted.reorder = make_reorder(engine, from, to);
    wanted.bytes = to.get_size();
  };
  lay_out(call.a, plain_layout_of_a(product), plain_layout_of_a(laid_out));
  lay_out(call.weights, plain_layout_of_b(product), plain_layout_of_b(laid_out));
  const OneThread one_thread;
  const Blocks blocks(product);
  call.groups.resize(Blocks::kinds * threads);
  for (std::size_t i = 0; i < blocks.count(); ++i) {
    const Blocks::Block block = blocks[i];
    const auto calls = std::span(call.groups).subspan(block.kind * threads, threads);
    if (calls.front() != nullptr) continue;
    Product part = laid_out;
    part.s = 1;
    part.m = block.rows;
    part.n = block.columns;
    const auto [pd, arguments] = build_primitive(engine, part, plain_layout_of_b(part));
    const dnnl::matmul primitive(pd);
    for (auto& each : calls) each = std::make_unique<Call>(engine, primitive, pd.scratchpad_desc(), arguments);
  }
  return call;
}

Product describe(const Tensor& a, const Tensor& b, const Tensor& out, const MatmulOptions& options) {
  const std::size_t axes = a.shape().axes();
  return {.s = axes == 3 ? a.shape()[0] : 1,
          .m = a.shape()[options.transpose_a ? axes - 1 : axes - 2],
          .k = a.shape()[options.transpose_a ? axes - 2 : axes - 1],
          .n = b.shape()[options.transpose_b ? axes - 2 : axes - 1],
          .a_stride = a.shape()[axes - 1],
          .b_stride = b.shape()[axes - 1],
          .out_stride = out.shape()[axes - 1],
          .transpose_a = options.transpose_a,
          .transpose_b = options.transpose_b,
          .accumulate = options.accumulate,
          .has_bias = static_cast<bool>(options.bias),
          .has_scale = options.scale != 1,
          .in = a.dtype(),
          .out = out.dtype(),
          .fused = find_fused(options.activation)};
}

// In the order of a call's arguments.
class Pointers {
 public:
  Pointers(const Product& product, const void* a, const void* b, const float* scale, const float* bias, const void* out) {
    add(a);
    add(b);
    if (product.has_scale) add(scale);
    if (product.has_bias) add(bias);
    add(out);
  }
  operator std::span<const void* const>() const { return {pointers_.data(), count_}; }

 private:
  void add(const void* pointer) { pointers_[count_++] = pointer; }

  std::array<const void*, 5> pointers_{};
  std::size_t count_ = 0;
};

void run_blocks(OneDnn& onednn, const Product& product, const void* a, const void* b, const float* scale, const float* bias,
                void* out) {
  LaidOutCall& call = onednn.call(product.key(), [&] { return build_blocks(onednn.engine(), product); });
  const Product laid_out = with_layouts_for_blocks(product);
  const void* laid_out_a = onednn.lay_out(call.a, a, onednn.layout_of_a);
  const void* laid_out_b = onednn.lay_out(call.weights, b, onednn.layout);
  const Blocks blocks(product);
  const std::size_t threads = call.groups.size() / Blocks::kinds;
  onednn.for_blocks(blocks.count(), call, [&](std::size_t i, std::size_t thread, void* scratch) {
    const Blocks::Block block = blocks[i];
    const auto part = [&](const void* matrices, DType dtype, std::size_t matrix_size, std::size_t offset) {
      return static_cast<const std::byte*>(matrices) + (block.matrix * matrix_size + offset) * dtype_size(dtype);
    };
    const std::size_t a_offset = block.row * (laid_out.transpose_a ? 1 : laid_out.a_stride);
    const std::size_t b_offset = block.column * (laid_out.transpose_b ? laid_out.b_stride : 1);
    const std::size_t out_offset = block.row * product.out_stride + block.column;
    const Pointers pointers(product, part(laid_out_a, product.in, product.m * product.k, a_offset),
                            part(laid_out_b, product.in, product.k * product.n, b_offset), scale,
                            bias == nullptr ? nullptr : bias + block.column,
                            part(out, product.out, product.m * product.n, out_offset));
    call.groups[block.kind * threads + thread]->run(scratch, pointers);
  });
}

// a, b and out in the types of `product`.
void run(OneDnn& onednn, const Product& product, const void* a, const void* b, const MatmulOptions& options, void* out) {
  const auto scale = static_cast<float>(options.scale);
  const float* bias = product.has_bias ? options.bias.as<float>().data() : nullptr;
  if (onednn.may_divide()) {
    LaidOutCall& call = onednn.call(product.key(), [&] { return build(onednn.engine(), product); });
    return onednn.run(*call.main, Pointers(product, a, onednn.lay_out(call.weights, b, onednn.layout), &scale, bias, out));
  }
  run_blocks(onednn, product, a, b, &scale, bias, out);
}

// Parts of K that are summed one after the other; they depend on shapes alone.
std::size_t parts_of(const OneDnn& onednn, const Product& product) {
  if (!onednn.may_divide() || product.s != 1) return 1;
  const auto parts = [&](std::size_t limit, std::size_t part) {
    return product.k >= limit ? (product.k + part - 1) / part : 1;
  };
  // Where a is transposed and K at least 2048, as in gradients of weights, oneDNN has several threads sum over parts of K if M
  // and N give them too little work; the result then depends on their number. Parts of our own keep it from that.
  if (product.transpose_a) return parts(2048, 1024);
  // A long product with a b too large to be copied at once, as the gradient of a large vocabulary's logits is: copied in parts
  // (kernel_layout_of_b), it takes 15 to 30% less time (1024 x 50304 x 768).
  return product.transpose_b ? 1 : parts(32768, 8192);
}

// The same; out is f32 if there are parts.
void run_parts(OneDnn& onednn, const Product& product, const void* a, const void* b, const MatmulOptions& options, void* out) {
  const std::size_t parts = parts_of(onednn, product);
  if (parts == 1) return run(onednn, product, a, b, options, out);
  const std::size_t size = ((product.k + parts - 1) / parts + 63) / 64 * 64;
  for (std::size_t begin = 0; begin < product.k; begin += size) {
    const bool is_first = begin == 0;
    const bool is_last = begin + size >= product.k;
    Product part = product;
    part.k = is_last ? product.k - begin : size;
    part.accumulate = product.accumulate || !is_first;
    part.has_bias = product.has_bias && is_first;
    part.fused = is_last ? product.fused : nullptr;
    const std::size_t element = dtype_size(product.in);
    run(onednn, part, static_cast<const std::byte*>(a) + begin * (product.transpose_a ? product.a_stride : 1) * element,
        static_cast<const std::byte*>(b) + begin * (product.transpose_b ? 1 : product.b_stride) * element, options, out);
  }
}

// In f32 what the machine does not multiply as bf16, and sums of parts before they are rounded.
void run_typed(OneDnn& onednn, Product product, const Tensor& a, const Tensor& b, const MatmulOptions& options, Tensor& out) {
  const void* a_v = a.data();
  const void* b_v = b.data();
  if (!onednn.has_bf16() && a.dtype() == DType::bf16) {
    product.in = DType::f32;
    a_v = as_f32(a, onednn.a);
    b_v = as_f32(b, onednn.b);
  }
  if (out.dtype() == DType::f32 || (product.in == DType::bf16 && parts_of(onednn, product) == 1)) {
    return run_parts(onednn, product, a_v, b_v, options, out.data());
  }
  product.out = DType::f32;
  auto* out_f32 = static_cast<float*>(onednn.out.get(out.size() * sizeof(float)));
  if (product.accumulate) bf16_to_f32(out.as<bf16>(), out_f32);
  run_parts(onednn, product, a_v, b_v, options, out_f32);
  f32_to_bf16({out_f32, out.size()}, out.as<bf16>().data());
}

}  // namespace

void CpuBackend::matmul(const Tensor& a, const Tensor& b, Tensor& out, const MatmulOptions& options) {
  if (out.size() == 0) return;
  const Product product = describe(a, b, out, options);
  if (product.k == 0) {
    if (!options.accumulate) fill_rows(out, options.bias);
    if (options.activation != nullptr) activate(*options.activation, out, out);
    return;
  }
  translate_errors(
      "matmul", [&] { run_typed(*onednn_, product, a, b, options, out); },
      [&] {
        return fmt::format("a {}{}, b {}{}, out {}", to_text(a), options.transpose_a ? " transposed" : "", to_text(b),
                           options.transpose_b ? " transposed" : "", to_text(out));
      });
  if (options.activation != nullptr && product.fused == nullptr) activate(*options.activation, out, out);
}

}  // namespace bitloom::nn
