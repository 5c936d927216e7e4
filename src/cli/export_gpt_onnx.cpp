#include "cli/export_gpt_onnx.h"

#include "core/error.h"
#include "models/gpt/model_file.h"
#include "models/gpt/onnx.h"

namespace bitloom::cli {

void export_gpt_onnx(Terminal& terminal, const ExportRequest& request) {
  if (request.type != "f32" && request.type != "f16") {
    fail(ErrorKind::usage, "--type: {}; expected f32 or f16, the types that ONNX files of GPTs have", request.type);
  }
  const models::OnnxType type = request.type == "f16" ? models::OnnxType::f16 : models::OnnxType::f32;
  nn::Engine engine;
  const models::LoadedGpt loaded = models::load_gpt(engine, request.model);
  const models::GptConfig& config = loaded.net->config();
  const models::GptOnnxSummary summary = models::save_gpt_onnx(engine, *loaded.net, *loaded.tokenizer, type, request.out);
  terminal.print(
      "{}: ONNX, {} KiB, matrices in {}. Inputs input_ids (batch, tokens) and the cache, past_key_values.N.key and .value "
      "(batch, {}, past, {}), N from 0 to {}, past from 0 on; outputs logits (batch, tokens, {}) and the next cache, "
      "present.N.key and .value. At most {} tokens in all",
      request.out.string(), summary.saved.bytes / 1024, request.type, config.heads, config.width / config.heads,
      config.layers - 1, config.vocabulary, config.context);
  if (!summary.saved.data.empty()) {
    terminal.print("{}: the weights, which have to stay beside it: a file of this format has less than 2 GiB",
                   summary.saved.data.string());
  }
  if (!summary.no_tokenizer.empty()) {
    terminal.print(
        "no tokenizer.json in its metadata, which could not say the tokenizer: {}; export to transformers writes "
        "tokenizer.model",
        summary.no_tokenizer);
  }
}

}  // namespace bitloom::cli
