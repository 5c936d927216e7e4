// Kernels that oneDNN is kept from using.
#include "nn/cpu/dnnl_compat.h"
#include "tests/support/catch.h"

using namespace bitloom::nn;

// oneDNN 2.6's strided 1 x 1 kernels for AVX2 wrote beyond their scratch memory: nets with 4 channels ended by a corrupted
// heap, on CPUs without AVX-512 alone.
TEST_CASE("strided convolutions of 1 x 1 with few channels take no kernel that overruns", "[backends]") {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  using Tag = dnnl::memory::format_tag;
  constexpr auto f32 = dnnl::memory::data_type::f32;
  for (const dnnl::memory::dim channels : {1, 4, 5, 12, 20}) {
    const compat::Convolution conv{.x = {{4, channels, 8, 8}, f32, Tag::nhwc},
                                   .w = {{channels + 1, channels, 1, 1}, f32, Tag::any},
                                   .bias = {},
                                   .y = {{4, channels + 1, 4, 4}, f32, Tag::nhwc},
                                   .strides = {2, 2},
                                   .padding = {0, 0}};
    const auto forward = compat::forward(engine, conv);
    for (const std::string name : {forward.impl_info_str(), compat::backward_data(engine, conv, forward).impl_info_str(),
                                   compat::backward_weights(engine, conv, forward).impl_info_str()}) {
      INFO(channels << " channels: " << name);
      CHECK((!name.starts_with("jit_1x1:") || name.find("avx512") != std::string::npos));
    }
  }
}
