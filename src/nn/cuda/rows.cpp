// Rows: of tables, their sums, and softmax.
#include "nn/cuda/cuda_backend.h"

namespace bitloom::nn::cuda {
namespace {

const std::int32_t* integers(const Tensor& tensor) { return static_cast<const std::int32_t*>(tensor.data()); }

Lookup lookup_of(const Tensor& table, const Tensor& ids, const VocabularySlice& slice) {
  return {ids.size(), table.shape()[0], table.shape()[1], slice.first, slice.all};
}

}  // namespace

void CudaBackend::add_row_sums(const Tensor& x, Tensor& sums) {
  const std::size_t rows = x.shape().rows();
  const std::size_t columns = x.shape().back();
  column_sums(stream(), number_of(x), x.data(), rows, columns, static_cast<float*>(sums.data()),
              workspace(column_sums_workspace(rows, columns)));
}

void CudaBackend::gather(const Tensor& table, const Tensor& ids, Tensor& out, bool accumulate, const VocabularySlice& slice) {
  cuda::gather(stream(), lookup_of(table, ids, slice), number_of(table), table.data(), integers(ids), accumulate,
               number_of(out), out.data(), runtime_.fault());
}

void CudaBackend::scatter_add(const Tensor& dout, const Tensor& ids, Tensor& dtable, const VocabularySlice& slice) {
  const Lookup lookup = lookup_of(dtable, ids, slice);
  cuda::scatter_add(stream(), lookup, number_of(dout), dout.data(), integers(ids), static_cast<float*>(dtable.data()),
                    workspace(scatter_add_workspace(lookup)), runtime_.fault());
}

void CudaBackend::softmax(const Tensor& x, Tensor& y) {
  cuda::softmax(stream(), number_of(x), x.data(), y.data(), x.shape().rows(), x.shape().back());
}

void CudaBackend::softmax_backward(const Tensor& y, const Tensor& dy, Tensor& dx) {
  cuda::softmax_backward(stream(), number_of(y), y.data(), dy.data(), dx.data(), y.shape().rows(), y.shape().back());
}

void CudaBackend::cross_entropy(const Tensor& logits, const Tensor& targets, std::size_t classes, double scale, Tensor& loss,
                                Tensor* dlogits, double smoothing) {
  const Number number = number_of(logits);
  const CrossEntropy shape{number,
                           dlogits == nullptr ? number : number_of(*dlogits),
                           logits.shape()[0],
                           logits.shape()[1],
                           classes,
                           static_cast<float>(scale),
                           static_cast<float>(smoothing)};
  cuda::cross_entropy(stream(), shape, logits.data(), integers(targets), static_cast<float*>(loss.data()),
                      dlogits == nullptr ? nullptr : dlogits->data(), runtime_.fault());
}

namespace {

ClassColumns columns_of(const Tensor& logits, const VocabularySlice& slice) {
  const Number number = number_of(logits);
  const std::size_t columns = logits.shape()[1];
  return {number, number, logits.shape()[0], columns, slice.count(columns), slice.first, slice.all};
}

const float* floats(const Tensor& tensor) { return static_cast<const float*>(tensor.data()); }

}  // namespace

void CudaBackend::cross_entropy_maxima(const Tensor& logits, const VocabularySlice& slice, Tensor& maxima) {
  cuda::cross_entropy_maxima(stream(), columns_of(logits, slice), logits.data(), static_cast<float*>(maxima.data()));
}

void CudaBackend::cross_entropy_terms(const Tensor& logits, const Tensor& targets, const VocabularySlice& slice,
                                      const Tensor& maxima, Tensor& terms) {
  cuda::cross_entropy_terms(stream(), columns_of(logits, slice), logits.data(), integers(targets), floats(maxima),
                            static_cast<float*>(terms.data()), runtime_.fault());
}

void CudaBackend::cross_entropy_of_terms(const Tensor& logits, const Tensor& targets, const VocabularySlice& slice,
                                         const Tensor& maxima, const Tensor& terms, double scale, Tensor& loss,
                                         Tensor* dlogits) {
  ClassColumns shape = columns_of(logits, slice);
  if (dlogits != nullptr) shape.gradient_number = number_of(*dlogits);
  cuda::cross_entropy_of_terms(stream(), shape, logits.data(), integers(targets), floats(maxima), floats(terms),
                               static_cast<float>(scale), static_cast<float*>(loss.data()),
                               dlogits == nullptr ? nullptr : dlogits->data(), runtime_.fault());
}

}  // namespace bitloom::nn::cuda
