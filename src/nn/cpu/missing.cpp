// For the time of construction only: ops whose files are not merged yet. Delete this file with the last.
#include "core/error.h"
#include "nn/cpu/cpu_backend.h"

namespace bitloom::nn {
void CpuBackend::add_row_sums(const Tensor&, Tensor&) { fail(ErrorKind::internal, "add_row_sums: not there yet"); }
void CpuBackend::convert(const Tensor&, Tensor&) { fail(ErrorKind::internal, "convert: not there yet"); }
void CpuBackend::fill(Tensor&, double) { fail(ErrorKind::internal, "fill: not there yet"); }
void CpuBackend::add(const Tensor&, const Tensor&, Tensor&) { fail(ErrorKind::internal, "add: not there yet"); }
void CpuBackend::scale_add(double, const Tensor&, double, Tensor&) { fail(ErrorKind::internal, "scale_add: not there yet"); }
void CpuBackend::activate(const Activation&, const Tensor&, Tensor&) { fail(ErrorKind::internal, "activate: not there yet"); }
void CpuBackend::activate_backward(const Activation&, const Tensor&, const Tensor&, Tensor&) {
  fail(ErrorKind::internal, "activate_backward: not there yet");
}
void CpuBackend::activate_few_bit(const Activation&, const FewBitTable&, const Tensor&, Tensor&, Tensor&) {
  fail(ErrorKind::internal, "activate_few_bit: not there yet");
}
void CpuBackend::activate_few_bit_backward(const FewBitTable&, const Tensor&, const Tensor&, Tensor&) {
  fail(ErrorKind::internal, "activate_few_bit_backward: not there yet");
}
void CpuBackend::dropout(const Dropout&, const Tensor&, Tensor&) { fail(ErrorKind::internal, "dropout: not there yet"); }
void CpuBackend::layer_norm(const Tensor&, const Tensor&, const Tensor&, double, Tensor&, Tensor&, Tensor&) {
  fail(ErrorKind::internal, "layer_norm: not there yet");
}
void CpuBackend::layer_norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, Tensor&,
                                     Tensor&, Tensor&, bool) {
  fail(ErrorKind::internal, "layer_norm_backward: not there yet");
}
void CpuBackend::batch_norm(const Tensor&, const Tensor&, const Tensor&, double, Tensor&, Tensor&, Tensor&) {
  fail(ErrorKind::internal, "batch_norm: not there yet");
}
void CpuBackend::batch_norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, Tensor&,
                                     Tensor&, Tensor&) {
  fail(ErrorKind::internal, "batch_norm_backward: not there yet");
}
void CpuBackend::batch_norm_inference(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, double,
                                      Tensor&) {
  fail(ErrorKind::internal, "batch_norm_inference: not there yet");
}
void CpuBackend::softmax(const Tensor&, Tensor&) { fail(ErrorKind::internal, "softmax: not there yet"); }
void CpuBackend::softmax_backward(const Tensor&, const Tensor&, Tensor&) {
  fail(ErrorKind::internal, "softmax_backward: not there yet");
}
void CpuBackend::cross_entropy(const Tensor&, const Tensor&, std::size_t, double, Tensor&, Tensor*) {
  fail(ErrorKind::internal, "cross_entropy: not there yet");
}
void CpuBackend::adamw(std::span<const AdamWTensors>, const AdamWStep&) { fail(ErrorKind::internal, "adamw: not there yet"); }
double CpuBackend::sum_of_squares(std::span<const Tensor>) { fail(ErrorKind::internal, "sum_of_squares: not there yet"); }
void CpuBackend::attention(const AttentionShape&, const AttentionMask&, const Dropout&, const Heads&, const Heads&,
                           const Heads&, const Heads&, Tensor&) {
  fail(ErrorKind::internal, "attention: not there yet");
}
void CpuBackend::attention_backward(const AttentionShape&, const AttentionMask&, const Dropout&, const Heads&, const Heads&,
                                    const Heads&, const Heads&, const Tensor&, const Heads&, const Heads&, const Heads&,
                                    const Heads&) {
  fail(ErrorKind::internal, "attention_backward: not there yet");
}

}  // namespace bitloom::nn
