#include "bench/onednn_matmul.h"

#include <cstring>
#include <dnnl.hpp>
#include <unordered_map>

namespace bitloom::bench {
namespace {

constexpr std::size_t side = 1024;

// Version 3 has no operation descriptors any more.
dnnl::matmul::primitive_desc describe(const dnnl::engine& engine, const dnnl::memory::desc& matrix) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine, matrix, matrix, matrix};
#else
  return {{matrix, matrix, matrix}, engine};
#endif
}

}  // namespace

struct OnednnMatmul::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul primitive;
  std::unordered_map<int, dnnl::memory> arguments;
};

OnednnMatmul::OnednnMatmul(DType dtype) : state_(std::make_unique<State>()) {
  using dnnl::memory;
  const auto type = dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  constexpr auto length = static_cast<memory::dim>(side);
  const auto description = describe(state_->engine, {{length, length}, type, memory::format_tag::any});
  state_->primitive = dnnl::matmul(description);
  state_->arguments = {{DNNL_ARG_SRC, memory(description.src_desc(), state_->engine)},
                       {DNNL_ARG_WEIGHTS, memory(description.weights_desc(), state_->engine)},
                       {DNNL_ARG_DST, memory(description.dst_desc(), state_->engine)}};
  // 0.0115 in both types: multiplying zeros takes less power, so the clock might be faster than with other numbers.
  for (auto& [which, matrix] : state_->arguments) std::memset(matrix.get_data_handle(), 0x3C, matrix.get_desc().get_size());
}

OnednnMatmul::~OnednnMatmul() = default;

void OnednnMatmul::run() {
  state_->primitive.execute(state_->stream, state_->arguments);
  state_->stream.wait();
}

double OnednnMatmul::flops() { return 2.0 * side * side * side; }

}  // namespace bitloom::bench
