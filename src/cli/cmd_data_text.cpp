// bitloom data text and clean.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/text_options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "data/text/clean.h"
#include "data/text/prepare.h"
#include "data/text/tokenizer.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

void print_split(Terminal& terminal, const char* name, const data::TokenFileWriter& tokens) {
  const double per_token = tokens.size() == 0 ? 0 : static_cast<double>(tokens.bytes()) / static_cast<double>(tokens.size());
  terminal.print("{:<11} {} documents, {} tokens, {} words, {} bytes, {:.3f} bytes per token", name, tokens.documents(),
                 tokens.size(), tokens.words(), tokens.bytes(), per_token);
}

// A folder that is gone again with these files, if this made it, unless what is done in it succeeds.
template <typename F>
void make_folder(const fs::path& folder, std::initializer_list<const char*> files, F&& fill) {
  std::error_code error;
  const bool is_new = fs::create_directories(folder, error);
  if (error) fail(ErrorKind::io, "--out: {}: {}", folder.string(), error.message());
  try {
    fill();
  } catch (...) {
    std::error_code ignored;
    for (const char* file : files) {
      if (is_new) fs::remove(folder / file, ignored);
    }
    if (is_new) fs::remove(folder, ignored);
    throw;
  }
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::string kept_lines(const data::CleanResult& result) {
  std::string lines;
  for (const data::OwnedDocument& document : result.kept) lines += dump({{"id", document.id}, {"text", document.text}});
  return lines;
}

// A line per document that is gone, then one per test set.
std::string report_lines(const data::CleanResult& result) {
  std::string lines;
  for (const data::DroppedDocument& dropped : result.dropped) {
    Json line{{"document", dropped.id}, {"reason", dropped.reason}, {"tokens", dropped.tokens}};
    if (!dropped.twin.empty()) line.update({{"twin", dropped.twin}, {"jaccard", dropped.jaccard}});
    lines += dump(line);
  }
  for (const data::TestOverlap& test : result.tests) {
    lines += dump(
        {{"test", test.file}, {"ngrams", test.count.ngrams}, {"found", test.count.found}, {"percent", test.count.percent()}});
  }
  return lines;
}

void print_report(Terminal& terminal, const data::CleanResult& result, const data::CleanOptions& options) {
  const auto shorter = static_cast<std::size_t>(std::count_if(
      result.dropped.begin(), result.dropped.end(), [](const data::DroppedDocument& each) { return each.reason == "short"; }));
  std::size_t bytes = 0;
  for (const data::OwnedDocument& document : result.kept) bytes += document.text.size();
  terminal.print("{} documents", result.kept.size() + result.dropped.size());
  terminal.print("  {} dropped: fewer than {} {}", shorter, options.min_tokens,
                 options.tokenizer == nullptr ? "words" : "tokens");
  terminal.print("  {} dropped: Jaccard similarity above {} to one that is kept", result.dropped.size() - shorter,
                 options.jaccard);
  terminal.print("  {} kept, {} bytes", result.kept.size(), bytes);
  for (const data::TestOverlap& test : result.tests) {
    terminal.print("{}: {:.2f} % of {} 8-grams are in what is kept", test.file, test.count.percent(), test.count.ngrams);
  }
}

}  // namespace

int data_text(Session& session, std::span<const std::string> args) {
  std::string out;
  std::string tokenizer_spec;
  std::string validation = default_validation;
  std::size_t seed = 1;
  bool force = false;
  TextOptions text;
  Options options("bitloom data text --input FILE... --tokenizer SPEC --out FOLDER [options]",
                  "Turns text into tokens for training: train.tokens, validation.tokens and the tokenizer itself.");
  text.declare(options);
  options.text("tokenizer", tokenizer_spec, "SPEC", fmt::format("Tokenizer: {}", tokenizer_spec_help));
  options.text("out", out, "FOLDER", "Folder for the files, new or empty");
  options.text("validation", validation, "SHARE", validation_help);
  options.count("seed", seed, 0, std::numeric_limits<std::int64_t>::max(), "Seed of the choice of documents for validation");
  options.flag("force", force, "Replacement of files that are there");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  const data::TextInput& input = text.input();
  const double share = parse_share(validation);
  if (tokenizer_spec.empty()) fail(ErrorKind::usage, "--tokenizer: missing; expected {}", tokenizer_spec_help);
  session.on_root([&] {
    require_new_folder(out, force, "a folder");
    check_split_seed(options, "seed", input, share);
    const auto tokenizer = data::load_tokenizer(tokenizer_spec);
    const fs::path folder = out;
    make_folder(folder, {train_tokens_file, validation_tokens_file, tokenizer_file}, [&] {
      const std::string hash = data::tokenizer_hash(*tokenizer);
      data::TokenFileWriter train(folder / train_tokens_file, tokenizer->size(), hash);
      data::TokenFileWriter held_back(folder / validation_tokens_file, tokenizer->size(), hash);
      data::prepare_text(input, *tokenizer, share, seed, train, held_back, &session.terminal);
      // Files of two splits would train on what they are measured by: without these tokens nothing is trained.
      std::error_code ignored;
      fs::remove(folder / train_tokens_file, ignored);
      write_atomically(folder / tokenizer_file, tokenizer->serialize());
      held_back.finish();
      train.finish();
      session.terminal.print("{}: {} tokenizer of {} tokens", out, tokenizer->kind(), tokenizer->size());
      print_split(session.terminal, "train", train);
      print_split(session.terminal, "validation", held_back);
    });
  });
  return exit_done;
}

int data_clean(Session& session, std::span<const std::string> args) {
  std::string out;
  std::string tokenizer_spec;
  bool force = false;
  data::CleanOptions settings;
  TextOptions text;
  Options options("bitloom data clean --input FILE... --out FILE.jsonl [options]",
                  "Drops short documents and near copies of others, and says how much of test sets stands in what is kept.\n"
                  "FILE.report.jsonl lists what was dropped and why.");
  text.declare(options);
  options.text("out", out, "FILE.jsonl", "Documents that are kept, a JSON object with id and text per line");
  options.text("tokenizer", tokenizer_spec, "SPEC",
               fmt::format("Tokenizer that counts tokens, without it words between white space: {}", tokenizer_spec_help));
  options.count("min-tokens", settings.min_tokens, 0, 1000000000,
                "Smallest number of tokens of a document; 0 disables the limit");
  options.number("jaccard", settings.jaccard, 0, 1,
                 "Largest similarity (Jaccard, of sets of five characters in a row) of two documents, both of which are kept; "
                 "1 disables the limit",
                 true);
  options.series("test", settings.tests, "FILE",
                 "Test set, read as the input is, whose percentage of 8-grams of words in what is kept is reported");
  options.flag("force", force, "Replacement of files that are there");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  const data::TextInput& input = text.input();
  session.on_root([&] {
    const std::string expected = "the name of a .jsonl file";
    if (!out.empty() && !out.ends_with(".jsonl")) fail(ErrorKind::usage, "--out: '{}': expected {}", out, expected);
    require_new_file(out, force, expected);
    const fs::path report = fs::path(out).replace_extension(".report.jsonl");
    require_new_file(report, force, expected);
    std::unique_ptr<data::Tokenizer> tokenizer;
    if (!tokenizer_spec.empty()) tokenizer = data::load_tokenizer(tokenizer_spec);
    settings.tokenizer = tokenizer.get();
    const data::CleanResult result = data::clean_text(input, settings, &session.terminal);
    write_atomically(report, report_lines(result));
    write_atomically(out, kept_lines(result));
    print_report(session.terminal, result, settings);
    session.terminal.print("{}, {}", out, report.string());
  });
  return exit_done;
}

}  // namespace bitloom::cli
