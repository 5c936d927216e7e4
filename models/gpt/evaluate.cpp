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
#include "mpi/float_collectives.h"
#include "nn/floats.h"

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

// Sequences (B,T) of a net, one behind the other -> hidden states of the rows that are asked for (R,C), rows of B T counted
// through; none where `forward` gives none.
Tensor hidden_rows(GptForward& forward, Gpt& net, const Ids& sequences, const Ids& rows) {
  nn::Engine& engine = forward.engine();
  const std::size_t width = net.config().width;
  nn::Pass pass = forward_pass(engine);
  const Tensor all = forward.hidden(pass, net, sequences, {sequences.size() / net.tokens(), net.tokens()});
  if (!all) return {};
  const Tensor hidden = all.reshaped({sequences.size(), width});
  const Tensor which = engine.from(std::span<const std::int32_t>(rows), {rows.size()}, Use::data);
  Tensor chosen = engine.empty({rows.size(), width}, hidden.dtype(), Use::activations);
  nn::gather(engine, hidden, which, chosen);
  return chosen;
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

// Tokens of windows first .. last - 1, which rank 0 reads.
Ids read_tokens(GptForward& net, const Windows& windows, const TokenReader& read, std::uint64_t first, std::uint64_t last) {
  const std::uint64_t begin = windows.begin(first);
  Ids tokens(windows.last(last - 1) + 1 - begin);
  mpi::Comm& world = net.grid().world();
  world.together([&] {
    if (!world.is_root()) return;
    read(begin, tokens);
    if (const std::size_t bad = find_unknown(net.net(), tokens); bad < tokens.size()) {
      fail(ErrorKind::data, "token {}, number {} of the text: the net knows 0 to {}", tokens[bad], begin + bad,
           net.net().config().vocabulary - 1);
    }
  });
  world.broadcast(std::span(tokens));
  return tokens;
}

// Inputs of several windows, and which of their rows count.
struct Batch {
  Ids sequences, rows, targets;
};

// text: tokens of the whole from number text_begin on.
Batch make_batch(const Windows& windows, const Ids& text, std::uint64_t text_begin, std::uint64_t first, std::uint64_t last) {
  Batch batch;
  for (std::uint64_t window = first; window < last; ++window) {
    const std::uint64_t begin = windows.begin(window);
    const std::uint64_t end = windows.last(window);
    const auto from = text.begin() + static_cast<std::ptrdiff_t>(begin - text_begin);
    Ids tokens(from, from + static_cast<std::ptrdiff_t>(end + 1 - begin));
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

// Adds the losses of each window to its sum.
void add_losses(GptForward& net, const Windows& windows, const Batch& batch, std::uint64_t first, std::span<double> sums) {
  nn::Engine& engine = net.engine();
  const Tensor hidden = hidden_rows(net, net.net(), batch.sequences, batch.rows);
  if (!hidden) return;
  const Tensor targets = engine.from(std::span<const std::int32_t>(batch.targets), {batch.targets.size()}, Use::data);
  const std::vector<double> losses = nn::to_doubles(engine, language_losses(engine, net.net(), hidden, targets, 1, nullptr));
  auto next = losses.begin();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto end = next + static_cast<std::ptrdiff_t>(windows.last(first + i) - windows.first(first + i));
    sums[i] = std::accumulate(next, end, sums[i]);
    next = end;
  }
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
Ids most_likely(nn::Engine& engine, const Gpt& net, const Tensor& hidden) {
  const std::size_t rows = hidden.shape()[0];
  const std::size_t padded = net.config().padded_vocabulary();
  const std::size_t at_once = LanguageTask::rows_at_once(padded, rows, LanguageTask::default_logits_bytes);
  Ids best;
  for (std::size_t begin = 0; begin < rows; begin += at_once) {
    const std::size_t end = std::min(rows, begin + at_once);
    const std::vector<double> logits = nn::to_doubles(engine, net.logits(engine, hidden.slice(begin, end)));
    for (std::size_t row = 0; row < end - begin; ++row) {
      const auto first = logits.begin() + static_cast<std::ptrdiff_t>(row * padded);
      const auto last = first + static_cast<std::ptrdiff_t>(net.config().vocabulary);
      const bool is_number = std::none_of(first, last, [](double logit) { return std::isnan(logit); });
      best.push_back(is_number ? static_cast<std::int32_t>(std::max_element(first, last) - first) : -1);
    }
  }
  return best;
}

// Sets for each of some passages whether it is correct, on the last stage. `net` takes the longest of them.
void judge(GptForward& forward, Gpt& net, std::span<const ClozePassage> passages, std::span<std::int32_t> correct) {
  const std::size_t context = forward.net().tokens();
  Ids sequences;
  Ids rows;
  for (const ClozePassage& passage : passages) {
    const auto inputs = inputs_of(passage, context);
    const std::size_t begin = sequences.size();
    sequences.insert(sequences.end(), inputs.begin(), inputs.end());
    sequences.resize(begin + net.tokens());  // seen by nothing before it
    for (std::size_t i = inputs.size() - passage.target; i < inputs.size(); ++i) {
      rows.push_back(static_cast<std::int32_t>(begin + i));
    }
  }
  const Tensor hidden = hidden_rows(forward, net, sequences, rows);
  if (!hidden) return;
  const Ids best = most_likely(forward.engine(), net, hidden);
  auto found = best.begin();
  for (std::size_t p = 0; p < passages.size(); ++p) {
    const auto target = passages[p].tokens.end() - static_cast<std::ptrdiff_t>(passages[p].target);
    correct[p] = std::equal(target, passages[p].tokens.end(), found) ? 1 : 0;
    found += static_cast<std::ptrdiff_t>(passages[p].target);
  }
}

// The net's own length, or the next multiple of what attention is divided into: few lengths, and short passages cost little.
std::size_t length_for(const Gpt& net, std::size_t inputs) {
  constexpr std::size_t unit = nn::AttentionMask::block;
  return std::min(net.tokens(), (inputs + unit - 1) / unit * unit);
}

// Calls f(begin, end) for those of the batches of `count` things, `at_once` in each, that this data rank has.
template <typename F>
void for_own_batches(const GptForward& net, std::size_t count, std::size_t at_once, const F& f) {
  const auto ranks = static_cast<std::size_t>(net.grid().shape().data);
  for (std::size_t begin = at_once * static_cast<std::size_t>(net.grid().data_index()); begin < count;
       begin += ranks * at_once) {
    f(begin, std::min(count, begin + at_once));
  }
}

// The same answer on all processes.
bool goes_on(const GptForward& net, const EvaluationProgress& on_progress, std::uint64_t done, std::uint64_t all) {
  return !net.grid().world().flag_any(on_progress && !on_progress(done, all));
}

}  // namespace

double Perplexity::by(std::uint64_t count) const { return std::exp(loss / static_cast<double>(count)); }

double Perplexity::bits_per_byte(std::uint64_t bytes) const { return loss / std::numbers::ln2 / static_cast<double>(bytes); }

Perplexity evaluate_perplexity(GptForward net, std::uint64_t size, const TokenReader& read, const PerplexityOptions& options,
                               const EvaluationProgress& on_progress) {
  const std::size_t length = net.net().tokens();
  if (options.advance == 0 || options.advance > length) {
    fail_field(ErrorKind::usage, "advance", "{}; expected 1 to the context, {}", options.advance, length);
  }
  if (options.windows == 0) fail_field(ErrorKind::usage, "batch", "0; expected at least 1");
  if (size < 2) fail(ErrorKind::data, "a text of {} tokens; expected at least 2", size);
  const Windows windows{size - 1, length, options.advance};
  Perplexity result;
  while (result.windows < windows.count()) {
    const std::uint64_t first = result.windows;
    const std::uint64_t last = std::min<std::uint64_t>(first + options.windows * net.passes_at_once(), windows.count());
    const Ids text = read_tokens(net, windows, read, first, last);
    std::vector<double> sums(last - first);
    for_own_batches(net, sums.size(), options.windows, [&](std::size_t begin, std::size_t end) {
      const Batch batch = make_batch(windows, text, windows.begin(first), first + begin, first + end);
      add_losses(net, windows, batch, first + begin, std::span(sums).subspan(begin, end - begin));
    });
    mpi::sum_in_order(net.grid().data(), std::span(sums));  // of one number and zeros
    net.take_from_last(std::span(sums));
    result.loss = std::accumulate(sums.begin(), sums.end(), result.loss);
    result.tokens = windows.last(last - 1);
    result.windows = last;
    if (!goes_on(net, on_progress, result.tokens, windows.targets)) break;
  }
  result.is_complete = result.tokens == windows.targets;
  return result;
}

ClozeAccuracy evaluate_cloze(GptForward net, std::span<const ClozePassage> passages, std::size_t at_once,
                             const EvaluationProgress& on_progress) {
  if (at_once == 0) fail_field(ErrorKind::usage, "batch", "0; expected at least 1");
  check_passages(net.net(), passages);
  std::map<std::size_t, std::unique_ptr<Gpt>> nets;  // by length
  ClozeAccuracy result;
  while (result.passages < passages.size()) {
    const auto some = passages.subspan(
        result.passages, std::min<std::size_t>(at_once * net.passes_at_once(), passages.size() - result.passages));
    std::vector<std::int32_t> correct(some.size());
    for_own_batches(net, some.size(), at_once, [&](std::size_t begin, std::size_t end) {
      const auto batch = some.subspan(begin, end - begin);
      std::size_t longest = 0;
      for (const ClozePassage& passage : batch) longest = std::max(longest, inputs_of(passage, net.net().tokens()).size());
      const std::size_t length = length_for(net.net(), longest);
      std::unique_ptr<Gpt>& fitting = nets[length];
      if (!fitting) fitting = with_length(net.net(), length);
      judge(net, *fitting, batch, std::span(correct).subspan(begin, end - begin));
    });
    net.grid().data().sum(std::span(correct));
    net.take_from_last(std::span(correct));
    result.correct.insert(result.correct.end(), correct.begin(), correct.end());
    result.right += static_cast<std::uint64_t>(std::count(correct.begin(), correct.end(), 1));
    result.passages += some.size();
    if (!goes_on(net, on_progress, result.passages, passages.size())) break;
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

std::vector<float> token_logits(GptForward net, std::span<const std::int32_t> tokens) {
  const GptConfig& config = net.net().config();
  if (tokens.empty() || tokens.size() > config.context) {
    fail_field(ErrorKind::usage, "tokens", "{} of them; expected 1 to the context, {}", tokens.size(), config.context);
  }
  if (const std::size_t bad = find_unknown(net.net(), tokens); bad < tokens.size()) {
    fail_field(ErrorKind::usage, "tokens", "{}; expected 0 to {}", tokens[bad], config.vocabulary - 1);
  }
  const std::unique_ptr<Gpt> fitting = with_length(net.net(), tokens.size());
  nn::Pass pass = forward_pass(net.engine());
  const Tensor hidden = net.hidden(pass, *fitting, tokens, {1, tokens.size()});
  std::vector<float> logits(tokens.size() * config.vocabulary);
  if (hidden) {
    const std::vector<double> padded = nn::to_doubles(net.engine(), fitting->logits(net.engine(), hidden));
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const auto row = padded.begin() + static_cast<std::ptrdiff_t>(t * config.padded_vocabulary());
      std::transform(row, row + static_cast<std::ptrdiff_t>(config.vocabulary),
                     logits.begin() + static_cast<std::ptrdiff_t>(t * config.vocabulary),
                     [](double logit) { return static_cast<float>(logit); });
    }
  }
  net.take_from_last(std::span(logits));
  return logits;
}

}  // namespace bitloom::models
