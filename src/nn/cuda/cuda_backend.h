// The backend "cuda": products by cuBLASLt, convolutions by cuDNN, everything else by kernels of this folder. Its methods are
// spread over the files of this folder; each says which. They start their work on one stream and return; a backend is used by
// one thread at a time. What a method's name and arguments mean stands in nn/ops.h.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nn/backend.h"
#include "nn/cuda/attention_masks.h"
#include "nn/cuda/blas.h"
#include "nn/cuda/dnn.h"
#include "nn/cuda/notes.h"
#include "nn/cuda/runtime.h"
#include "nn/cuda/scratch.h"

namespace bitloom::nn::cuda {

// The type of a tensor of values or parameters.
Number number_of(const Tensor& tensor);
// The kernels' name for it, in activations.cpp.
Function function_of(const Activation& activation);

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int gpu);

  // cuda_backend.cpp
  std::unique_ptr<Allocator> make_allocator() const override;
  void use_pool(const std::shared_ptr<Pool>& pool) override { runtime_.use_pool(pool); }
  bool supports(DType dtype) const override;  // f32, bf16, f16
  void write(void* device, std::span<const std::byte> host) override;
  void read(const void* device, std::span<std::byte> host) override;
  void synchronize() override;
  void* native_stream() override { return stream(); }
  void watch(const std::weak_ptr<const Engine::Look>& look) override;
  std::vector<std::string> take_notes() override { return notes_.take(); }

  // matrices.cpp
  void matmul(const Tensor& a, const Tensor& b, Tensor& out, const MatmulOptions& options) override;

  // elements.cpp
  void convert(const Tensor& x, Tensor& y) override;
  void fill(Tensor& y, double value) override;
  void add(const Tensor& a, const Tensor& b, Tensor& y) override;
  void scale_add(double alpha, const Tensor& x, double beta, Tensor& y) override;
  void add_finite(double alpha, const Tensor& x, Tensor& y) override;
  void clamp(double limit, const Tensor& x, Tensor& y) override;
  void clamp_backward(double limit, const Tensor& x, const Tensor& dy, Tensor& dx) override;
  void dropout(const Dropout& dropout, const Tensor& x, Tensor& y) override;

  // activations.cpp
  void activate(const Activation& activation, const Tensor& x, Tensor& y) override;
  void activate_backward(const Activation& activation, const Tensor& x, const Tensor& dy, Tensor& dx) override;
  void activate_few_bit(const Activation& activation, const FewBitTable& table, const Tensor& x, Tensor& y,
                        Tensor& stash) override;
  void activate_few_bit_backward(const FewBitTable& table, const Tensor& stash, const Tensor& dy, Tensor& dx) override;
  void quantise_groups(const GroupRounding& rounding, const Tensor& x, Tensor& packed, Tensor& ranges) override;
  void restore_groups(unsigned bits, const Tensor& packed, const Tensor& ranges, Tensor& x) override;

  // rows.cpp
  void add_row_sums(const Tensor& x, Tensor& sums) override;
  void gather(const Tensor& table, const Tensor& ids, Tensor& out, bool accumulate, const VocabularySlice& slice) override;
  void scatter_add(const Tensor& dout, const Tensor& ids, Tensor& dtable, const VocabularySlice& slice) override;
  void softmax(const Tensor& x, Tensor& y) override;
  void softmax_backward(const Tensor& y, const Tensor& dy, Tensor& dx) override;
  void cross_entropy(const Tensor& logits, const Tensor& targets, std::size_t classes, double scale, Tensor& loss,
                     Tensor* dlogits, double smoothing) override;
  void cross_entropy_maxima(const Tensor& logits, const VocabularySlice& slice, Tensor& maxima) override;
  void cross_entropy_terms(const Tensor& logits, const Tensor& targets, const VocabularySlice& slice, const Tensor& maxima,
                           Tensor& terms) override;
  void cross_entropy_of_terms(const Tensor& logits, const Tensor& targets, const VocabularySlice& slice, const Tensor& maxima,
                              const Tensor& terms, double scale, Tensor& loss, Tensor* dlogits) override;

  // categorical.cpp
  void gumbel_softmax(const Gumbel& gumbel, const Tensor& x, Tensor& y) override;
  void categorical_kl(const Tensor& logits, double scale, Tensor& kl, Tensor* dlogits) override;
  void logit_laplace(const LogitLaplace& distribution, const Tensor& maps, const Tensor& pixels, double scale, Tensor& loss,
                     Tensor* dmaps) override;
  void argmax_rows(const Tensor& x, Tensor& ids) override;

  // norms.cpp
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

  // attention.cpp
  void attention(const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout, const Heads& q, const Heads& k,
                 const Heads& v, const Heads& out, Tensor& lse) override;
  void attention_backward(const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout, const Heads& q,
                          const Heads& k, const Heads& v, const Heads& out, const Tensor& lse, const Heads& dout,
                          const Heads& dq, const Heads& dk, const Heads& dv) override;

  // images.cpp
  void conv2d(const Conv2d& conv, const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y) override;
  void conv2d_backward_data(const Conv2d& conv, const Tensor& dy, const Tensor& w, Tensor& dx) override;
  void conv2d_backward_weights(const Conv2d& conv, const Tensor& x, const Tensor& dy, Tensor& dw) override;
  void max_pool(std::size_t k, const Tensor& x, Tensor& y, Tensor& which) override;
  void max_pool_backward(std::size_t k, const Tensor& dy, const Tensor& which, Tensor& dx) override;
  void upsample(std::size_t k, const Tensor& x, Tensor& y) override;
  void upsample_backward(std::size_t k, const Tensor& dy, Tensor& dx) override;

  // optimizer.cpp
  void adamw(std::span<const AdamWTensors> tensors, const AdamWStep& step) override;
  std::vector<double> sums_of_squares(std::span<const Tensor> tensors) override;

 private:
  // Memory for what a method needs until its kernels are done; the next method that asks gets the same. Aligned to 256 bytes.
  void* workspace(std::size_t bytes) { return workspace_.get(bytes); }
  // matrices.cpp: without an epilogue, by what the library has.
  void multiply(const Product& product);
  // images.cpp: that the library does not compute it.
  void note_slow(const char* op, const Convolution& c);
  // Throws Error(usage) about what kernels found in ids and targets. After waiting.
  void check_faults();
  // Until ready() holds, under the eyes of those that watch; at once if nobody does.
  void wait(const std::function<bool()>& ready);
  Stream stream() const { return runtime_.stream(); }

  Runtime runtime_;
  Notes notes_;
  Blas blas_;
  Dnn dnn_;
  MaskCache masks_;
  Scratch workspace_;
  std::vector<std::weak_ptr<const Engine::Look>> looks_;
};

}  // namespace bitloom::nn::cuda
