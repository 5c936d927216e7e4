// Convolutions by cuDNN, on tensors (N,Y,X,C) and filters (O,KY,KX,I). Of the algorithms that its heuristics name, the first
// that gives the same bits every time; f32 is multiplied as f32, never as TF32.
#include <cudnn.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/progress.h"
#include "nn/cuda/dnn.h"
#include "nn/cuda/scratch.h"
#include "nn/lru_cache.h"
#include "nn/pool.h"

namespace bitloom::nn::cuda {
namespace {

bool is_unsupported(cudnnStatus_t status) {
#if CUDNN_MAJOR >= 9
  return CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED;  // with the reason in its last digits
#else
  return status == CUDNN_STATUS_NOT_SUPPORTED;
#endif
}

bool is_bad_parameter(cudnnStatus_t status) {
#if CUDNN_MAJOR >= 9
  return CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_BAD_PARAM;
#else
  return status == CUDNN_STATUS_BAD_PARAM;
#endif
}

// As the library answers where it has no algorithm. Everything else is a failure, of the library or of the GPU.
bool is_refused(cudnnStatus_t status) { return is_unsupported(status) || is_bad_parameter(status); }

void check_dnn(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  fail(is_refused(status) ? ErrorKind::internal : ErrorKind::io, "cuDNN: {}: {}", what, cudnnGetErrorString(status));
}

template <auto destroy>
struct Destroy {
  template <typename T>
  void operator()(T* object) const {
    (void)destroy(object);
  }
};
template <typename Pointer, auto create, auto destroy>
class Owned {
 public:
  Owned() {
    Pointer made = nullptr;
    check_dnn(create(&made), "starting");
    object_.reset(made);
  }
  Pointer get() const { return object_.get(); }

 private:
  std::unique_ptr<std::remove_pointer_t<Pointer>, Destroy<destroy>> object_;
};
using Handle = Owned<cudnnHandle_t, cudnnCreate, cudnnDestroy>;
using TensorDescriptor = Owned<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using FilterDescriptor = Owned<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using ConvolutionDescriptor =
    Owned<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor>;

constexpr cudnnDataType_t type_of(Number number) {
  constexpr std::array types = {CUDNN_DATA_FLOAT, CUDNN_DATA_BFLOAT16, CUDNN_DATA_HALF};
  return types[static_cast<std::size_t>(number)];
}

// Math types that products may be computed with, the best first.
std::span<const cudnnMathType_t> math_of(Number number) {
  static constexpr std::array exact = {CUDNN_FMA_MATH};
  static constexpr std::array half = {CUDNN_TENSOR_OP_MATH, CUDNN_DEFAULT_MATH, CUDNN_FMA_MATH};
  if (number == Number::f32) return exact;
  return half;
}

int to_int(std::size_t length) {
  if (length > INT_MAX) fail(ErrorKind::internal, "conv2d: a length of {}; cuDNN takes fewer than 2^31", length);
  return static_cast<int>(length);
}

// (N,Y,X,C).
void describe(const TensorDescriptor& tensor, Number number, std::size_t n, std::size_t rows, std::size_t columns,
              std::size_t channels) {
  check_dnn(cudnnSetTensor4dDescriptor(tensor.get(), CUDNN_TENSOR_NHWC, type_of(number), to_int(n), to_int(channels),
                                       to_int(rows), to_int(columns)),
            "describing a tensor");
}

enum class Pass { forward, backward_data, backward_weights };

struct Plan {
  TensorDescriptor x, y;
  FilterDescriptor w;
  ConvolutionDescriptor convolution;
  int algorithm = 0;
  bool is_possible = false;
  std::size_t workspace_bytes = 0;
  cudnnStatus_t failure = CUDNN_STATUS_SUCCESS;  // the first

  // Whether an answer is no refusal and no failure; the latter is remembered.
  bool is_good(cudnnStatus_t status) {
    if (failure == CUDNN_STATUS_SUCCESS && !is_refused(status)) failure = status;
    return status == CUDNN_STATUS_SUCCESS;
  }

  explicit Plan(const Convolution& c) {
    describe(x, c.number, c.images, c.rows, c.columns, c.inputs);
    describe(y, c.number, c.images, c.out_rows, c.out_columns, c.outputs);
    check_dnn(cudnnSetFilter4dDescriptor(w.get(), type_of(c.number), CUDNN_TENSOR_NHWC, to_int(c.outputs), to_int(c.inputs),
                                         to_int(c.kernel_rows), to_int(c.kernel_columns)),
              "describing weights");
    const int padding = to_int(c.padding);
    const int stride = to_int(c.stride);
    check_dnn(cudnnSetConvolution2dDescriptor(convolution.get(), padding, padding, stride, stride, 1, 1,
                                              CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
              "describing a convolution");
  }
};

// The library's names for the parts of a pass: its results, its heuristics, and the size of a workspace.
struct Forward {
  using Found = cudnnConvolutionFwdAlgoPerf_t;
  using Algorithm = cudnnConvolutionFwdAlgo_t;
  static cudnnStatus_t find(cudnnHandle_t handle, const Plan& p, int most, int* count, Found* found) {
    return cudnnGetConvolutionForwardAlgorithm_v7(handle, p.x.get(), p.w.get(), p.convolution.get(), p.y.get(), most, count,
                                                  found);
  }
  static cudnnStatus_t size(cudnnHandle_t handle, const Plan& p, Algorithm algorithm, std::size_t* bytes) {
    return cudnnGetConvolutionForwardWorkspaceSize(handle, p.x.get(), p.w.get(), p.convolution.get(), p.y.get(), algorithm,
                                                   bytes);
  }
};
struct BackwardData {
  using Found = cudnnConvolutionBwdDataAlgoPerf_t;
  using Algorithm = cudnnConvolutionBwdDataAlgo_t;
  static cudnnStatus_t find(cudnnHandle_t handle, const Plan& p, int most, int* count, Found* found) {
    return cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, p.w.get(), p.y.get(), p.convolution.get(), p.x.get(), most,
                                                       count, found);
  }
  static cudnnStatus_t size(cudnnHandle_t handle, const Plan& p, Algorithm algorithm, std::size_t* bytes) {
    return cudnnGetConvolutionBackwardDataWorkspaceSize(handle, p.w.get(), p.y.get(), p.convolution.get(), p.x.get(), algorithm,
                                                        bytes);
  }
};
struct BackwardWeights {
  using Found = cudnnConvolutionBwdFilterAlgoPerf_t;
  using Algorithm = cudnnConvolutionBwdFilterAlgo_t;
  static cudnnStatus_t find(cudnnHandle_t handle, const Plan& p, int most, int* count, Found* found) {
    return cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, p.x.get(), p.y.get(), p.convolution.get(), p.w.get(), most,
                                                         count, found);
  }
  static cudnnStatus_t size(cudnnHandle_t handle, const Plan& p, Algorithm algorithm, std::size_t* bytes) {
    return cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, p.x.get(), p.y.get(), p.convolution.get(), p.w.get(),
                                                          algorithm, bytes);
  }
};

constexpr std::size_t most_workspace = std::size_t{1} << 30U;
constexpr std::size_t most_plans = 512;

// Sets the plan's algorithm, its workspace, of at most so many bytes, and the kind of products; false if none will do.
template <typename Api>
bool choose(cudnnHandle_t handle, cudnnMathType_t math, std::size_t most_bytes, Plan& plan) {
  check_dnn(cudnnSetConvolutionMathType(plan.convolution.get(), math), "describing a convolution");
  std::array<typename Api::Found, 16> found = {};
  int count = 0;
  if (!plan.is_good(Api::find(handle, plan, static_cast<int>(found.size()), &count, found.data()))) return false;
  for (const auto& each : std::span(found).first(static_cast<std::size_t>(count))) {
    if (!plan.is_good(each.status) || each.determinism != CUDNN_DETERMINISTIC) continue;
    // With FMA in the descriptor no other instructions are used, whatever kind the heuristics name beside an algorithm.
    const cudnnMathType_t used = math == CUDNN_FMA_MATH ? math : each.mathType;
    check_dnn(cudnnSetConvolutionMathType(plan.convolution.get(), used), "describing a convolution");
    if (!plan.is_good(Api::size(handle, plan, each.algo, &plan.workspace_bytes))) continue;
    if (plan.workspace_bytes > most_bytes) continue;
    plan.algorithm = each.algo;
    return true;
  }
  return false;
}

template <typename Api>
Plan make_plan(cudnnHandle_t handle, const Convolution& c, std::size_t most_bytes) {
  Plan plan(c);
  for (const cudnnMathType_t math : math_of(c.number)) {
    plan.is_possible = choose<Api>(handle, math, most_bytes, plan);
    if (plan.is_possible) return plan;
  }
  // Without this a library that is broken looked like one that has no algorithms.
  check_dnn(plan.failure, "choosing an algorithm");
  return plan;
}

// Whether a call was done. An algorithm that the heuristics named may be refused all the same, and is not tried again.
bool was_done(cudnnStatus_t status, Plan& plan, const char* what) {
  if (!is_unsupported(status)) check_dnn(status, what);
  plan.is_possible = status == CUDNN_STATUS_SUCCESS;
  return plan.is_possible;
}

CacheKey key_of(Pass pass, const Convolution& c) {
  const std::uint64_t what = static_cast<std::uint64_t>(pass) << 8U | static_cast<std::uint64_t>(c.number);
  return {what, c.images, c.rows, c.columns, c.inputs, c.outputs, c.kernel_rows, c.kernel_columns, c.stride, c.padding};
}

}  // namespace

struct Dnn::State {
  State(Runtime& the_runtime, Notes& the_notes)
      : runtime(the_runtime), notes(the_notes), plans(most_plans), workspace(runtime) {}

  // Made when it is first asked for: it takes time and memory of the GPU, and most nets have no convolutions.
  cudnnHandle_t handle() {
    const Stream stream = runtime.stream();
    if (made == nullptr) {
      made = std::make_unique<Handle>();
      check_dnn(cudnnSetStream(made->get(), stream), "choosing the stream");
    }
    return made->get();
  }

  template <typename Api>
  Plan& plan(Pass pass, const Convolution& c) {
    return plans.get(key_of(pass, c), [&] { return make_plan<Api>(handle(), c, most_workspace); });
  }

  // The workspace of a plan. If there is no memory for it, the next algorithm that needs less takes the plan's place.
  template <typename Api>
  void* room_for(Plan& plan, const Convolution& c) {
    while (true) {
      try {
        return workspace.get(plan.workspace_bytes);
      } catch (const OutOfMemory&) {
        Plan smaller = make_plan<Api>(handle(), c, plan.workspace_bytes - 1);  // nothing is always there
        if (!smaller.is_possible) throw;
        notes.add(
            "convolution of {} images {} x {} x {} and {} kernels {} x {}, stride {}: no memory for the {} that the library's "
            "algorithm needs; by the next, whose last bits may differ",
            c.images, c.rows, c.columns, c.inputs, c.outputs, c.kernel_rows, c.kernel_columns, c.stride,
            format_bytes(plan.workspace_bytes));
        plan = std::move(smaller);
      }
    }
  }

  Runtime& runtime;
  Notes& notes;
  std::unique_ptr<Handle> made;
  LruCache<Plan> plans;
  Scratch workspace;
};

namespace {

constexpr float one = 1;
constexpr float zero = 0;

}  // namespace

Dnn::Dnn(Runtime& runtime, Notes& notes) : state_(std::make_unique<State>(runtime, notes)) {}
Dnn::~Dnn() = default;

// It counts elements with an int. Plans are made for tensors that begin at a multiple of 16 bytes, as eight images do after
// eight others of any size.
std::size_t Dnn::most_images(const Convolution& c) {
  if (c.outputs * c.kernel_rows * c.kernel_columns * c.inputs > INT_MAX) return 0;
  const std::size_t x = c.rows * c.columns * c.inputs, y = c.out_rows * c.out_columns * c.outputs;
  const std::size_t most = INT_MAX / std::max(x, y);
  if (most >= c.images) return c.images;
  return x % 8 == 0 && y % 8 == 0 ? most : most / 8 * 8;
}

bool Dnn::forward(const Convolution& convolution, const void* x, const void* w, void* y) {
  if (convolution.images > most_images(convolution)) return false;
  Plan& plan = state_->plan<Forward>(Pass::forward, convolution);
  if (!plan.is_possible) return false;
  void* workspace = state_->room_for<Forward>(plan, convolution);
  return was_done(cudnnConvolutionForward(state_->handle(), &one, plan.x.get(), x, plan.w.get(), w, plan.convolution.get(),
                                          static_cast<Forward::Algorithm>(plan.algorithm), workspace, plan.workspace_bytes,
                                          &zero, plan.y.get(), y),
                  plan, "a convolution");
}

bool Dnn::backward_data(const Convolution& convolution, const void* dy, const void* w, void* dx) {
  if (convolution.images > most_images(convolution)) return false;
  Plan& plan = state_->plan<BackwardData>(Pass::backward_data, convolution);
  if (!plan.is_possible) return false;
  void* workspace = state_->room_for<BackwardData>(plan, convolution);
  return was_done(cudnnConvolutionBackwardData(state_->handle(), &one, plan.w.get(), w, plan.y.get(), dy,
                                               plan.convolution.get(), static_cast<BackwardData::Algorithm>(plan.algorithm),
                                               workspace, plan.workspace_bytes, &zero, plan.x.get(), dx),
                  plan, "a convolution's gradient of images");
}

bool Dnn::backward_weights(const Convolution& convolution, const void* x, const void* dy, void* dw) {
  if (convolution.images > most_images(convolution)) return false;
  Plan& plan = state_->plan<BackwardWeights>(Pass::backward_weights, convolution);
  if (!plan.is_possible) return false;
  void* workspace = state_->room_for<BackwardWeights>(plan, convolution);
  return was_done(
      cudnnConvolutionBackwardFilter(state_->handle(), &one, plan.x.get(), x, plan.y.get(), dy, plan.convolution.get(),
                                     static_cast<BackwardWeights::Algorithm>(plan.algorithm), workspace, plan.workspace_bytes,
                                     &zero, plan.w.get(), dw),
      plan, "a convolution's gradient of weights");
}

}  // namespace bitloom::nn::cuda
