// Functions of an implementation of ops.h. Arguments are those of ops.h, already checked; sizes may be 0. Private to src/nn.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nn/ops.h"

namespace bitloom::nn {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::unique_ptr<Allocator> make_allocator() const = 0;
  // Where tensors have their memory from: for what ops need besides.
  virtual void use_pool(const std::shared_ptr<Pool>& /*pool*/) {}
  // Which types V it has ops for.
  virtual bool supports(DType dtype) const = 0;
  virtual void write(void* device, std::span<const std::byte> host) = 0;
  virtual void read(const void* device, std::span<std::byte> host) = 0;
  virtual void synchronize() = 0;
  virtual void* native_stream() { return nullptr; }
  // Where waiting for the device may be in vain.
  virtual void watch(const std::weak_ptr<const Engine::Look>& /*look*/) {}
  virtual std::vector<std::string> take_notes() { return {}; }

  virtual void matmul(const Tensor& a, const Tensor& b, Tensor& out, const MatmulOptions& options) = 0;
  virtual void add_row_sums(const Tensor& x, Tensor& sums) = 0;

  virtual void convert(const Tensor& x, Tensor& y) = 0;
  virtual void fill(Tensor& y, double value) = 0;
  virtual void add(const Tensor& a, const Tensor& b, Tensor& y) = 0;
  virtual void scale_add(double alpha, const Tensor& x, double beta, Tensor& y) = 0;
  virtual void add_finite(double alpha, const Tensor& x, Tensor& y) = 0;
  virtual void clamp(double limit, const Tensor& x, Tensor& y) = 0;
  virtual void clamp_backward(double limit, const Tensor& x, const Tensor& dy, Tensor& dx) = 0;
  virtual void activate(const Activation& activation, const Tensor& x, Tensor& y) = 0;
  virtual void activate_backward(const Activation& activation, const Tensor& x, const Tensor& dy, Tensor& dx) = 0;
  virtual void activate_few_bit(const Activation& activation, const FewBitTable& table, const Tensor& x, Tensor& y,
                                Tensor& stash) = 0;
  virtual void activate_few_bit_backward(const FewBitTable& table, const Tensor& stash, const Tensor& dy, Tensor& dx) = 0;
  virtual void quantise_groups(const GroupRounding& rounding, const Tensor& x, Tensor& packed, Tensor& ranges) = 0;
  virtual void restore_groups(unsigned bits, const Tensor& packed, const Tensor& ranges, Tensor& x) = 0;
  virtual void dropout(const Dropout& dropout, const Tensor& x, Tensor& y) = 0;

  // The slice is all of the table if the op was given none.
  virtual void gather(const Tensor& table, const Tensor& ids, Tensor& out, bool accumulate, const VocabularySlice& slice) = 0;
  virtual void scatter_add(const Tensor& dout, const Tensor& ids, Tensor& dtable, const VocabularySlice& slice) = 0;

  virtual void layer_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon, Tensor& y, Tensor& mean,
                          Tensor& rstd) = 0;
  virtual void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& mean,
                                   const Tensor& rstd, Tensor& dx, Tensor& dgain, Tensor& dbias, bool accumulate) = 0;
  virtual void batch_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon, Tensor& y, Tensor& mean,
                          Tensor& variance) = 0;
  virtual void batch_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& mean,
                                   const Tensor& variance, double epsilon, Tensor& dx, Tensor& dgain, Tensor& dbias) = 0;
  virtual void batch_norm_inference(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& mean,
                                    const Tensor& variance, double epsilon, Tensor& y) = 0;

  virtual void softmax(const Tensor& x, Tensor& y) = 0;
  virtual void softmax_backward(const Tensor& y, const Tensor& dy, Tensor& dx) = 0;
  virtual void gumbel_softmax(const Gumbel& gumbel, const Tensor& x, Tensor& y) = 0;
  virtual void argmax_rows(const Tensor& x, Tensor& ids) = 0;
  virtual void attention(const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout, const Heads& q,
                         const Heads& k, const Heads& v, const Heads& out, Tensor& lse) = 0;
  virtual void attention_backward(const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout,
                                  const Heads& q, const Heads& k, const Heads& v, const Heads& out, const Tensor& lse,
                                  const Heads& dout, const Heads& dq, const Heads& dk, const Heads& dv) = 0;

  virtual void conv2d(const Conv2d& conv, const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y) = 0;
  virtual void conv2d_backward_data(const Conv2d& conv, const Tensor& dy, const Tensor& w, Tensor& dx) = 0;
  virtual void conv2d_backward_weights(const Conv2d& conv, const Tensor& x, const Tensor& dy, Tensor& dw) = 0;
  virtual void max_pool(std::size_t k, const Tensor& x, Tensor& y, Tensor& which) = 0;
  virtual void max_pool_backward(std::size_t k, const Tensor& dy, const Tensor& which, Tensor& dx) = 0;
  virtual void upsample(std::size_t k, const Tensor& x, Tensor& y) = 0;
  virtual void upsample_backward(std::size_t k, const Tensor& dy, Tensor& dx) = 0;

  virtual void cross_entropy(const Tensor& logits, const Tensor& targets, std::size_t classes, double scale, Tensor& loss,
                             Tensor* dlogits, double smoothing) = 0;
  virtual void cross_entropy_maxima(const Tensor& logits, const VocabularySlice& slice, Tensor& maxima) = 0;
  virtual void cross_entropy_terms(const Tensor& logits, const Tensor& targets, const VocabularySlice& slice,
                                   const Tensor& maxima, Tensor& terms) = 0;
  virtual void cross_entropy_of_terms(const Tensor& logits, const Tensor& targets, const VocabularySlice& slice,
                                      const Tensor& maxima, const Tensor& terms, double scale, Tensor& loss,
                                      Tensor* dlogits) = 0;
  virtual void categorical_kl(const Tensor& logits, double scale, Tensor& kl, Tensor* dlogits) = 0;
  virtual void logit_laplace(const LogitLaplace& distribution, const Tensor& maps, const Tensor& pixels, double scale,
                             Tensor& loss, Tensor* dmaps) = 0;
  virtual void adamw(std::span<const AdamWTensors> tensors, const AdamWStep& step) = 0;
  virtual std::vector<double> sums_of_squares(std::span<const Tensor> tensors) = 0;
};

// The implementations of this program.
std::unique_ptr<Backend> make_ref_backend();
std::unique_ptr<Backend> make_cpu_backend();
// Throws Error(usage) with gpu_problem()'s words, if it has any. In nn/cuda/, whether this program has CUDA or not.
std::unique_ptr<Backend> make_cuda_backend(int gpu);

}  // namespace bitloom::nn
