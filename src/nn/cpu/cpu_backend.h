// The backend "cpu": matrix products and convolutions by oneDNN, everything else by loops of ours. Its methods are spread over
// the files of this folder; each says which. A backend is used by one thread at a time and runs every op before it returns.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "nn/backend.h"

namespace bitloom::nn {

class OneDnn;  // onednn.h: primitives that were built, and their memory

class CpuBackend final : public Backend {
 public:
  CpuBackend();
  ~CpuBackend() override;

  // cpu_backend.cpp
  std::unique_ptr<Allocator> make_allocator() const override;
  void use_pool(const std::shared_ptr<Pool>& pool) override;
  bool supports(DType dtype) const override;  // f32, bf16
  void write(void* device, std::span<const std::byte> host) override;
  void read(const void* device, std::span<std::byte> host) override;
  void synchronize() override;

  // matmul.cpp
  void matmul(const Tensor& a, const Tensor& b, Tensor& out, const MatmulOptions& options) override;

  // conv.cpp
  void conv2d(const Conv2d& conv, const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y) override;
  void conv2d_backward_data(const Conv2d& conv, const Tensor& dy, const Tensor& w, Tensor& dx) override;
  void conv2d_backward_weights(const Conv2d& conv, const Tensor& x, const Tensor& dy, Tensor& dw) override;

  // images.cpp
  void max_pool(std::size_t k, const Tensor& x, Tensor& y, Tensor& which) override;
  void max_pool_backward(std::size_t k, const Tensor& dy, const Tensor& which, Tensor& dx) override;
  void upsample(std::size_t k, const Tensor& x, Tensor& y) override;
  void upsample_backward(std::size_t k, const Tensor& dy, Tensor& dx) override;
  void logit_laplace(const LogitLaplace& distribution, const Tensor& maps, const Tensor& pixels, double scale, Tensor& loss,
                     Tensor* dmaps) override;

  // tables.cpp
  void gather(const Tensor& table, const Tensor& ids, Tensor& out, bool accumulate, const VocabularySlice& slice) override;
  void scatter_add(const Tensor& dout, const Tensor& ids, Tensor& dtable, const VocabularySlice& slice) override;
  void argmax_rows(const Tensor& x, Tensor& ids) override;

  // vector_ops.cpp
  void convert(const Tensor& x, Tensor& y) override;
  void fill(Tensor& y, double value) override;
  void add(const Tensor& a, const Tensor& b, Tensor& y) override;
  void scale_add(double alpha, const Tensor& x, double beta, Tensor& y) override;
  void add_finite(double alpha, const Tensor& x, Tensor& y) override;
  void clamp(double limit, const Tensor& x, Tensor& y) override;
  void clamp_backward(double limit, const Tensor& x, const Tensor& dy, Tensor& dx) override;
  void activate(const Activation& activation, const Tensor& x, Tensor& y) override;
  void activate_backward(const Activation& activation, const Tensor& x, const Tensor& dy, Tensor& dx) override;
  void activate_few_bit(const Activation& activation, const FewBitTable& table, const Tensor& x, Tensor& y,
                        Tensor& stash) override;
  void activate_few_bit_backward(const FewBitTable& table, const Tensor& stash, const Tensor& dy, Tensor& dx) override;
  void quantise_groups(const GroupRounding& rounding, const Tensor& x, Tensor& packed, Tensor& ranges) override;
  void restore_groups(unsigned bits, const Tensor& packed, const Tensor& ranges, Tensor& x) override;
  void dropout(const Dropout& dropout, const Tensor& x, Tensor& y) override;
  void adamw(std::span<const AdamWTensors> tensors, const AdamWStep& step) override;
  std::vector<double> sums_of_squares(std::span<const Tensor> tensors) override;

  // row_ops.cpp
  void add_row_sums(const Tensor& x, Tensor& sums) override;
  void layer_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon, Tensor& y, Tensor& mean,
                  Tensor& rstd) override;
  void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& mean, const Tensor& rstd,
                           Tensor& dx, Tensor& dgain, Tensor& dbias, bool accumulate) override;
  void batch_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon, Tensor& y, Tensor& mean,
                  Tensor& variance) override;
  void batch_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& mean, const Tensor& variance,
                           double epsilon, Tensor& dx, Tensor& dgain, Tensor& dbias) override;
  void batch_norm_inference(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& mean, const Tensor& variance,
                            double epsilon, Tensor& y) override;
  void softmax(const Tensor& x, Tensor& y) override;
  void softmax_backward(const Tensor& y, const Tensor& dy, Tensor& dx) override;
  void gumbel_softmax(const Gumbel& gumbel, const Tensor& x, Tensor& y) override;
  void categorical_kl(const Tensor& logits, double scale, Tensor& kl, Tensor* dlogits) override;
  void cross_entropy(const Tensor& logits, const Tensor& targets, std::size_t classes, double scale, Tensor& loss,
                     Tensor* dlogits, double smoothing) override;
  void cross_entropy_maxima(const Tensor& logits, const VocabularySlice& slice, Tensor& maxima) override;
  void cross_entropy_terms(const Tensor& logits, const Tensor& targets, const VocabularySlice& slice, const Tensor& maxima,
                           Tensor& terms) override;
  void cross_entropy_of_terms(const Tensor& logits, const Tensor& targets, const VocabularySlice& slice, const Tensor& maxima,
                              const Tensor& terms, double scale, Tensor& loss, Tensor* dlogits) override;

  // attention.cpp
  void attention(const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout, const Heads& q, const Heads& k,
                 const Heads& v, const Heads& out, Tensor& lse) override;
  void attention_backward(const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout, const Heads& q,
                          const Heads& k, const Heads& v, const Heads& out, const Tensor& lse, const Heads& dout,
                          const Heads& dq, const Heads& dk, const Heads& dv) override;

 private:
  std::unique_ptr<OneDnn> onednn_;
};

}  // namespace bitloom::nn
