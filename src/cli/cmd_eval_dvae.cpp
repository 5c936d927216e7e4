#include <nlohmann/json.hpp>
#include <vector>

#include "cli/dvae_evaluation.h"
#include "cli/eval_dvae.h"
#include "cli/pair_options.h"
#include "core/error.h"

namespace bitloom::cli {
namespace {

PairOptions pairs_of(const DvaeEvaluationOptions& given) {
  PairOptions pairs;
  Options options("bitloom eval", "");
  pairs.declare(options);
  std::vector<std::string> args;
  if (!given.spec.empty()) args.insert(args.end(), {"--data", given.spec});
  if (!given.validation.empty()) args.insert(args.end(), {"--validation", given.validation});
  (void)options.parse(args);
  read_pair_options(options, pairs, given.model_or_run);
  return pairs;
}

}  // namespace

void eval_dvae(Session& session, const std::filesystem::path& file, const DvaeEvaluationOptions& options) {
  if (options.split == "test") {
    fail(ErrorKind::usage, "--split: test; images with captions have train and validation only");
  }
  const data::Pairs pairs = session.comm.together([&] { return part_of(pairs_of(options), options.split, session.terminal); });
  const auto dvae =
      session.comm.together([&] { return std::make_unique<OpenDvae>(file, options.values, options.device, options.backend); });
  const models::DvaeEvaluation result =
      dvae->coder().evaluate(session.comm, pairs, {options.temperature, dvae->model().description.least_log_b});
  if (options.json) {
    nlohmann::json json = evaluation_json(result);
    json["split"] = options.split;
    json["temperature"] = options.temperature;
    return session.terminal.json(json);
  }
  print_evaluation(session.terminal, options.split, result);
  session.terminal.note(collapse_note(result));
}

}  // namespace bitloom::cli
