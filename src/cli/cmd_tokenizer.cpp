// bitloom tokenizer train and info.
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/text_options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "data/text/tokenizer.h"
#include "data/text/tokenizer_training.h"

namespace bitloom::cli {
namespace {

void print_facts(Terminal& terminal, const std::string& name, const data::Tokenizer& tokenizer) {
  terminal.print("{}: {}, {} tokens, end of text {}, hash {}", name, tokenizer.kind(), tokenizer.size(),
                 tokenizer.end_of_text(), data::tokenizer_hash(tokenizer));
}

// As a JSON string, where bytes that are no characters by themselves show as the replacement character.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// How `text` is divided.
void print_tokens(Terminal& terminal, const data::Tokenizer& tokenizer, const std::string& text,
                  const std::vector<std::int32_t>& tokens) {
  terminal.print("\n{} tokens for {} bytes{}", tokens.size(), text.size(),
                 tokens.empty() ? ""
                                : fmt::format(", {:.2f} bytes per token",
                                              static_cast<double>(text.size()) / static_cast<double>(tokens.size())));
  for (const std::int32_t token : tokens) terminal.print("{:>8}  {}", token, quoted(tokenizer.decode({{token}})));
  const bool same = tokenizer.decode(tokens) == text;
  terminal.print("decoded: {}", same ? "the same text" : quoted(tokenizer.decode(tokens)));
}

}  // namespace

int tokenizer_train(Session& session, std::span<const std::string> args) {
  std::string out;
  std::size_t vocabulary = 8192;
  bool force = false;
  TextOptions text;
  Options options("bitloom tokenizer train --input FILE... --vocabulary N --out FILE [options]",
                  "Makes a byte-pair encoding from text, by sentencepiece. It keeps text as it is, white space included; what\n"
                  "it has no tokens for it spells in bytes.");
  text.declare(options);
  options.count("vocabulary", vocabulary, 1, 1000000000, "Number of tokens, of which 258 are bytes and special");
  options.text("out", out, "FILE", "Tokenizer to write");
  options.flag("force", force, "Replacement of an existing file");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  const data::TextInput& input = text.input();
  session.on_root([&] {
    require_new_file(out, force, "the name of a file");
    session.terminal.update("making a vocabulary; this may take minutes for each 100 MB of text");
    std::unique_ptr<data::Tokenizer> tokenizer;
    try {
      tokenizer = data::train_tokenizer(input, vocabulary);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      fail(ErrorKind::usage, "--vocabulary: {}", error.what());
    }
    write_atomically(out, tokenizer->serialize());
    print_facts(session.terminal, out, *tokenizer);
  });
  return exit_done;
}

int tokenizer_info(Session& session, std::span<const std::string> args) {
  std::vector<std::string> spec;
  std::string text;
  std::size_t seed = 1;
  double dropout = 0;
  bool json = false;
  Options options("bitloom tokenizer info SPEC [options]",
                  fmt::format("Shows what a tokenizer is, and how it divides a text. SPEC: {}.", tokenizer_spec_help));
  options.arguments(spec, "SPEC", 1, 1);
  options.text("text", text, "TEXT", "Text to encode and decode");
  options.number("merge-dropout", dropout, 0, 1, "Probability with which each merge is left out; 0 disables it");
  options.count("seed", seed, 0, std::numeric_limits<std::int64_t>::max(), "Seed of the choice of merges that are left out");
  options.flag("json", json, "One JSON object instead of tables");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  session.on_root([&] {
    const auto tokenizer = data::load_tokenizer(spec.front());
    if (!is_utf8(text)) fail(ErrorKind::usage, "--text: not UTF-8");
    std::vector<std::int32_t> tokens;
    tokenizer->encode(text, tokens, {dropout, seed});
    const bool has_text = options.source("text") != Options::Source::none;
    if (json) {
      nlohmann::json line{{"kind", tokenizer->kind()},
                          {"size", tokenizer->size()},
                          {"end_of_text", tokenizer->end_of_text()},
                          {"hash", data::tokenizer_hash(*tokenizer)}};
      if (has_text) line.update({{"tokens", tokens}, {"decoded", tokenizer->decode(tokens)}});
      // In ASCII, since U+0085 and U+2028 end lines for some readers.
      session.terminal.line(line.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
      return;
    }
    print_facts(session.terminal, spec.front(), *tokenizer);
    if (has_text) print_tokens(session.terminal, *tokenizer, text, tokens);
  });
  return exit_done;
}

}  // namespace bitloom::cli
