// Float models as plans see them: a sequence of layers, and what each computes, learns, keeps and hands to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/dalle/config.h"
#include "models/gpt/config.h"

namespace bitloom::plan {

// Numbers of elements: some that every rank of a tensor group has, and some that the group divides into shares of whole units,
// the rows of a table, say.
struct Elements {
  std::uint64_t whole = 0, split = 0, unit = 1;

  // Elements of the rank that has the most.
  std::uint64_t of(std::size_t tensor) const {
    const std::uint64_t units = split / unit;
    return whole + (units + tensor - 1) / tensor * unit;
  }
};

// A parameter of a layer. Matrices are what ops read as values, of type V; other parameters are of type P.
struct FloatParameter {
  Elements elements;
  bool is_matrix = false;
  std::uint64_t rows = 0;           // of a matrix
  bool is_in_block = false;         // of a layer that is_block
  std::uint64_t column_blocks = 1;  // as nn::Parameter has them
  bool is_frozen = false;           // no optimiser moves it

  bool is_block_matrix() const { return is_matrix && is_in_block; }
};

// Types as in nn/ops.h: V of values, P of parameters. Counts of activations are for one example.
struct FloatLayer {
  std::string name;
  double whole_operations = 0, split_operations = 0;  // multiplications and additions of the forward pass
  double sum_operations = 0;                          // and those with what a tensor group has summed, where there is one
  std::vector<FloatParameter> parameters;             // in the net's order
  // Kept for the backward pass.
  Elements values;              // of type V
  Elements activations;         // inputs of activations, of type V or of few bits
  Elements statistics;          // of type P
  std::uint64_t integers = 0;   // of four bytes
  std::uint64_t step_sums = 0;  // of type P, whatever the number of examples (nn::Layer::add_step_sums)
  Elements working;             // of type V, inside the layer at once on their way
  std::uint64_t output = 0;     // of type V, which the next layer gets
  bool keeps_input = false;     // its input is among what it keeps
  bool is_block = false;        // recomputation by blocks keeps its input alone
  // Sums over the tensor group, of `summed` elements of type V each: on the way forward, and of gradients on their way back.
  std::uint64_t summed = 0;
  std::size_t forward_sums = 0, backward_sums = 0;

  // Multiplications and additions of the forward pass of an example, by a rank of `tensor` that divide the layer.
  double operations_of(std::size_t tensor) const {
    return whole_operations + split_operations / static_cast<double>(tensor) + (tensor > 1 ? sum_operations : 0);
  }
};

// Logits of tokens and their cross-entropy (Shoeybi et al. 2019, section 3).
struct FloatHead {
  std::size_t vocabulary = 0;  // rows of the table, padding included
  std::size_t width = 0;
  bool is_tied = false;     // its table is that of layer 0
  bool has_bias = false;    // a number for every row besides
  std::size_t tokens = 0;   // of an example, whose logits these are; 0: all
  bool is_whole = false;    // every rank of a tensor group has all of it
  bool is_clipped = false;  // the loss of training clips its logits

  Elements table() const {
    const std::uint64_t size = std::uint64_t{vocabulary} * width;
    return is_whole ? Elements{size} : Elements{0, size, width};
  }
  // Those of its own, where the table is not another layer's.
  std::vector<FloatParameter> parameters() const;
};

struct FloatModel {
  std::string name;
  std::string example = "sequence";
  std::size_t tokens = 1;   // of an example
  std::size_t heads = 0;    // of attention, which the ranks of a tensor group divide; 0: no tensor group divides the model
  std::uint64_t input = 0;  // bytes of an example that layer 0 gets
  std::vector<FloatLayer> layers;
  std::vector<FloatHead> vocabulary_heads;  // behind the last layer; a tied one is the only one

  bool has_tied_head() const { return !vocabulary_heads.empty() && vocabulary_heads.front().is_tied; }
  // Tokens of an example whose logits a head gives.
  std::size_t tokens_of(const FloatHead& head) const { return head.tokens == 0 ? tokens : head.tokens; }
  std::vector<FloatParameter> head_parameters() const;
  // Those that are learned.
  std::uint64_t parameters() const;
  // Operations of the forward pass over an example, the heads' included.
  double operations() const;
  // The heads', of a rank of `tensor` that divide them; 0 without any.
  double head_operations_of(std::size_t tensor) const;
};

// The layers of models::Gpt, as nn counts them.
FloatModel describe_gpt(const models::GptConfig& config);

// The layers of models::Dalle, as nn counts them. The tables of inputs and of logits are whole on every rank.
FloatModel describe_dalle(const models::DalleConfig& config);

// Transformer-L of Huang et al. 2019, table 1: L layers of self-attention and feed-forward parts, width 2048, 8192 inside, 32
// heads, a vocabulary of 32k and sequences of 1024 are the paper's. That the vocabulary has 32,000 tokens, that input and
// output have tables of their own and that positions are not learned is derived from the parameters that the table counts.
FloatModel describe_transformer(std::size_t layers);

// T(L,H,A) of Huang et al. 2019, section 5: L encoder and L decoder layers, H inside feed-forward parts, A heads, width 1024
// and a vocabulary of 64k are the paper's. Derived from its parameter counts: heads of 64 channels each, also where these are
// more than the width, and two tables. Encoder layers hand on the source, decoder layers the encoder's result as well.
FloatModel describe_translation(std::size_t layers, std::size_t inside, std::size_t heads);

// AmoebaNet-D (L,F) of Huang et al. 2019, table 1: L normal cells, F filters. The paper gives L and F alone. Cells, stem, and
// widths that start at F / 4 and double with every reduction are those of the TensorFlow implementation (tensorflow/tpu,
// models/official/amoeba_net), as read in torchgpipe (kakaobrain/torchgpipe, benchmarks/models/amoebanet); 1000 classes, images
// of 224 x 224. A layer is a cell; it hands on its result and that of the cell before it. Pooling costs nothing here.
FloatModel describe_amoebanet_d(std::size_t cells, std::size_t filters);

}  // namespace bitloom::plan
