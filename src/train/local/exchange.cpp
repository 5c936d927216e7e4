#include "train/local/exchange.h"

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace bitloom::train {
namespace {

using Json = nlohmann::json;

constexpr const char* key = "exchange";

}  // namespace

void note_counted(TensorFile& state, const RoundReply& last) {
  state.metadata[key] = Json{{"counted", last.counted}, {"hash", last.hash}}.dump();
}

std::optional<RoundReply> reply_before(const LocalExchange::State& state) {
  const auto found = state.file.metadata.find(key);
  if (state.rounds == 0 || found == state.file.metadata.end()) return std::nullopt;
  RoundReply reply;
  reply.round = state.rounds - 1;
  try {
    const Json json = Json::parse(found->second);
    json.at("counted").get_to(reply.counted);
    json.at("hash").get_to(reply.hash);
  } catch (const Json::exception& error) {
    fail(ErrorKind::data, "the state after {} rounds does not say which messages it has: {}", state.rounds, error.what());
  }
  return reply;
}

}  // namespace bitloom::train
