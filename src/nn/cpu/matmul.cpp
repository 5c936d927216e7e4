// Matrix products by oneDNN.
#include <omp.h>

#include <array>
#include <string_view>

#include "nn/cpu/cpu_backend.h"
#include "nn/cpu/elements.h"
#include "nn/cpu/onednn.h"

namespace bitloom::nn {
namespace {

// Functions that oneDNN applies to the product while it is in registers, as exactly as is asked of activate().
struct Fused {
  std::string_view name;
  dnnl::algorithm algorithm;
  float alpha;
};
constexpr std::array fused_table = {
    Fused{"gelu", dnnl::algorithm::eltwise_gelu_erf, 0}, Fused{"gelu_tanh", dnnl::algorithm::eltwise_gelu_tanh, 0},
    Fused{"silu", dnnl::algorithm::eltwise_swish, 1},    Fused{"sigmoid", dnnl::algorithm::eltwise_logistic, 0},
    Fused{"tanh", dnnl::algorithm::eltwise_tanh, 0},     Fused{"softplus", dnnl::algorithm::eltwise_soft_relu, 1},
    Fused{"relu", dnnl::algorithm::eltwise_relu, 0},
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
  bool transpose_a, transpose_b, accumulate, has_bias, has_scale;
  DType in, out;
  const Fused* fused;

  CacheKey key() const {
    const std::uint64_t flags = std::uint64_t{transpose_a} | std::uint64_t{transpose_b} << 1U |
                                std::uint64_t{accumulate} << 2U | std::uint64_t{has_bias} << 3U |
                                std::uint64_t{has_scale} << 4U;
    const auto function = fused == nullptr ? 0U : static_cast<std::uint64_t>(fused - fused_table.data() + 1);
    // oneDNN divides the work when it builds a primitive, for the number of threads at that time.
    return {s,
            m,
            k,
            n,
            flags,
            static_cast<std::uint64_t>(in),
            static_cast<std::uint64_t>(out),
            function,
            static_cast<std::uint64_t>(omp_get_max_threads())};
  }
};

using Desc = dnnl::memory::desc;
using Dim = dnnl::memory::dim;

// (S,R,C), or (R,C) if S is 1, whose rows or, where it is transposed, columns are contiguous.
Desc matrices(std::size_t s, std::size_t r, std::size_t c, bool transposed, DType dtype) {
  const auto rows = static_cast<Dim>(r);
  const auto columns = static_cast<Dim>(c);
  const Dim row_stride = transposed ? 1 : columns;
  const Dim column_stride = transposed ? rows : 1;
  if (s == 1) return {{rows, columns}, onednn_type(dtype), {row_stride, column_stride}};
  return {{static_cast<Dim>(s), rows, columns}, onednn_type(dtype), {rows * columns, row_stride, column_stride}};
}

// (1,1,C) for S matrices, (1,C) for one.
Desc row_for(std::size_t s, std::size_t c) {
  const auto columns = static_cast<Dim>(c);
  if (s == 1) return {{1, columns}, dnnl::memory::data_type::f32, {columns, 1}};
  return {{1, 1, columns}, dnnl::memory::data_type::f32, {columns, columns, 1}};
}

// The arguments of the call: a, b, the scale if there is one, the bias if there is one, out.
Call build(const dnnl::engine& engine, const Product& product) {
  const Desc a = matrices(product.s, product.m, product.k, product.transpose_a, product.in);
  const Desc b = matrices(product.s, product.k, product.n, product.transpose_b, product.in);
  const Desc out = matrices(product.s, product.m, product.n, false, product.out);
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

  const auto pd = compat::matmul(engine, a, b, bias, out, compat::attributes(post_ops));
  return {engine, dnnl::matmul(pd), pd.scratchpad_desc(), arguments};
}

Product describe(const Tensor& a, const Tensor& b, const Tensor& out, const MatmulOptions& options) {
  const std::size_t axes = a.shape().axes();
  return {.s = axes == 3 ? a.shape()[0] : 1,
          .m = a.shape()[options.transpose_a ? axes - 1 : axes - 2],
          .k = a.shape()[options.transpose_a ? axes - 2 : axes - 1],
          .n = b.shape()[options.transpose_b ? axes - 2 : axes - 1],
          .transpose_a = options.transpose_a,
          .transpose_b = options.transpose_b,
          .accumulate = options.accumulate,
          .has_bias = static_cast<bool>(options.bias),
          .has_scale = options.scale != 1,
          .in = a.dtype(),
          .out = out.dtype(),
          .fused = find_fused(options.activation)};
}

// What the call reads and writes, in the types of `product`.
void run(OneDnn& onednn, const Product& product, const void* a, const void* b, const MatmulOptions& options, void* out) {
  Call& call = onednn.products().get(product.key(), [&] { return build(onednn.engine(), product); });
  const auto scale = static_cast<float>(options.scale);
  std::array<const void*, 5> pointers{};
  std::size_t count = 0;
  pointers[count++] = a;
  pointers[count++] = b;
  if (product.has_scale) pointers[count++] = &scale;
  if (product.has_bias) pointers[count++] = options.bias.data();
  pointers[count++] = out;
  call.run(onednn.stream(), onednn.scratchpad, std::span(pointers.data(), count));
}

// Where the machine does not multiply bf16: as a product of f32.
void run_converted(OneDnn& onednn, Product product, const Tensor& a, const Tensor& b, const MatmulOptions& options,
                   Tensor& out) {
  product.in = product.out = DType::f32;
  const float* a_f32 = as_f32(a, onednn.a);
  const float* b_f32 = as_f32(b, onednn.b);
  if (out.dtype() == DType::f32) return run(onednn, product, a_f32, b_f32, options, out.data());
  auto* out_f32 = static_cast<float*>(onednn.out.get(out.size() * sizeof(float)));
  if (product.accumulate) bf16_to_f32(out.as<bf16>(), out_f32);
  run(onednn, product, a_f32, b_f32, options, out_f32);
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
      "matmul",
      [&] {
        if (a.dtype() == DType::bf16 && !onednn_->has_bf16()) {
          run_converted(*onednn_, product, a, b, options, out);
        } else {
          run(*onednn_, product, a.data(), b.data(), options, out.data());
        }
      },
      [&] {
        return fmt::format("a {}{}, b {}{}, out {}", to_text(a), options.transpose_a ? " transposed" : "", to_text(b),
                           options.transpose_b ? " transposed" : "", to_text(out));
      });
  if (options.activation != nullptr && product.fused == nullptr) activate(*options.activation, out, out);
}

}  // namespace bitloom::nn
