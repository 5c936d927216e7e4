#include "train/parallel/tensor.h"

#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/half.h"
#include "mpi/float_collectives.h"
#include "train/parallel/elements.h"
#include "train/parallel/gpu_comm.h"

namespace bitloom::train {

using nn::Tensor;
using nn::Use;

// --- TensorGroup ---

TensorGroup::TensorGroup(mpi::Comm& comm)
    : comm_(&comm), rank_(static_cast<std::size_t>(comm.rank())), size_(static_cast<std::size_t>(comm.size())) {}

TensorGroup::TensorGroup(std::size_t rank, std::size_t size) : rank_(rank), size_(size) {
  if (rank >= size) fail(ErrorKind::usage, "tensor group: rank {} of {}", rank, size);
}

TensorGroup::~TensorGroup() = default;

mpi::Comm& TensorGroup::comm() const {
  if (comm_ == nullptr) fail(ErrorKind::internal, "a net of a tensor group that is only described cannot be run");
  return *comm_;
}

GpuComm& TensorGroup::gpus(nn::Engine& engine) {
  if (!gpus_) gpus_ = std::make_unique<GpuComm>(engine, comm());
  return *gpus_;
}

void TensorGroup::sum(nn::Engine& engine, Tensor& tensor) {
  mpi::Comm& ranks = comm();
  if (size_ == 1) return;
  if (engine.device().kind == nn::Device::Kind::cuda) {
    const mpi::DeviceComm::Values values = on_device(tensor);
    gpus(engine).sum({&values, 1});
    return;
  }
  with_elements(tensor, [&](auto elements) { mpi::sum_in_order(ranks, elements); });
}

void TensorGroup::max(nn::Engine& engine, Tensor& tensor) {
  mpi::Comm& ranks = comm();
  if (size_ == 1) return;
  if (engine.device().kind == nn::Device::Kind::cuda) {
    const mpi::DeviceComm::Values values = on_device(tensor);
    gpus(engine).max({&values, 1});
    return;
  }
  with_elements(tensor, [&](auto elements) { mpi::max_of(ranks, elements); });
}

// --- Enter, Leave ---

namespace {

// Nobody else may see the sum: the terms are somebody's.
Tensor sum_of(TensorGroup& group, nn::Engine& engine, const Tensor& terms) {
  Tensor sum = engine.empty(terms.shape(), terms.dtype(), Use::activations);
  nn::scale_add(engine, 1, terms, 0, sum);
  group.sum(engine, sum);
  return sum;
}

}  // namespace

Tensor Enter::forward(nn::Pass& /*pass*/, const Tensor& x) { return x; }

Tensor Enter::backward(nn::Pass& pass, const Tensor& dy) { return sum_of(group_, pass.engine, dy); }

Leave::Leave(TensorGroup& group, const std::string& bias, std::size_t columns)
    : group_(group), bias_(nn::vector_parameter(bias, columns, 0)) {}

Tensor Leave::forward(nn::Pass& pass, const Tensor& x) {
  Tensor y = sum_of(group_, pass.engine, x);
  const std::size_t rows = y.shape().rows();
  const std::size_t columns = bias_.shape[0];
  if (!no_rows_ || no_rows_.size() != rows) no_rows_ = pass.engine.zeros({rows}, DType::i32, Use::data);
  Tensor flat = y.reshaped({rows, columns});
  nn::gather(pass.engine, bias_.read().reshaped({1, columns}), no_rows_, flat, true);
  return y;
}

Tensor Leave::backward(nn::Pass& pass, const Tensor& dy) {
  nn::add_row_sums(pass.engine, dy, bias_.gradient);
  pass.announce(bias_);
  return dy;
}

// --- The vocabulary ---

VocabularyEmbedding::VocabularyEmbedding(TensorGroup& group, const std::string& name, std::size_t vocabulary,
                                         std::size_t positions, std::size_t width)
    : Embedding(name, vocabulary, positions, width), group_(group) {
  divide(group.begin_of(vocabulary), group.end_of(vocabulary));
}

VocabularyHead::VocabularyHead(TensorGroup* group, nn::Parameter& table, std::size_t vocabulary, double clip)
    : group_(TensorLayers(group).group()), table_(table), slice_{table.part ? table.part->begin : 0, vocabulary}, clip_(clip) {}

std::size_t VocabularyHead::most_columns() const {
  return group_ == nullptr ? columns() : group_->most_of(table_.part->full[0]);
}

Tensor VocabularyHead::logits(nn::Engine& engine, const Tensor& hidden) const {
  const std::size_t rows = hidden.shape().rows();
  Tensor logits = engine.empty({rows, columns()}, nn::parameter_type(hidden.dtype()), Use::activations);
  nn::MatmulOptions options;
  options.transpose_b = true;
  nn::matmul(engine, hidden.reshaped({rows, table_.shape[1]}), table_.read(), logits, options);
  return logits;
}

Tensor VocabularyHead::all_logits(nn::Engine& engine, const Tensor& hidden) const {
  Tensor own = logits(engine, hidden);
  if (group_ == nullptr) return own;
  const std::size_t rows = own.shape()[0];
  const std::size_t all_columns = table_.part->full[0];
  Tensor all = engine.zeros({rows, all_columns}, own.dtype(), Use::activations);
  const Tensor flat = all.reshaped({all.size()});
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t first = row * all_columns + slice_.first;
    Tensor place = flat.slice(first, first + columns());
    nn::scale_add(engine, 1, own.slice(row, row + 1).reshaped({columns()}), 0, place);
  }
  group_->sum(engine, all);  // of one number and zeros
  return all;
}

void VocabularyHead::cross_entropy(nn::Engine& engine, const Tensor& logits, const Tensor& targets, double scale, Tensor& loss,
                                   Tensor* dlogits) const {
  if (clip_ == 0 || dlogits == nullptr) return cross_entropy_of(engine, logits, targets, scale, loss, dlogits);
  Tensor clipped = engine.empty(logits.shape(), logits.dtype(), Use::activations);
  nn::clamp(engine, clip_, logits, clipped);
  cross_entropy_of(engine, clipped, targets, scale, loss, &clipped);
  nn::clamp_backward(engine, clip_, logits, clipped, clipped);
  nn::scale_add(engine, 1, clipped, 0, *dlogits);
}

void VocabularyHead::cross_entropy_of(nn::Engine& engine, const Tensor& logits, const Tensor& targets, double scale,
                                      Tensor& loss, Tensor* dlogits) const {
  if (group_ == nullptr) {
    nn::cross_entropy(engine, logits, targets, slice_.all, scale, loss, dlogits);
    return;
  }
  const std::size_t rows = logits.shape()[0];
  Tensor maxima = engine.empty({rows}, loss.dtype(), Use::activations);
  nn::cross_entropy_maxima(engine, logits, slice_, maxima);
  group_->max(engine, maxima);
  Tensor terms = engine.empty({2, rows}, loss.dtype(), Use::activations);
  nn::cross_entropy_terms(engine, logits, targets, slice_, maxima, terms);
  group_->sum(engine, terms);
  nn::cross_entropy_of_terms(engine, logits, targets, slice_, maxima, terms, scale, loss, dlogits);
}

void VocabularyHead::backward(nn::Engine& engine, const Tensor& hidden, const Tensor& dlogits, Tensor& dhidden) const {
  nn::MatmulOptions sum;
  sum.transpose_a = true;
  sum.accumulate = nn::must_add(table_);
  nn::matmul(engine, dlogits, hidden, table_.gradient, sum);
  nn::matmul(engine, dlogits, table_.read(), dhidden);
}

void VocabularyHead::complete(nn::Engine& engine, Tensor& dhidden) const {
  if (group_ != nullptr) group_->sum(engine, dhidden);
}

// --- TensorLayers ---

namespace {

// Outputs or inputs begin_of(n) .. end_of(n) - 1.
nn::LinearOptions divided(const TensorGroup& group, std::size_t n, nn::LinearOptions options,
                          nn::LinearOptions::Division division) {
  options.division = division;
  options.begin = group.begin_of(n);
  options.end = group.end_of(n);
  return options;
}

}  // namespace

void TensorLayers::add_attention(nn::Sequence& to, const std::string& name, std::size_t width,
                                 std::shared_ptr<const nn::AttentionMask> mask, nn::SelfAttentionOptions options) const {
  if (group_ == nullptr) {
    to.emplace<nn::SelfAttention>(name, width, std::move(mask), options);
    return;
  }
  if (options.heads % group_->size() != 0) {
    fail_field(ErrorKind::usage, "heads", "{}; expected a multiple of the {} processes that divide each layer", options.heads,
               group_->size());
  }
  options.first_head = group_->begin_of(options.heads);
  options.own_heads = group_->end_of(options.heads) - options.first_head;
  to.emplace<Enter>(*group_);
  to.emplace<nn::SelfAttention>(name, width, std::move(mask), options);
  to.emplace<Leave>(*group_, name + ".projection.bias", width);
}

void TensorLayers::add_expansion(nn::Sequence& to, const std::string& name, std::size_t width, std::size_t inside,
                                 nn::LinearOptions options) const {
  if (group_ != nullptr) {
    to.emplace<Enter>(*group_);
    options = divided(*group_, inside, options, nn::LinearOptions::Division::outputs);
  }
  to.emplace<nn::Linear>(name, width, inside, options);
}

void TensorLayers::add_contraction(nn::Sequence& to, const std::string& name, std::size_t inside, std::size_t width,
                                   nn::LinearOptions options) const {
  if (group_ == nullptr) {
    to.emplace<nn::Linear>(name, inside, width, options);
    return;
  }
  options = divided(*group_, inside, options, nn::LinearOptions::Division::inputs);
  options.bias = false;
  to.emplace<nn::Linear>(name, inside, width, options);
  to.emplace<Leave>(*group_, name + ".bias", width);
}

std::unique_ptr<nn::Embedding> TensorLayers::make_embedding(const std::string& name, std::size_t vocabulary,
                                                            std::size_t positions, std::size_t width) const {
  if (group_ == nullptr) return std::make_unique<nn::Embedding>(name, vocabulary, positions, width);
  return std::make_unique<VocabularyEmbedding>(*group_, name, vocabulary, positions, width);
}

}  // namespace bitloom::train
