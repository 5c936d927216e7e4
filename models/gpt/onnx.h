// A GPT as a graph of ONNX's standard operators, with the cache of keys and values among its inputs and outputs, under the
// names that optimum and transformers.js give them.
#pragma once

#include <filesystem>
#include <string>

#include "data/text/tokenizer.h"
#include "models/gpt/gpt.h"
#include "models/onnx_writer.h"

namespace bitloom::models {

struct GptOnnxSummary {
  OnnxGraph::Saved saved;
  std::string no_tokenizer;  // why the file has no tokenizer.json; "" if it has one
};

// Inputs and outputs, N from 0 to the number of layers less one; P tokens went before, which may be none:
//   input_ids                              i64 (batch, T)
//   past_key_values.N.key, .value          f32 (batch, heads, P, width of a head)
//   logits                                 f32 (batch, T, vocabulary)
//   present.N.key, .value                  f32 (batch, heads, P + T, width of a head): those of the next call
// Sequences of a batch have the same length, and P + T is at most the context: positions from there on are not in the table.
// All is computed in f32. type: f32, or f16, in which matrices are stored then and from which the graph makes f32; norms,
// biases and the table of positions are stored in f32. Rows of padding are left out of the table of tokens, which serves for
// the logits, too. Metadata: "bitloom.kind", "bitloom.config" (the net as JSON), "context", "end_of_text" (a token),
// "tokenizer" (its kind) and, where it can say the tokenizer, "tokenizer.json", the text of such a file. A file above 2 GiB
// gets a second one, as OnnxGraph::save() says. Throws Error(usage) for an activation function or type that is not there,
// Error(data) for a weight that f16 does not have, Error(io).
GptOnnxSummary save_gpt_onnx(nn::Engine& engine, Gpt& net, const data::Tokenizer& tokenizer, OnnxType type,
                             const std::filesystem::path& path, std::uint64_t most = OnnxGraph::largest_file);

}  // namespace bitloom::models
