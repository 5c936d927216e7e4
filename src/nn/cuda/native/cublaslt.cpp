// Products by cuBLASLt. It knows matrices column by column: a matrix of ours, row by row, is its own transposed one there, so
// that out' (N,M) = b' (N,K) a' (K,M) is computed with our b as its first operand. Sums are in f32, never in TF32. The
// algorithm is the one that the library's heuristics name first, since what measurements choose may differ from run to run.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "core/error.h"
#include "nn/cuda/blas.h"
#include "nn/cuda/scratch.h"
#include "nn/lru_cache.h"

namespace bitloom::nn::cuda {
namespace {

void check_blas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const bool is_bug = status == CUBLAS_STATUS_INVALID_VALUE || status == CUBLAS_STATUS_NOT_SUPPORTED;
  fail(is_bug ? ErrorKind::internal : ErrorKind::io, "cuBLASLt: {}: {}", what, cublasLtGetStatusString(status));
}

template <auto destroy>
struct Destroy {
  template <typename T>
  void operator()(T* object) const {
    (void)destroy(object);
  }
};
using Handle = std::unique_ptr<cublasLtContext, Destroy<cublasLtDestroy>>;
using Operation = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceDestroy>>;

constexpr cudaDataType_t type_of(Number number) {
  constexpr std::array types = {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F};
  return types[static_cast<std::size_t>(number)];
}

constexpr cublasLtEpilogue_t epilogue_of(Epilogue epilogue) {
  constexpr std::array epilogues = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU,
                                    CUBLASLT_EPILOGUE_GELU_BIAS};
  return epilogues[static_cast<std::size_t>(epilogue)];
}

bool has_bias(const Product& p) { return p.epilogue == Epilogue::bias || p.epilogue == Epilogue::bias_gelu_tanh; }

// Bytes, up to 256, that the pointer is a multiple of.
std::uint32_t alignment_of(const void* pointer) {
  return static_cast<std::uint32_t>(1U << std::min(std::countr_zero(reinterpret_cast<std::uintptr_t>(pointer)), 8));
}

// Whether the library reads a copy of the bias, of out's type and at a multiple of 16 bytes: less aligned it is no operand of
// all of the library's algorithms.
bool is_bias_copied(const Product& p) { return p.out != Number::f32 || alignment_of(p.bias) < 16; }

CacheKey key_of(const Product& p) {
  const std::uint64_t flags = (p.transpose_a ? 1U : 0U) | (p.transpose_b ? 2U : 0U) | (p.accumulate ? 4U : 0U);
  const std::uint64_t types = static_cast<std::uint64_t>(p.in) << 8U | static_cast<std::uint64_t>(p.out);
  return {flags,
          types,
          static_cast<std::uint64_t>(p.epilogue),
          p.s,
          p.m,
          p.k,
          p.n,
          alignment_of(p.a),
          alignment_of(p.b),
          alignment_of(p.result),
          has_bias(p) && !is_bias_copied(p) ? alignment_of(p.bias) : 0};
}

void set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, const auto& value) {
  check_blas(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof value), "describing a product");
}

// bias: where it is, in the type of out, the one that the library takes for all of our types (cublasLt.h,
// CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE).
Operation make_operation(const Product& p, const void* bias) {
  cublasLtMatmulDesc_t made = nullptr;
  check_blas(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  Operation operation(made);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p.epilogue));
  if (has_bias(p)) {
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(p.out));
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);  // the heuristics look at its alignment
  }
  return operation;
}

// S matrices of ours (R,C), without gaps.
Layout make_layout(Number number, std::size_t s, std::size_t rows, std::size_t columns) {
  if (s > INT32_MAX) fail(ErrorKind::usage, "matmul: {} products; expected fewer than 2^31", s);
  cublasLtMatrixLayout_t made = nullptr;
  check_blas(cublasLtMatrixLayoutCreate(&made, type_of(number), columns, rows, static_cast<std::int64_t>(columns)),
             "describing a matrix");
  Layout layout(made);
  const auto count = static_cast<std::int32_t>(s);
  const auto stride = static_cast<std::int64_t>(rows * columns);
  check_blas(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
             "describing matrices");
  check_blas(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
             "describing matrices");
  return layout;
}

Preference make_preference(const Product& p, std::size_t workspace_bytes) {
  cublasLtMatmulPreference_t made = nullptr;
  check_blas(cublasLtMatmulPreferenceCreate(&made), "choosing an algorithm");
  Preference preference(made);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check_blas(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof value), "choosing an algorithm");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  // Parts of a sum are added as floats, not in the type of out.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(p.result));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.result));
  return preference;
}

struct Plan {
  Operation operation;
  Layout a, b, out;
  cublasLtMatmulAlgo_t algorithm = {};
  bool is_possible = false;
};

constexpr std::size_t most_plans = 1024;

}  // namespace

struct Blas::State {
  explicit State(Runtime& the_runtime) : runtime(the_runtime), plans(most_plans), workspace(runtime), bias(runtime) {
    cublasLtHandle_t made = nullptr;
    check_blas(cublasLtCreate(&made), "starting");
    handle.reset(made);
    // At least NVIDIA's recommendation: kernels that divide a sum need it.
    workspace_bytes = std::size_t{runtime.gpu().major >= 9 ? 64U : 32U} << 20U;
  }

  Plan make_plan(const Product& p) {
    Plan plan;
    (void)runtime.stream();  // the library asks about the current GPU
    plan.operation = make_operation(p, has_bias(p) ? place_of_bias(p) : nullptr);
    plan.a = make_layout(p.in, p.s, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k);
    plan.b = make_layout(p.in, p.s, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n);
    plan.out = make_layout(p.out, p.s, p.m, p.n);
    const Preference preference = make_preference(p, workspace_bytes);
    cublasLtMatmulHeuristicResult_t result = {};
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle.get(), plan.operation.get(), plan.b.get(), plan.a.get(), plan.out.get(),
                                       plan.out.get(), preference.get(), 1, &result, &found);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE) {
      check_blas(status, "choosing an algorithm");
    }
    plan.is_possible = status == CUBLAS_STATUS_SUCCESS && found > 0 && result.state == CUBLAS_STATUS_SUCCESS;
    plan.algorithm = result.algo;
    return plan;
  }
  Plan& plan(const Product& p) {
    return plans.get(key_of(p), [&] { return make_plan(p); });
  }

  void* room_for_bias(const Product& p) {
    return bias.get(p.n * (p.out == Number::f32 ? sizeof(float) : sizeof(std::uint16_t)));
  }
  // Where the library will read the bias.
  const void* place_of_bias(const Product& p) { return is_bias_copied(p) ? room_for_bias(p) : p.bias; }
  const void* bias_of(const Product& p) {
    if (!is_bias_copied(p)) return p.bias;
    void* copy = room_for_bias(p);
    convert(runtime.stream(), Number::f32, p.bias, p.out, copy, p.n);
    return copy;
  }

  Runtime& runtime;
  Handle handle;
  LruCache<Plan> plans;
  Scratch workspace;
  std::size_t workspace_bytes = 0;
  Scratch bias;
};

Blas::Blas(Runtime& runtime) : state_(std::make_unique<State>(runtime)) {}
Blas::~Blas() = default;

bool Blas::supports(const Product& product) const { return state_->plan(product).is_possible; }

void Blas::multiply(const Product& product) {
  const Plan& plan = state_->plan(product);
  if (!plan.is_possible) {
    fail(ErrorKind::internal, "cuBLASLt has no algorithm for {} products {} x {} x {}", product.s, product.m, product.k,
         product.n);
  }
  if (has_bias(product)) {
    set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, state_->bias_of(product));
  }
  const float beta = product.accumulate ? 1 : 0;
  check_blas(
      cublasLtMatmul(state_->handle.get(), plan.operation.get(), &product.scale, product.b, plan.b.get(), product.a,
                     plan.a.get(), &beta, product.result, plan.out.get(), product.result, plan.out.get(), &plan.algorithm,
                     state_->workspace.get(state_->workspace_bytes), state_->workspace_bytes, state_->runtime.stream()),
      "a product");
}

}  // namespace bitloom::nn::cuda
