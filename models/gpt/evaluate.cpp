#include "models/gpt/evaluate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numbers>
#include <numeric>

#include "core/error.h"
#include "core/field.h"
#include "data/text/words.h"
#include "models/gpt/language_task.h"

namespace bitloom::models {
namespace {

using nn::Tensor;
using nn::Use;
using Ids = std::vector<std::int32_t>;

nn::Pass forward_pass(nn::Engine& engine) {
  nn::Pass pass{engine};
  pass.training = false;
  return pass;
}

// Sequences (B,T), one behind the other -> hidden states of the rows that are asked for (R,C), rows of B T counted through.
Tensor hidden_rows(nn::Engine& engine, Gpt& net, const Ids& sequences, const Ids& rows) {
  const std::size_t tokens = net.tokens();
  const std::size_t width = net.config().width;
  nn::Pass pass = forward_pass(engine);
  const Tensor ids = engine.from(std::span<const std::int32_t>(sequences), {sequences.size() / tokens, tokens}, Use::data);
  const Tensor hidden = net.forward(pass, ids).reshaped({sequences.size(), width});
  const Tensor which = engine.from(std::span<const std::int32_t>(rows), {rows.size()}, Use::data);
  Tensor chosen = engine.empty({rows.size(), width}, hidden.dtype(), Use::activations);
  nn::gather(engine, hidden, which, chosen);
  return chosen;
}

std::vector<double> to_doubles(nn::Engine& engine, const Tensor& tensor) {
  if (tensor.dtype() == DType::f64) return engine.to_host<double>(tensor);
  const std::vector<float> values = engine.to_host<float>(tensor);
  return {values.begin(), values.end()};
}

// The same net for sequences of another length: parameters are handles, so no memory is taken.
std::unique_ptr<Gpt> with_length(Gpt& net, std::size_t tokens) {
  auto other = std::make_unique<Gpt>(net.config(), tokens, net.group());
  const std::vector<nn::Parameter*> from = nn::parameters_of(net);
  const std::vector<nn::Parameter*> to = nn::parameters_of(*other);
  for (std::size_t i = 0; i < from.size(); ++i) {
    to[i]->value = from[i]->value;
    to[i]->copy = from[i]->copy;
  }
  return other;
}

// The place of the first token that the net does not know, or the number of tokens.
std::size_t find_unknown(const Gpt& net, std::span<const std::int32_t> tokens) {
  const auto known = [&](std::int32_t t) { return t >= 0 && static_cast<std::size_t>(t) < net.config().vocabulary; };
  return static_cast<std::size_t>(std::find_if_not(tokens.begin(), tokens.end(), known) - tokens.begin());
}

// --- Perplexity ---

// Targets are counted from 0: target i is token i + 1, behind input i.
struct Windows {
  std::uint64_t targets;
  std::size_t length, advance;

  std::uint64_t count() const { return targets <= length ? 1 : 1 + (targets - length + advance - 1) / advance; }
  std::uint64_t begin(std::uint64_t window) const { return window * advance; }
  // The targets that a window counts.
  std::uint64_t first(std::uint64_t window) const { return window == 0 ? 0 : begin(window) + length - advance; }
  std::uint64_t last(std::uint64_t window) const { return std::min<std::uint64_t>(begin(window) + length, targets); }
};

// Inputs of several windows, and which of their rows count.
struct Batch {
  Ids sequences, rows, targets;
};

Batch read_batch(const Gpt& net, const Windows& windows, const TokenReader& read, std::uint64_t first, std::uint64_t last) {
  Batch batch;
  for (std::uint64_t window = first; window < last; ++window) {
    const std::uint64_t begin = windows.begin(window);
    const std::uint64_t end = windows.last(window);
    Ids tokens(end + 1 - begin);
    read(begin, tokens);
    if (const std::size_t bad = find_unknown(net, tokens); bad < tokens.size()) {
      fail(ErrorKind::data, "token {}, number {} of the text: the net knows 0 to {}", tokens[bad], begin + bad,
           net.config().vocabulary - 1);
    }
    const std::size_t row = batch.sequences.size();
    for (std::uint64_t target = windows.first(window); target < end; ++target) {
      batch.rows.push_back(static_cast<std::int32_t>(row + (target - begin)));
      batch.targets.push_back(tokens[target + 1 - begin]);
    }
    tokens.resize(windows.length);  // what is missing of the last window stands behind all that counts
    // The one behind the last input is a target alone.
    batch.sequences.insert(batch.sequences.end(), tokens.begin(), tokens.end());
  }
  return batch;
}

// --- Cloze ---

// Inputs of a passage: what is before its last token, of long ones the end.
std::span<const std::int32_t> inputs_of(const ClozePassage& passage, std::size_t context) {
  const std::span<const std::int32_t> all(passage.tokens);
  const std::size_t count = all.size() - 1;
  return all.subspan(count - std::min(count, context), std::min(count, context));
}

void check_passages(const Gpt& net, std::span<const ClozePassage> passages) {
  for (std::size_t p = 0; p < passages.size(); ++p) {
    const ClozePassage& passage = passages[p];
    if (passage.target == 0 || passage.target >= passage.tokens.size()) {
      fail(ErrorKind::data, "passage {}: {} of its {} tokens are to be predicted; expected at least 1, and 1 before them",
           p + 1, passage.target, passage.tokens.size());
    }
    if (passage.target > net.tokens()) {
      fail(ErrorKind::data, "passage {}: {} tokens are to be predicted; expected at most the context, {}", p + 1,
           passage.target, net.tokens());
    }
    if (const std::size_t bad = find_unknown(net, passage.tokens); bad < passage.tokens.size()) {
      fail(ErrorKind::data, "passage {}: token {}; the net knows 0 to {}", p + 1, passage.tokens[bad],
           net.config().vocabulary - 1);
    }
  }
}

// The most likely token behind every row of hidden (R,C), -1 where there is none for want of a number.
Ids most_likely(nn::Engine& engine, Gpt& net, const Tensor& hidden) {
  const std::size_t rows = hidden.shape()[0];
  const std::size_t padded = net.config().padded_vocabulary();
  const std::size_t at_once = LanguageTask::rows_at_once(padded, rows, LanguageTask::default_logits_bytes);
  Ids best;
  for (std::size_t begin = 0; begin < rows; begin += at_once) {
    const std::size_t end = std::min(rows, begin + at_once);
    const std::vector<double> logits = to_doubles(engine, net.logits(engine, hidden.slice(begin, end)));
    for (std::size_t row = 0; row < end - begin; ++row) {
      const auto first = logits.begin() + static_cast<std::ptrdiff_t>(row * padded);
      const auto last = first + static_cast<std::ptrdiff_t>(net.config().vocabulary);
      const bool is_number = std::none_of(first, last, [](double logit) { return std::isnan(logit); });
      best.push_back(is_number ? static_cast<std::int32_t>(std::max_element(first, last) - first) : -1);
    }
  }
  return best;
}

// Whether each of some passages is correct. `net` takes the longest of them.
std::vector<char> judge(nn::Engine& engine, Gpt& net, std::span<const ClozePassage* const> passages, std::size_t context) {
  Ids sequences;
  Ids rows;
  for (const ClozePassage* passage : passages) {
    const auto inputs = inputs_of(*passage, context);
    const std::size_t begin = sequences.size();
    sequences.insert(sequences.end(), inputs.begin(), inputs.end());
    sequences.resize(begin + net.tokens());  // seen by nothing before it
    for (std::size_t i = inputs.size() - passage->target; i < inputs.size(); ++i) {
      rows.push_back(static_cast<std::int32_t>(begin + i));
    }
  }
  const Ids best = most_likely(engine, net, hidden_rows(engine, net, sequences, rows));
  std::vector<char> correct;
  auto found = best.begin();
  for (const ClozePassage* passage : passages) {
    const auto target = passage->tokens.end() - static_cast<std::ptrdiff_t>(passage->target);
    correct.push_back(std::equal(target, passage->tokens.end(), found) ? 1 : 0);
    found += static_cast<std::ptrdiff_t>(passage->target);
  }
  return correct;
}

// The net's own length, or the next multiple of what attention is divided into: few lengths, and short passages cost little.
std::size_t length_for(const Gpt& net, std::size_t inputs) {
  constexpr std::size_t unit = nn::AttentionMask::block;
  return std::min(net.tokens(), (inputs + unit - 1) / unit * unit);
}

}  // namespace

double Perplexity::by(std::uint64_t count) const { return std::exp(loss / static_cast<double>(count)); }

double Perplexity::bits_per_byte(std::uint64_t bytes) const { return loss / std::numbers::ln2 / static_cast<double>(bytes); }

Perplexity evaluate_perplexity(nn::Engine& engine, Gpt& net, std::uint64_t size, const TokenReader& read,
                               const PerplexityOptions& options, const EvaluationProgress& on_progress) {
  if (options.advance == 0 || options.advance > net.tokens()) {
    fail_field(ErrorKind::usage, "advance", "{}; expected 1 to the context, {}", options.advance, net.tokens());
  }
  if (options.windows == 0) fail_field(ErrorKind::usage, "batch", "0; expected at least 1");
  if (size < 2) fail(ErrorKind::data, "a text of {} tokens; expected at least 2", size);
  const Windows windows{size - 1, net.tokens(), options.advance};
  Perplexity result;
  while (result.windows < windows.count()) {
    const std::uint64_t last = std::min<std::uint64_t>(result.windows + options.windows, windows.count());
    const Batch batch = read_batch(net, windows, read, result.windows, last);
    const Tensor hidden = hidden_rows(engine, net, batch.sequences, batch.rows);
    const Tensor targets = engine.from(std::span<const std::int32_t>(batch.targets), {batch.targets.size()}, Use::data);
    const std::vector<double> losses = to_doubles(engine, language_losses(engine, net, hidden, targets, 1, nullptr));
    result.loss = std::accumulate(losses.begin(), losses.end(), result.loss);
    result.tokens += losses.size();
    result.windows = last;
    if (on_progress && !on_progress(result.tokens, windows.targets)) break;
  }
  result.is_complete = result.tokens == windows.targets;
  return result;
}

ClozeAccuracy evaluate_cloze(nn::Engine& engine, Gpt& net, std::span<const ClozePassage> passages, std::size_t at_once,
                             const EvaluationProgress& on_progress) {
  if (at_once == 0) fail_field(ErrorKind::usage, "batch", "0; expected at least 1");
  check_passages(net, passages);
  std::map<std::size_t, std::unique_ptr<Gpt>> nets;  // by length
  ClozeAccuracy result;
  while (result.passages < passages.size()) {
    const auto part = passages.subspan(result.passages, std::min<std::size_t>(at_once, passages.size() - result.passages));
    std::size_t longest = 0;
    std::vector<const ClozePassage*> pointers;
    for (const ClozePassage& passage : part) {
      longest = std::max(longest, inputs_of(passage, net.tokens()).size());
      pointers.push_back(&passage);
    }
    const std::size_t length = length_for(net, longest);
    std::unique_ptr<Gpt>& fitting = nets[length];
    if (!fitting) fitting = with_length(net, length);
    const std::vector<char> correct = judge(engine, *fitting, pointers, net.tokens());
    result.correct.insert(result.correct.end(), correct.begin(), correct.end());
    result.right += static_cast<std::uint64_t>(std::count(correct.begin(), correct.end(), 1));
    result.passages += part.size();
    if (on_progress && !on_progress(result.passages, passages.size())) break;
  }
  result.is_complete = result.passages == passages.size();
  return result;
}

ClozePassage cloze_passage(const data::Tokenizer& tokenizer, std::string_view text) {
  const std::size_t end =
      static_cast<std::size_t>(std::find_if_not(text.rbegin(), text.rend(), data::is_space).base() - text.begin());
  const std::string_view whole = text.substr(0, end);
  const auto space = std::find_if(whole.rbegin(), whole.rend(), data::is_space);
  if (std::all_of(space, whole.rend(), data::is_space)) {
    fail(ErrorKind::data, "'{}': fewer than two words; expected a passage and the word that ends it", whole);
  }
  const std::string_view context = whole.substr(0, static_cast<std::size_t>(space.base() - whole.begin()) - 1);
  ClozePassage passage;
  tokenizer.encode(whole, passage.tokens);
  Ids before;
  tokenizer.encode(context, before);
  const auto [differs, unused] = std::mismatch(passage.tokens.begin(), passage.tokens.end(), before.begin(), before.end());
  passage.target = static_cast<std::size_t>(passage.tokens.end() - differs);
  return passage;
}

std::vector<float> token_logits(nn::Engine& engine, Gpt& net, std::span<const std::int32_t> tokens) {
  const GptConfig& config = net.config();
  if (tokens.empty() || tokens.size() > config.context) {
    fail_field(ErrorKind::usage, "tokens", "{} of them; expected 1 to the context, {}", tokens.size(), config.context);
  }
  if (const std::size_t bad = find_unknown(net, tokens); bad < tokens.size()) {
    fail_field(ErrorKind::usage, "tokens", "{}; expected 0 to {}", tokens[bad], config.vocabulary - 1);
  }
  const std::unique_ptr<Gpt> fitting = with_length(net, tokens.size());
  nn::Pass pass = forward_pass(engine);
  const Tensor hidden = fitting->forward(pass, engine.from(tokens, {1, tokens.size()}, Use::data));
  const std::vector<double> padded = to_doubles(engine, fitting->logits(engine, hidden));
  std::vector<float> logits;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const auto row = padded.begin() + static_cast<std::ptrdiff_t>(t * config.padded_vocabulary());
    std::transform(row, row + static_cast<std::ptrdiff_t>(config.vocabulary), std::back_inserter(logits),
                   [](double logit) { return static_cast<float>(logit); });
  }
  return logits;
}

}  // namespace bitloom::models
