#include "bench/onednn_conv.h"

#include <fmt/format.h>

#include <algorithm>
#include <dnnl.hpp>
#include <unordered_map>

namespace bitloom::bench {
namespace {

using dnnl::convolution_forward;
using dnnl::memory;

memory::dim dim(std::size_t n) { return static_cast<memory::dim>(n); }

// Version 3 has no operation descriptors any more.
convolution_forward::primitive_desc describe(const dnnl::engine& engine, const memory::desc& source,
                                             const memory::desc& weights, const memory::desc& target) {
  const memory::dims ones = {1, 1};
  constexpr auto kind = dnnl::prop_kind::forward_inference;
  constexpr auto algorithm = dnnl::algorithm::convolution_auto;
#if DNNL_VERSION_MAJOR >= 3
  return {engine, kind, algorithm, source, weights, target, ones, ones, ones};
#else
  return {{kind, algorithm, source, weights, target, ones, ones, ones}, engine};
#endif
}

}  // namespace

struct OnednnConv::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  convolution_forward::primitive_desc description;
  convolution_forward primitive;
  memory source, weights, target;
  memory::desc plain_target;
  std::unordered_map<int, memory> arguments;

  memory reordered(std::span<const float> values, const memory::dims& dims, memory::format_tag tag,
                   const memory::desc& wanted) {
    memory plain({dims, memory::data_type::f32, tag}, engine);
    std::copy(values.begin(), values.end(), static_cast<float*>(plain.get_data_handle()));
    memory result(wanted, engine);
    dnnl::reorder(plain, result).execute(stream, plain, result);
    stream.wait();
    return result;
  }
};

OnednnConv::OnednnConv(std::unique_ptr<State> state) : state_(std::move(state)) {}
OnednnConv::~OnednnConv() = default;

std::unique_ptr<OnednnConv> OnednnConv::make(FloatType type, const FloatConvShape& shape, std::span<const float> source,
                                             std::span<const float> weights) {
  auto state = std::make_unique<State>();
  const memory::dims source_dims = {dim(shape.images), dim(shape.in_channels), dim(shape.size), dim(shape.size)};
  const memory::dims weight_dims = {dim(shape.out_channels), dim(shape.in_channels), 3, 3};
  const memory::dims target_dims = {dim(shape.images), dim(shape.out_channels), dim(shape.size), dim(shape.size)};
  const auto data = type == FloatType::f32 ? memory::data_type::f32 : memory::data_type::bf16;
  const auto any = memory::format_tag::any;
  try {
    state->description = describe(state->engine, {source_dims, data, any}, {weight_dims, data, any}, {target_dims, data, any});
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) return nullptr;
    throw;
  }
  state->primitive = convolution_forward(state->description);
  state->source = state->reordered(source, source_dims, memory::format_tag::nchw, state->description.src_desc());
  state->weights = state->reordered(weights, weight_dims, memory::format_tag::oihw, state->description.weights_desc());
  state->target = memory(state->description.dst_desc(), state->engine);
  state->plain_target = memory::desc(target_dims, memory::data_type::f32, memory::format_tag::nchw);
  state->arguments = {{DNNL_ARG_SRC, state->source}, {DNNL_ARG_WEIGHTS, state->weights}, {DNNL_ARG_DST, state->target}};
  return std::unique_ptr<OnednnConv>(new OnednnConv(std::move(state)));
}

void OnednnConv::run() {
  state_->primitive.execute(state_->stream, state_->arguments);
  state_->stream.wait();
}

std::vector<float> OnednnConv::output() const {
  memory plain(state_->plain_target, state_->engine);
  dnnl::reorder(state_->target, plain).execute(state_->stream, state_->target, plain);
  state_->stream.wait();
  const auto* values = static_cast<const float*>(plain.get_data_handle());
  return {values, values + state_->plain_target.get_size() / sizeof(float)};
}

std::string OnednnConv::implementation() const { return state_->description.impl_info_str(); }

std::string onednn_version() {
  const dnnl_version_t* version = dnnl::version();
  return fmt::format("{}.{}.{}", version->major, version->minor, version->patch);
}

}  // namespace bitloom::bench
