// bitloom eval of a GPT: perplexity of a text, cloze accuracy, logits of some tokens.
#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "cli/eval_gpt.h"
#include "cli/signals.h"
#include "cli/text_source.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "data/text/prepare.h"
#include "models/gpt/evaluate.h"
#include "models/gpt/model_file.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A text whose documents, divided as `input` says, end with the end-of-text token.
data::TokenFile open_data(const std::string& path, const std::string& split, data::TextInput input,
                          const data::Tokenizer& tokenizer) {
  fs::path file = path;
  if (fs::is_directory(file)) file /= (split.empty() ? "validation" : split) + ".tokens";
  if (file.extension() == ".tokens") return open_tokens(file, tokenizer, "the model");
  if (!split.empty()) fail(ErrorKind::usage, "--split: {}; {} is one text, not a folder of several", split, path);
  input.files = {path};
  // Nothing is held back: all of it is in the part for training.
  return data::TokenFile(data::prepare_text(input, tokenizer, 0, 0).train);
}

// A line a passage, or a line a JSON object with the passage as "text".
std::vector<models::ClozePassage> read_passages(const std::string& path, const data::Tokenizer& tokenizer) {
  std::vector<models::ClozePassage> passages;
  const auto add = [&](const std::string& id, std::string_view text) {
    try {
      passages.push_back(models::cloze_passage(tokenizer, text));
    } catch (const Error& error) {
      fail(error.kind(), "--cloze: {}: {}", id, error.what());
    }
  };
  if (path.ends_with(".jsonl") || path.ends_with(".ndjson")) {
    data::TextInput input;
    input.files = {path};
    data::for_each_document(input, [&](const data::Document& document) { add(document.id, document.text); });
  } else {
    const std::string text = read_text(path);
    std::size_t number = 0;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view line = std::string_view(text).substr(begin, end - begin);
      const std::string id = fmt::format("{}:{}", path, ++number);
      if (!is_utf8(line)) fail(ErrorKind::data, "--cloze: {}: not UTF-8", id);
      if (!trim(line).empty()) add(id, line);
      begin = end + 1;
    }
  }
  if (passages.empty()) fail(ErrorKind::data, "--cloze: {}: no passages in it", path);
  return passages;
}

// One model under its measures, which all processes take together; `result_` collects what they say.
class Measuring {
 public:
  Measuring(Session& session, const GptEvalSettings& settings, const std::string& model)
      : session_(session), settings_(settings), placed_(session, settings, model) {
    result_ = {{"model", model}, {"kind", models::gpt_kind}, {"dtype", settings.values}};
    if (session.comm.size() > 1) {
      const mpi::GridShape& grid = placed_.forward().grid().shape();
      result_["grid"] = {{"data", grid.data}, {"pipeline", grid.pipeline}, {"tensor", grid.tensor}};
    }
  }

  void measure_perplexity(const std::string& data, const std::string& split) {
    data::TokenFile text;
    std::array<std::uint64_t, 3> sizes{};  // tokens, words, bytes
    session_.on_root([&] {
      text = open_data(data, split, settings_.text, placed_.tokenizer());
      sizes = {text.size(), settings_.words != 0 ? settings_.words : text.words(), text.bytes()};
    });
    session_.comm.broadcast(std::span<std::uint64_t>(sizes));
    const std::uint64_t size = sizes[0], words = sizes[1], bytes = sizes[2];
    const std::int32_t before = placed_.tokenizer().end_of_text();
    // As in training, an end of text stands before the first document: so its first token counts too.
    const auto read = [&](std::uint64_t begin, std::span<std::int32_t> out) {
      const std::size_t added = begin == 0 ? 1 : 0;
      if (added != 0) out.front() = before;
      text.read(begin + added - 1, out.subspan(added));
    };
    const std::size_t context = placed_.forward().net().tokens();
    models::PerplexityOptions options;
    options.windows = settings_.batch;
    options.advance = settings_.advance != 0 ? settings_.advance : std::min(options.advance, context);
    const Clock::time_point start = Clock::now();
    const models::Perplexity found = session_.comm.together(
        [&] { return models::evaluate_perplexity(placed_.forward(), size + 1, read, options, progress("tokens")); });
    if (!found.is_complete) {
      fail(ErrorKind::interrupted, "stopped after {} of {} tokens; perplexity of those by token: {:.4f}", found.tokens, size,
           found.per_token());
    }
    const double rate = static_cast<double>(found.tokens) / std::max(seconds_since(start), 1e-9);
    result_["text"] = {{"data", data},
                       {"tokens", found.tokens},
                       {"words", words},
                       {"bytes", bytes},
                       {"context", context},
                       {"advance", options.advance},
                       {"loss", found.loss / static_cast<double>(found.tokens)},
                       {"perplexity", found.per_token()},
                       {"word_perplexity", words == 0 ? Json() : Json(found.by(words))},
                       {"bits_per_byte", bytes == 0 ? Json() : Json(found.bits_per_byte(bytes))},
                       {"tokens_per_second", rate}};
  }

  void measure_cloze() {
    Json texts = Json::array();
    session_.on_root([&] {
      for (const models::ClozePassage& each : read_passages(settings_.cloze, placed_.tokenizer())) {
        texts.push_back({each.target, each.tokens});
      }
    });
    std::vector<models::ClozePassage> passages;
    for (const Json& each : Json::parse(session_.comm.broadcast_text(texts.dump()))) {
      passages.push_back({each[1].get<std::vector<std::int32_t>>(), each[0].get<std::size_t>()});
    }
    const models::ClozeAccuracy found = session_.comm.together(
        [&] { return models::evaluate_cloze(placed_.forward(), passages, settings_.batch, progress("passages")); });
    if (!found.is_complete) {
      fail(ErrorKind::interrupted, "stopped after {} of {} passages, {} of them correct", found.passages, passages.size(),
           found.right);
    }
    result_["cloze"] = {
        {"data", settings_.cloze}, {"passages", found.passages}, {"correct", found.right}, {"accuracy", found.accuracy()}};
  }

  void write_logits() {
    std::vector<std::int32_t> tokens;
    for (const std::string& part : split(settings_.tokens, ',')) {
      const auto token = parse_int(part);
      if (!token || *token < 0 || *token > std::numeric_limits<std::int32_t>::max()) {
        fail(ErrorKind::usage, "--tokens: '{}'; expected whole numbers with commas between", part);
      }
      tokens.push_back(static_cast<std::int32_t>(*token));
    }
    const std::vector<float> logits = models::token_logits(placed_.forward(), tokens);
    session_.on_root([&] {
      TensorFile file;
      file.put("tokens", {tokens.size()}, tokens);
      file.put("logits", {tokens.size(), placed_.forward().net().config().vocabulary}, logits);
      file.save(settings_.logits);
    });
    result_["logits"] = settings_.logits;
  }

  void print(bool json) const {
    Terminal& terminal = session_.terminal;
    if (json) {
      terminal.json(result_);
      return;
    }
    if (result_.contains("text")) print_text(result_["text"]);
    if (result_.contains("cloze")) {
      const Json& cloze = result_["cloze"];
      terminal.print("cloze accuracy {:.2f}% ({} of {} passages)", 100 * cloze["accuracy"].get<double>(),
                     cloze["correct"].get<std::uint64_t>(), cloze["passages"].get<std::uint64_t>());
    }
    if (result_.contains("logits")) terminal.line(settings_.logits);
  }

 private:
  models::EvaluationProgress progress(const char* unit) const {
    return [this, unit](std::uint64_t done, std::uint64_t all) {
      session_.terminal.update(fmt::format("{} of {} {}", format_count(done), format_count(all), unit));
      return !stop_requested();
    };
  }

  void print_text(const Json& text) const {
    Terminal& terminal = session_.terminal;
    const auto count = [&](const char* key) { return text[key].get<std::uint64_t>(); };
    terminal.print("{}: {} tokens, {} words, {} bytes", text["data"].get<std::string>(), count("tokens"), count("words"),
                   count("bytes"));
    terminal.print("windows of {} tokens, advanced by {}; {:.0f} tokens/s", count("context"), count("advance"),
                   text["tokens_per_second"].get<double>());
    std::string line = fmt::format("loss {:.4f} nats per token, perplexity {:.4f} by token", text["loss"].get<double>(),
                                   text["perplexity"].get<double>());
    if (!text["word_perplexity"].is_null()) line += fmt::format(", {:.4f} by word", text["word_perplexity"].get<double>());
    if (!text["bits_per_byte"].is_null()) line += fmt::format(", {:.4f} bits per byte", text["bits_per_byte"].get<double>());
    terminal.line(line);
  }

  Session& session_;
  const GptEvalSettings& settings_;
  PlacedGpt placed_;
  Json result_;
};

}  // namespace

const std::vector<std::string>& GptEvalSettings::names() {
  static const std::vector<std::string> all{"cloze",  "documents", "field",  "advance", "batch",  "words",   "dtype",
                                            "device", "backend",   "tokens", "logits",  "tensor", "pipeline"};
  return all;
}

void GptEvalSettings::declare(Options& options) {
  options.text("cloze", cloze, "FILE",
               "Passages whose last word the model has to tell, all sub-tokens of it: one per line, or JSONL with the field "
               "\"text\"");
  options.text("documents", text.documents, "HOW",
               "Separator of documents in a text file, if not as in the run: file (none), blank-lines, or the line that stands "
               "between them");
  options.text("field", text.field, "NAME", "Field of a JSON object that holds the document, if not as in the run");
  options.count("advance", advance, 1, any_count,
                "Tokens by which overlapping windows of the context's length move on: fewer are exacter and take longer");
  options.count(
      "words", words, 0, any_count,
      "Number of words by which perplexity by word is normalised, those of the original tokenization; 0: what white space "
      "separates");
  options.count("batch", batch, 1, 1000000, "Windows or passages at once");
  declare_engine(options);
  options.text("tokens", tokens, "N,N,...", "Tokens, by number (with --logits)");
  options.text("logits", logits, "FILE",
               "Safetensors file for logits: of a GPT those that follow each of --tokens (tokens x vocabulary); of models of "
               "images with captions those of --pairs, beside what they are of");
  layout.declare_grid(options);
}

void eval_gpt(Session& session, const GptEvalSettings& settings, const std::string& model, const std::string& data,
              const std::string& split, bool json) {
  if (settings.tokens.empty() != settings.logits.empty()) {
    fail(ErrorKind::usage, "--{}: missing; --tokens and --logits need one another",
         settings.tokens.empty() ? "tokens" : "logits");
  }
  if (data.empty() && settings.cloze.empty() && settings.logits.empty()) {
    fail(ErrorKind::usage,
         "--data: missing; expected a text, or --cloze with passages. Only a run on a folder of token files brings its "
         "validation text along");
  }
  catch_stop_signals();
  Measuring measuring(session, settings, model);
  if (!data.empty()) measuring.measure_perplexity(data, split);
  if (!settings.cloze.empty()) measuring.measure_cloze();
  if (!settings.logits.empty()) measuring.write_logits();
  session.on_root([&] { measuring.print(json); });
}

}  // namespace bitloom::cli
